"""The context that the engine derives from a config.json when the user sets none."""

from collections.abc import Mapping

from service.domain.config_section import Section
from service.domain.scenario import MAX_TOKENS, check_float, check_int

ORIGINAL = "original_max_position_embeddings"
# derive_max_model_len_and_key of vLLM 0.28.
POSITION_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length",
    "seq_len",
)  # fmt: skip
# They change no length, or the positions already include the scaling.
_UNSCALED = ("default", "llama3", "su", "mrope", "proportional", "gptj")


def context_length(section: Section, *, scaled: bool) -> int:
    """Positions times rope scaling as vLLM 0.28 does it (_get_and_verify_max_len). scaled: whether it scales at all."""
    found = positions(section)
    if not scaled:
        return found
    key = "rope_scaling" if section.values.get("rope_scaling") else "rope_parameters"
    rope = section.values.get(key) or {}
    if not isinstance(rope, Mapping):
        raise section.refusal(key, "give an object", value=rope)
    # Transformers 5 may hold one object for each kind of layer.
    kinds = [part for part in rope.values() if isinstance(part, Mapping)] or [rope]
    return min(_scaled(section, key, part, found) for part in kinds)


def positions(section: Section) -> int:
    """The smallest that the config names; model_max_length, where Cohere's configs have it, goes before all."""
    total = section.optional("model_max_length")
    if total is not None:
        return total
    found = [length for key in POSITION_KEYS if (length := section.optional(key)) is not None]
    return min(found) if found else section.size(POSITION_KEYS[0])


def _scaled(section: Section, key: str, rope: Mapping[str, object], base: int) -> int:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in _UNSCALED:
        return base
    if kind == "longrope":
        # Longer prompts would cost shorter ones quality, so the engine starts with the original context.
        return section.optional(ORIGINAL) or base
    if kind in ("linear", "dynamic", "yarn"):
        where = section.path_of(key)
        if kind == "yarn":
            base = check_int(f"{where}.{ORIGINAL}", rope.get(ORIGINAL), high=MAX_TOKENS * 10)
        return int(base * check_float(f"{where}.factor", rope.get("factor"), low=1.0, high=10_000.0))
    raise section.refusal(key, "this scaling cannot be read yet; give the four numbers instead", value=rope)
