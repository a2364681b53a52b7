"""The formulas behind an architecture's numbers, written with the numbers in."""

from collections.abc import Iterable, Mapping, Sequence

from service.domain.architecture import KV_ELEMENT_BYTES, Architecture, CacheLayers
from service.domain.weight_module import Module

_LAYER_NUMBER = ".layers."
# What a formula spells out; the rest is summed up at its end.
_MOST_TERMS = 12


def formulas(read: Architecture) -> dict[str, str]:
    """By what they give."""
    parameters = parameter_formulas(read.modules)
    return {
        **{f"parameters: {part}": text for part, text in parameters.items()},
        "weight_bytes": weight_formula(read.weights),
        **cache_formulas(read.caches, read.state_bytes),
    }


def parameter_formulas(modules: Iterable[Module]) -> dict[str, str]:
    """By part: how often each matrix stands there, and its sides."""
    parts: dict[str, dict[tuple[str, int, int, int], int]] = {}
    for module in modules:
        key = (module.name.rpartition(".")[2], module.rows, module.cols, module.copies)
        counted = parts.setdefault(module.part, {})
        counted[key] = counted.get(key, 0) + 1
    return {part: _sum(counted) for part, counted in parts.items()}


def _sum(counted: Mapping[tuple[str, int, int, int], int]) -> str:
    terms: list[str] = []
    total = rest = 0
    for (name, rows, cols, copies), times in counted.items():
        numbers = times * copies * rows * cols
        total += numbers
        if len(terms) == _MOST_TERMS:
            rest += numbers
            continue
        factors = [f"{value:,}" for value in (times, copies) if value != 1]
        factors += [f"{value:,}" for value in (rows, cols) if value != 1 or rows == cols]
        terms.append(f"{' · '.join(factors)} ({name})")
    if rest:
        terms.append(f"{rest:,} (others)")
    return f"{' + '.join(terms)} = {total:,}"


def weight_formula(by_format: Mapping[str, tuple[int, int]]) -> str:
    """Numbers and bytes by format; the bytes of quantised ones include their scales."""
    terms = [
        f"{numbers:,} · 2 bytes" if name == "bf16" else f"{numbers:,} in {name} with scales, {size:,} bytes"
        for name, (numbers, size) in by_format.items()
    ]
    return f"{' + '.join(terms)} = {sum(size for _, size in by_format.values()):,} bytes"


def cache_formulas(caches: Sequence[CacheLayers], state_bytes: int) -> dict[str, str]:
    """Per token with every layer full, and of n tokens with windows."""
    per_token = " + ".join(_term(cache) for cache in caches)
    total = sum(cache.bytes_per_token() for cache in caches)
    at = " + ".join(
        f"{cache.bytes_per_token():,} · {'n' if cache.window is None else f'min(n, {cache.window:,})'}"
        for cache in caches
    )
    found = {"kv_bytes_per_token": f"{per_token} = {total:,} bytes", "kv_bytes_at_n_tokens": f"{at} bytes"}
    if state_bytes:
        found["state_bytes_per_sequence"] = f"{state_bytes:,} bytes, whatever the length"
    return found


def _term(cache: CacheLayers) -> str:
    layers = f"{cache.layers:,} {cache.kind} layers"
    if cache.kind == "latent":
        return f"{layers} · {cache.values:,} · {KV_ELEMENT_BYTES} bytes"
    return f"2 · {layers} · {cache.kv_heads:,} KV heads · {cache.values // 2:,} · {KV_ELEMENT_BYTES} bytes"
