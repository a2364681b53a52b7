"""Writes the step tables from the kernel measurements in aiconfigurator-core. Run by `make step-tables`.

aiconfigurator-core (NVIDIA, Apache-2.0) ships kernel latencies measured per GPU; its API may change, so it is pinned,
used only here, and what the simulator reads is the committed output.

Where a model is outside the measurements, its entry in the file says how it was priced:

- priced_as: the tool does not know the architecture, and this one of equal GEMM shapes stands in. Mistral is a Llama
  without the sliding window that is refused here. Phi-3 stores q, k, v and gate, up fused, as the engine does for
  every Llama. OLMo-2 normalises q and k; only Qwen3 has that among the tool's dense architectures (it norms each head,
  OLMo-2 the projection: the same bytes), and moving a norm from before a block to after it changes no time.
- attention_between: attention is measured at 1, 2, 4, 8 or as many KV heads as heads, and at head_dim 64, 128 and
  (to 4 KV heads) 256. Between them the time is interpolated, because both the cache that decoding reads and the work
  of a prefill are proportional to them; a head_dim below 64 is priced as 64. GEMMs keep their own shape.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_runner.files import read_json, write_atomically
from service.domain.catalogue import CATALOGUE
from service.domain.errors import InvalidInputError, MemoryPolicyError, UnknownNameError, UnsupportedModelError
from service.domain.model_config import parse_config
from service.domain.reference import REFERENCE_MODELS
from service.domain.scenario import ModelArch

SCHEMA_VERSION = 1
# By system: the newest vLLM measurements in the pinned release that hold both GEMM and attention kernels.
KERNEL_DATABASES = {"b200_sxm": "0.24.0", "h200_sxm": "0.24.0", "h100_sxm": "0.24.0"}
# Above this, 16-bit weights leave an 80 GB GPU no room for a KV cache.
MAX_PARAMETERS = 35_000_000_000
ATTENTION, OUTPUT_HEAD, GENERATION_ATTENTION = "context_attention", "context_logits_gemm", "generation_attention"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PRICED_AS = {"mistral": "LlamaForCausalLM", "phi3": "LlamaForCausalLM", "olmo2": "Qwen3ForCausalLM"}
MEASURED_KV_HEADS = (1, 2, 4, 8)
MEASURED_HEAD_DIMS, WIDE_HEAD_DIM, WIDE_HEAD_MAX_KV_HEADS = (64, 128), 256, 4


def _spread(*parts: Sequence[int]) -> list[int]:
    return sorted({value for part in parts for value in part})


# Dense where kernels switch their tiling (few tokens), sparse where time is proportional to the work.
GRID: dict[str, list[int]] = {
    "tokens": _spread(
        range(1, 9), range(12, 65, 4), range(80, 257, 16), range(320, 1025, 64), range(1280, 4097, 256),
        range(5120, 16385, 1024),
    ),
    "sequences": [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024],
    "context_new": [1, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384],
    "context_past": [0, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768],
    "generation_sequences": [
        1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
    ],
    "generation_context": [
        1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ],
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when the file is written, 1 with a line on stderr when a model cannot be priced."""
    parser = argparse.ArgumentParser(prog="python -m bench_runner.step_table_generator", description=__doc__)
    parser.add_argument("--system", default="b200_sxm", choices=KERNEL_DATABASES, help="GPU system")
    parser.add_argument("--model", action="append", default=[], help="catalogue name; repeat")
    parser.add_argument("--catalogue", action="store_true", help="every catalogue model that an 80 GB GPU can serve")
    parser.add_argument("--config", action="append", type=Path, default=[], help="config.json or its folder; repeat")
    parser.add_argument("--name", action="append", default=[], help="the name of the --config at the same place")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write; no model: the reference models")
    arguments = parser.parse_args(argv)
    if len(arguments.config) != len(arguments.name):
        parser.error(f"{len(arguments.config)} --config but {len(arguments.name)} --name; give one name a config")
    try:
        configs = wanted_configs(
            names=[*arguments.model, *(catalogue_models() if arguments.catalogue else ())],
            files=list(zip(arguments.name, arguments.config, strict=True)),
        )
        models = {}
        for name, shape in {name: tool_shape(config) for name, config in configs.items()}.items():
            print(f"{name} on {arguments.system} …", file=sys.stderr)
            models[name] = {**pricing(configs[name]), **_measured_times(name, shape, arguments.system)}
        write_atomically(arguments.output, _file(models, arguments.system))
    except MemoryPolicyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _file(models: Mapping[str, Any], system: str) -> bytes:
    content = {
        "schema_version": SCHEMA_VERSION,
        "system": system,
        "source": f"aiconfigurator-core {version('aiconfigurator-core')}, vllm {KERNEL_DATABASES[system]} kernels",
        "licence": "Apache-2.0 (aiconfigurator-core)",
        "units": "milliseconds for the whole model, tensor parallel 1, bf16",
        "grid": GRID,
        "models": models,
    }
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def catalogue_models() -> list[str]:
    """The catalogue's models of at most MAX_PARAMETERS, in its order."""
    found = []
    for entry in CATALOGUE:
        model = parse_config(entry.config)
        if _priceable(model) and (model.parameters or 0) <= MAX_PARAMETERS:
            found.append(entry.name)
    return found


def _priceable(model: ModelArch) -> bool:
    return model.kind == "dense" and model.quantisation is None


def wanted_configs(*, names: Iterable[str], files: Iterable[tuple[str, Path]]) -> dict[str, dict[str, Any]]:
    """Model name -> config.json, of catalogue names and of named files; of neither, the reference models."""
    by_name = {entry.name: entry.config for entry in CATALOGUE}
    configs = {}
    for name in names:
        if name not in by_name:
            raise UnknownNameError(path="--model", value=name, known=by_name)
        configs[name] = by_name[name]
    for name, path in files:
        if name in configs:
            raise InvalidInputError(path="--name", value=name, remedy="another model has this name; choose one")
        configs[name] = read_json(path / "config.json" if path.is_dir() else path)
    return configs or {name: by_name[name] for name in REFERENCE_MODELS}


def tool_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the tool prices, defaults filled in. UnsupportedModelError if no measurement is near."""
    family = config.get("model_type")
    if family not in ARCHITECTURES | PRICED_AS:
        raise UnsupportedModelError(
            path="model_type", value=family, remedy="no architecture of the tool stands for it; add it to PRICED_AS"
        )
    if not _priceable(parse_config(config)):
        raise UnsupportedModelError(
            path="model_type", value=family, remedy="windows and quantised weights have no price; leave them out"
        )
    heads = config["num_attention_heads"]
    keys = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings")
    shape = {
        **{key: config[key] for key in keys},
        "architectures": [(ARCHITECTURES | PRICED_AS)[family]],
        "torch_dtype": "bfloat16",
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
    }
    attention_weights(shape)
    return shape


def attention_weights(shape: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    """Measured (KV heads, head_dim) -> its weight in the attention time of this shape; the weights add up to 1."""
    heads, kv_heads, head_dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    measured_dims = (*MEASURED_HEAD_DIMS, *((WIDE_HEAD_DIM,) if kv_heads <= WIDE_HEAD_MAX_KV_HEADS else ()))
    if head_dim > measured_dims[-1]:
        raise UnsupportedModelError(
            path="head_dim",
            value=head_dim,
            remedy=f"with {kv_heads} KV heads attention is measured up to head_dim {measured_dims[-1]}",
        )
    by_heads = _between(kv_heads, sorted({*(count for count in MEASURED_KV_HEADS if count < heads), heads}))
    by_dim = _between(head_dim, measured_dims)
    return {(count, dim): by_heads[count] * by_dim[dim] for count in by_heads for dim in by_dim}


def _between(value: int, measured: Sequence[int]) -> dict[int, float]:
    """The measured neighbours of a value with the weights of linear interpolation; below all, the first alone."""
    high = next(point for point in measured if point >= value)
    low = max((point for point in measured if point <= value), default=high)
    share = (value - low) / (high - low) if high > low else 1.0
    return {low: 1 - share, high: share}


def pricing(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the entry of a model says about where it is outside the measurements; empty if it is inside."""
    shape, record = tool_shape(config), dict[str, Any]()
    if config["model_type"] in PRICED_AS:
        record["priced_as"] = PRICED_AS[config["model_type"]]
    weights = attention_weights(shape)
    if list(weights) != [(shape["num_key_value_heads"], shape["head_dim"])]:
        record["attention_between"] = [
            {"kv_heads": kv_heads, "head_dim": head_dim, "weight": round(weight, 5)}
            for (kv_heads, head_dim), weight in weights.items()
        ]
    return record


def _measured_times(name: str, shape: Mapping[str, Any], system: str) -> dict[str, Any]:
    from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

    try:
        return _model_times(shape, system)
    except PerfDataNotAvailableError as error:
        raise UnsupportedModelError(path="model", value=name, remedy=f"no measured kernel is near: {error}") from error


def _model_times(shape: Mapping[str, Any], system: str) -> dict[str, Any]:
    linear = _compile(shape, system)
    parts = [
        (weight, _compile({**shape, "num_key_value_heads": kv_heads, "head_dim": head_dim}, system))
        for (kv_heads, head_dim), weight in attention_weights(shape).items()
    ]
    # Only a measured shape can be asked for all of its operators; their order is the same in all.
    measured = parts[0][1]
    context = [op[0] for op in measured.evaluate_context_ops(list(range(_count(measured))), batch_size=1, s=1)]
    attention, head = context.index(ATTENTION), context.index(OUTPUT_HEAD)
    dense = [index for index in range(len(context)) if index not in (attention, head)]
    generation = [op[0] for op in measured.evaluate_generation_ops(list(range(len(context))), batch_size=1, s=1)]
    decode = generation.index(GENERATION_ATTENTION)

    def context_ms(new: int, past: int) -> float:
        return sum(w * _sum(h.evaluate_context_ops([attention], batch_size=1, s=new, prefix=past)) for w, h in parts)

    def generation_ms(sequences: int, context: int) -> float:
        return sum(w * _sum(h.evaluate_generation_ops([decode], batch_size=sequences, s=context)) for w, h in parts)

    return {
        "dense_ms": [_sum(linear.evaluate_context_ops(dense, batch_size=1, s=t)) for t in GRID["tokens"]],
        "head_ms": [_sum(linear.evaluate_context_ops([head], batch_size=n, s=1)) for n in GRID["sequences"]],
        "context_ms": [[round(context_ms(n, p), 5) for p in GRID["context_past"]] for n in GRID["context_new"]],
        "generation_ms": [
            [round(generation_ms(n, k), 5) for k in GRID["generation_context"]] for n in GRID["generation_sequences"]
        ],
    }


def _compile(shape: Mapping[str, Any], system: str) -> Any:
    # Here, so that everything before the first measurement runs, and is tested, without the tool.
    from aiconfigurator_core.sdk import EngineHandle

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        return EngineHandle.compile(folder, system, "vllm", backend_version=KERNEL_DATABASES[system])


def _count(handle: Any) -> int:
    """How many context operators the compiled model has; the API has no direct question for it."""
    count = 1
    while True:
        try:
            handle.evaluate_context_ops([count], batch_size=1, s=1)
        except ValueError:
            return count
        count += 1


def _sum(values: list[tuple[str, float, float, str]]) -> float:
    return round(sum(value[1] for value in values), 5)


if __name__ == "__main__":
    sys.exit(main())
