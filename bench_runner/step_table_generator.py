"""Writes the step tables from the kernel measurements in aiconfigurator-core. Run by `make step-tables`.

aiconfigurator-core (NVIDIA, Apache-2.0) ships kernel latencies measured per GPU; its API may change, so it is pinned,
used only here, and what the simulator reads is the committed output.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiconfigurator_core.sdk import EngineHandle

from bench_runner.files import write_atomically
from service.domain.catalogue import CATALOGUE, CatalogueEntry
from service.domain.reference import REFERENCE_MODELS

SCHEMA_VERSION = 1
# The newest measurements in the pinned release that hold both GEMM and attention kernels.
KERNEL_DATABASE = "0.24.0"
ATTENTION, OUTPUT_HEAD = "context_attention", "context_logits_gemm"
GENERATION_ATTENTION = "generation_attention"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


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
    """Exit code 0 when the file is written."""
    parser = argparse.ArgumentParser(prog="python -m bench_runner.step_table_generator", description=__doc__)
    parser.add_argument("--system", default="b200_sxm", help="GPU system as aiconfigurator-core names it")
    parser.add_argument("--model", action="append", help="catalogue name; repeat; default: the reference models")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    wanted = arguments.model or list(REFERENCE_MODELS)
    by_name = {entry.name: entry for entry in CATALOGUE}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        print(f"not in the catalogue: {', '.join(unknown)}; known: {', '.join(by_name)}", file=sys.stderr)
        return 1
    models = {}
    for name in wanted:
        print(f"{name} on {arguments.system} …", file=sys.stderr)
        models[name] = _model_times(by_name[name], arguments.system)
    content = {
        "schema_version": SCHEMA_VERSION,
        "system": arguments.system,
        "source": f"aiconfigurator-core {version('aiconfigurator-core')}, vllm {KERNEL_DATABASE} kernels",
        "licence": "Apache-2.0 (aiconfigurator-core)",
        "units": "milliseconds for the whole model, tensor parallel 1, bf16",
        "grid": GRID,
        "models": models,
    }
    write_atomically(arguments.output, (json.dumps(content, separators=(",", ":")) + "\n").encode())
    return 0


def _model_times(entry: CatalogueEntry, system: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        family = entry.config["model_type"]
        config = {**entry.config, "architectures": [ARCHITECTURES[family]], "torch_dtype": "bfloat16"}
        # The tool knows no null; a missing key means the same to it.
        config = {key: value for key, value in config.items() if value is not None}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        handle = EngineHandle.compile(folder, system, "vllm", backend_version=KERNEL_DATABASE)
    context = [op[0] for op in handle.evaluate_context_ops(list(range(_count(handle))), batch_size=1, s=1)]
    attention, head = context.index(ATTENTION), context.index(OUTPUT_HEAD)
    dense = [index for index in range(len(context)) if index not in (attention, head)]
    generation = [op[0] for op in handle.evaluate_generation_ops(list(range(len(context))), batch_size=1, s=1)]
    decode = generation.index(GENERATION_ATTENTION)
    return {
        "dense_ms": [_sum(handle.evaluate_context_ops(dense, batch_size=1, s=t)) for t in GRID["tokens"]],
        "head_ms": [_sum(handle.evaluate_context_ops([head], batch_size=n, s=1)) for n in GRID["sequences"]],
        "context_ms": [
            [
                _sum(handle.evaluate_context_ops([attention], batch_size=1, s=new, prefix=past))
                for past in GRID["context_past"]
            ]
            for new in GRID["context_new"]
        ],
        "generation_ms": [
            [_sum(handle.evaluate_generation_ops([decode], batch_size=n, s=k)) for k in GRID["generation_context"]]
            for n in GRID["generation_sequences"]
        ],
    }


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
