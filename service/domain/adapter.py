"""A LoRA adapter: what the engine reserves for it beside the model.

vLLM 0.28 (lora/layers/*.py) makes room in every linear layer, embedding and head, whichever of them an adapter changes:
for each of max_loras adapters at once a matrix from the layer's inputs to max_lora_rank and one from there to its
outputs, in the 16 bits of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.domain.architecture import Architecture
from service.domain.candidate import cli_arg
from service.domain.errors import InvalidInputError
from service.domain.scenario import MAX_WEIGHT_GB, ModelArch, check_int

# The values of --max-lora-rank (vllm 0.28, config/lora.py).
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MAX_LORAS = 1024
ELEMENT_BYTES = 2
_ALL_LINEAR = "all-linear"
_MOST_TARGETS = 1000
# What vllm 0.28 refuses to load (lora/peft_helper.py): key -> the value that it takes.
_REFUSED = {"use_dora": False, "modules_to_save": None, "bias": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """rank: the largest of any layer. max_loras: adapters in one batch. targets: suffixes of layers, None for all."""

    rank: int
    max_loras: int = 1
    targets: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_int("rank", self.rank, high=ENGINE_RANKS[-1])
        check_int("max_loras", self.max_loras, high=MAX_LORAS)

    @property
    def reserved_rank(self) -> int:
        """The smallest --max-lora-rank that takes it."""
        return next(rank for rank in ENGINE_RANKS if rank >= self.rank)

    @property
    def engine_args(self) -> dict[str, int | bool]:
        """What the engine has to be started with."""
        return {"enable_lora": True, "max_loras": self.max_loras, "max_lora_rank": self.reserved_rank}


def read_adapter(config: Mapping[str, Any], *, max_loras: int = 1) -> Adapter:
    """An adapter_config.json of PEFT; InvalidInputError names the key and the remedy."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise InvalidInputError(path="peft_type", value=kind, remedy="only LORA adapters can be sized")
    for key, taken in _REFUSED.items():
        value = config.get(key)
        if value and value != taken:
            raise InvalidInputError(path=key, value=value, remedy="vLLM does not load such an adapter; merge it")
    if config.get("r") is None:
        raise InvalidInputError(path="r", value=None, remedy="an adapter_config.json must name the rank; add it")
    rank = check_int("r", config["r"], high=ENGINE_RANKS[-1])
    return Adapter(
        rank=max(rank, _largest(config.get("rank_pattern"))),
        max_loras=max_loras,
        targets=_targets(config.get("target_modules")),
    )


def _largest(pattern: object) -> int:
    """Of the ranks that single layers have."""
    if not pattern:
        return 0
    if not isinstance(pattern, Mapping) or len(pattern) > _MOST_TARGETS:
        raise InvalidInputError(path="rank_pattern", value=pattern, remedy="give an object of ranks by layer")
    return max(check_int(f"rank_pattern.{name}", rank, high=ENGINE_RANKS[-1]) for name, rank in pattern.items())


def _targets(value: object) -> tuple[str, ...] | None:
    if value is None or value == _ALL_LINEAR:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        remedy = f"give a list of layers such as q_proj, or {_ALL_LINEAR!r}; patterns are not resolved here"
        raise InvalidInputError(path="target_modules", value=value, remedy=remedy)
    if not value or len(value) > _MOST_TARGETS:
        remedy = f"name one to {_MOST_TARGETS} layers such as q_proj"
        raise InvalidInputError(path="target_modules", value=list(value), remedy=remedy)
    for index, name in enumerate(value):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(path=f"target_modules[{index}]", value=name, remedy="give the name of a layer")
    return tuple(value)


def with_adapter(model: ModelArch, adapter: Adapter) -> ModelArch:
    """The model with the room for its adapters counted as weights; InvalidInputError where its layers are unknown."""
    read = model.architecture
    if read is None:
        raise InvalidInputError(
            path="adapter",
            value=f"rank {adapter.rank}",
            remedy="four numbers do not say how wide the layers are: name the model or give its config, or count the "
            "adapter into weight_gb",
        )
    widths = _layer_widths(read)
    width = sum(widths.values())
    size = adapter.max_loras * adapter.reserved_rank * width * ELEMENT_BYTES
    weight_gb = model.weight_gb + size / 1e9
    if weight_gb > MAX_WEIGHT_GB:
        raise InvalidInputError(
            path="adapter",
            value=f"rank {adapter.rank}, max_loras {adapter.max_loras}",
            remedy=f"with this model it would take {size / 1e9:,.0f} GB; lower max_loras",
        )
    counted = replace(
        read,
        weight_bytes=read.weight_bytes + size,
        warnings=(*read.warnings, _note(adapter, size=size, widths=widths)),
        adapter=f"LoRA of rank {adapter.rank}, {adapter.max_loras} at once",
        adapter_args=tuple(adapter.engine_args.items()),
    )
    return replace(model, weight_gb=weight_gb, architecture=counted)


def _layer_widths(read: Architecture) -> dict[str, int]:
    """By the last part of a layer's name: inputs plus outputs of all layers of that name."""
    widths: dict[str, int] = {}
    for module in read.modules:
        if not module.vector and module.part != "image encoder":
            name = module.name.rpartition(".")[2]
            widths[name] = widths.get(name, 0) + (module.rows + module.cols) * module.copies
    # A tied head is no matrix of its own, but the engine makes room for an adapter of it all the same.
    widths.setdefault("lm_head", widths.get("embed_tokens", 0))
    return widths


def _note(adapter: Adapter, *, size: int, widths: Mapping[str, int]) -> str:
    unknown = [name for name in adapter.targets or () if name.rpartition(".")[2] not in widths]
    words = " ".join(cli_arg(name, value) for name, value in adapter.engine_args.items())
    note = (
        f"The adapter is counted as the {size / 2**30:.3f} GiB that vLLM reserves for it: {adapter.max_loras} at once, "
        f"each rank {adapter.reserved_rank} · {sum(widths.values()):,} inputs and outputs of all layers · "
        f"{ELEMENT_BYTES} bytes; start it with {words}."
    )
    if not unknown:
        return note
    names = ", ".join(name[:60] for name in unknown[:5])
    return f"{note} Layers of that name are not known in this family: {names}."
