"""Quantised weights: how many bytes each module takes, by the method that a config.json names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from service.domain.config_section import Notes, Section
from service.domain.grouped_weights import awq_rules, gptq_rules
from service.domain.module_pattern import ModuleNames, read_names
from service.domain.quantised_format import Format, Rule, known_bits
from service.domain.weight_module import Module

# 16-bit weights: what the engine loads every unquantised module as.
PLAIN_BYTES = 2


FP8_BLOCK = Format(name="fp8", bits=8, scale_bits=32, block_rows=128, block_cols=128)
FP8_ROW = Format(name="fp8", bits=8, scale_bits=32)
FP8_TENSOR = Format(name="fp8", bits=8, scale_bits=32, block_rows=0)
NVFP4 = Format(name="nvfp4", bits=4, scale_bits=8, block_cols=16)
MXFP4 = Format(name="mxfp4", bits=4, scale_bits=8, block_cols=32)
_TWO_NUMBERS = re.compile(r"\d{1,6}x\d{1,6}", re.ASCII)
_MODELOPT = {
    "FP8": FP8_TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROW,
    "FP8_PB_WO": FP8_BLOCK,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP4": MXFP4,
    "MXFP8": Format(name="mxfp8", bits=8, scale_bits=8, block_cols=32),
    "W4A16_AWQ": Format(name="int4", bits=4, scale_bits=16, block_cols=128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The first rule that holds a module decides; what is in `kept`, or in no rule, stays in 16 bits."""

    method: str
    rules: tuple[Rule, ...] = ()
    kept: ModuleNames = ModuleNames()  # noqa: RUF009 — an immutable value

    def format_of(self, module: Module) -> Format | None:
        """None for 16 bits. Only a rule that names a head or an embedding touches it."""
        if module.vector or self.kept.holds(module.name):
            return None
        return next((rule.format for rule in self.rules if rule.holds(module)), None)


def warn_of_unmatched(modules: Iterable[Module], quantisation: Quantisation | None, notes: Notes) -> None:
    """Targets that name no module leave weights in 16 bits that were meant to take less."""
    for rule in quantisation.rules if quantisation else ():
        if rule.source and not any(rule.holds(module) for module in modules):
            notes.warnings.append(f"{rule.source}: no module is named so, so that none is counted in that format")


def weight_bytes(modules: Iterable[Module], quantisation: Quantisation | None) -> dict[str, tuple[int, int]]:
    """By format, `bf16` for what is not quantised: numbers and bytes."""
    if quantisation is None:
        parameters = sum(module.elements for module in modules)
        return {"bf16": (parameters, parameters * PLAIN_BYTES)}
    found: dict[str, tuple[int, int]] = {}
    for module in modules:
        form = quantisation.format_of(module)
        name = "bf16" if form is None else form.name
        size = module.elements * PLAIN_BYTES if form is None else form.bytes_of(module)
        numbers, total = found.get(name, (0, 0))
        found[name] = numbers + module.elements, total + size
    return found


def read_quantisation(outer: Section, decoder: Section) -> Quantisation | None:
    """The method that stands beside the decoder or at the top; None for 16-bit weights."""
    for section in (decoder, outer):
        for key in ("quantization_config", "compression_config"):
            part = section.part(key)
            if part is not None:
                found = _read(part, decoder)
                _warn_of_kv_scheme(part)
                return found
    return None


def _read(part: Section, decoder: Section) -> Quantisation:
    algorithm = part.text("quant_algo")
    method = part.text("quant_method") or ("modelopt" if algorithm else None)
    method = method or ("compressed-tensors" if part.part("config_groups") else None)
    if method is None:
        raise part.refusal("quant_method", "the config must name the method of its quantised weights; add it")
    method = method.lower().removesuffix("_marlin")
    kept = read_names(part, ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules",
                             "llm_int8_skip_modules"))  # fmt: skip
    rules = _rules(method, part, decoder)
    if rules is None:
        part.notes.warnings.append(
            f"{part.path}: the method {method[:40]!r} is not known; weights are counted as 16-bit ones, which is more "
            "than they will take"
        )
        rules = ()
    return Quantisation(method=method[:40], rules=rules, kept=kept)


def _rules(method: str, part: Section, decoder: Section) -> tuple[Rule, ...] | None:
    if method == "fp8":
        return _fp8_rules(part, decoder)
    if method == "fbgemm_fp8":
        return (Rule(format=FP8_ROW),)
    if method == "mxfp4":
        # The engine applies this method to experts alone (mxfp4.py).
        return (Rule(format=MXFP4, parts=("experts",)),)
    if method in ("awq", "gptq"):
        return awq_rules(part) if method == "awq" else gptq_rules(part)
    if method == "compressed-tensors":
        return _group_rules(part)
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4"):
        return _modelopt_rules(part)
    if method == "bitsandbytes":
        eight = part.flag("load_in_8bit")
        four = Format(name="int4", bits=4, scale_bits=32, block_cols=64)
        return (Rule(format=Format(name="int8", bits=8, scale_bits=32) if eight else four),)
    return None


def _fp8_rules(part: Section, decoder: Section) -> tuple[Rule, ...]:
    block = _block(part, "weight_block_size")
    form = FP8_TENSOR if block is None else replace(FP8_BLOCK, block_rows=block[0], block_cols=block[1])
    experts: Format | None = None
    if (part.text("moe_quant_algo") or "").upper() == "NVFP4":
        experts = NVFP4
    elif decoder.text("expert_dtype") == "fp4":
        experts = MXFP4
    rule = Rule(format=form)
    return (rule,) if experts is None else (Rule(format=experts, parts=("experts",)), rule)


def _block(part: Section, key: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, as `[128, 128]` or `128x128`; None where the key is missing or null."""
    block = part.values.get(key)
    if block is None:
        return None
    if isinstance(block, str) and _TWO_NUMBERS.fullmatch(block):
        block = [int(size) for size in block.split("x")]
    if not isinstance(block, list) or len(block) != 2:
        raise part.refusal(key, "give two numbers", value=block)
    sizes = Section(values=dict(zip(("[0]", "[1]"), block, strict=True)), path=part.path_of(key), notes=part.notes)
    return sizes.size("[0]"), sizes.size("[1]")


def _group_rules(part: Section) -> tuple[Rule, ...]:
    groups = part.part("config_groups")
    if groups is None:
        raise part.refusal("config_groups", "the config must say what is quantised how; add it")
    if len(groups.values) > 16:
        raise part.refusal("config_groups", "give at most 16 groups", value=dict(groups.values))
    named, rest = [], []
    for name in groups.values:
        group = groups.part(str(name))
        weights = group.part("weights") if group else None
        if group is None or weights is None:
            path = groups.path_of(str(name))
            part.notes.warnings.append(f"{path}: the group names no weights, so it changes none")
            continue
        form = _group_format(part, group, weights)
        targets = group.values.get("targets")
        # A class stands for all of its modules (compressed_tensors/utils.py, find_matched_target).
        is_general = targets is None or (isinstance(targets, list) and "Linear" in targets)
        if is_general:
            rest.append(Rule(format=form))
        if targets != ["Linear"]:
            source = None if is_general else group.path_of("targets")
            named.append(Rule(format=form, names=read_names(group, ("targets",)), parts=None, source=source))
    return (*named, *rest)


def _group_format(part: Section, group: Section, weights: Section) -> Format:
    bits = known_bits(weights, "num_bits")
    kind = weights.text("type") or "int"
    layout = group.text("format") or part.text("format") or ""
    size = None if weights.values.get("group_size") == -1 else weights.optional("group_size")
    if kind == "float" and bits == 4:
        is_nv = size == 16 or layout.startswith("nvfp4")
        return NVFP4 if is_nv else MXFP4
    name = f"fp{bits}" if kind == "float" else f"int{bits}"
    strategy = weights.text("strategy") or ("group" if size else "channel")
    if strategy == "block":
        down, across = _block(weights, "block_structure") or (128, 128)
        return Format(name=name, bits=bits, scale_bits=32, block_rows=down, block_cols=across)
    rows: Literal[0, 1] = 0 if strategy == "tensor" else 1
    zero = 0 if weights.flag("symmetric", default=True) else bits
    return Format(name=name, bits=bits, scale_bits=16 + zero, block_rows=rows, block_cols=size or 0)


def _modelopt_rules(part: Section) -> tuple[Rule, ...] | None:
    algorithm = (part.text("quant_algo") or "").upper()
    if algorithm in _MODELOPT:
        return (Rule(format=_MODELOPT[algorithm]),)
    layers = part.part("quantized_layers")
    if layers is not None:
        by_format: dict[Format, list[str]] = {}
        for name, value in layers.values.items():
            algorithm = str(value.get("quant_algo", "")).upper() if isinstance(value, dict) else ""
            if algorithm not in _MODELOPT:
                raise layers.refusal(str(name)[:100], f"known are {', '.join(_MODELOPT)}", value=value)
            by_format.setdefault(_MODELOPT[algorithm], []).append(name)
        return tuple(
            Rule(format=form, names=read_names(_names_section(layers, names), ("names",)), parts=None)
            for form, names in by_format.items()
        )
    return _group_rules(part) if part.part("config_groups") else None


def _names_section(layers: Section, names: list[str]) -> Section:
    return Section(values={"names": names}, path=layers.path, notes=layers.notes)


def _warn_of_kv_scheme(part: Section) -> None:
    scheme = part.values.get("kv_cache_scheme") or part.values.get("kv_cache_quant_algo")
    if scheme:
        part.notes.warnings.append(
            "the checkpoint names a KV cache of fewer bits; the KV figures are for 16 bits, which --kv-cache-dtype "
            "may change"
        )
