"""Which layers look at every token and which at a window only."""

from service.domain.config_section import MAX_DIMENSION, Section
from service.domain.model_family import Family
from service.domain.scenario import check_int

_FULL = ("full_attention", "attention")
_WINDOWED = ("sliding_attention", "chunked_attention")
# Recurrent layers have builders of their own; here one would count as attention that it is not.
LAYER_TYPES = (*_FULL, *_WINDOWED)


def layer_windows(section: Section, family: Family, *, layers: int, context: int) -> list[int | None]:
    """A window for each layer, None where it sees everything; one that no sequence can fill is none."""
    windowed = _windowed(section, family, layers)
    if not any(windowed):
        return [None] * layers
    window = _window(section, family)
    if window is None or window >= context:
        return [None] * layers
    return [window if is_windowed else None for is_windowed in windowed]


def _windowed(section: Section, family: Family, layers: int) -> list[bool]:
    types = section.words("layer_types", length=layers, known=LAYER_TYPES)
    if types is not None:
        return [kind in _WINDOWED for kind in types]
    if family.windows == "alternating":
        # The first layer slides: configuration_gemma2.py, configuration_gpt_oss.py.
        return [layer % 2 == 0 for layer in range(layers)]
    if family.windows == "chunked":
        return [(layer + 1) % family.full_every != 0 for layer in range(layers)]
    if family.windows == "one_full_in":
        return _patterned(section, family, layers)
    # Qwen configs carry a window that use_sliding_window switches off; elsewhere a window is in force in every layer.
    if section.values.get("sliding_window") is None or not section.flag("use_sliding_window", default=True):
        return [False] * layers
    if "use_sliding_window" not in section.values:
        return [True] * layers
    full = section.count("max_window_layers")
    if section.raw("max_window_layers") is None:
        raise section.refusal("max_window_layers", "the window is in force from this layer on; add it")
    return [layer >= full for layer in range(layers)]


def _patterned(section: Section, family: Family, layers: int) -> list[bool]:
    """One full layer in so many; or letters that repeat, L for a window and G for none (EXAONE 4)."""
    pattern = section.values.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        if len(pattern) > layers or not set(pattern) <= {"L", "G"}:
            raise section.refusal("sliding_window_pattern", "give letters L and G, such as LLLG", value=pattern)
        return [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    every = section.optional("sliding_window_pattern")
    if every is None:
        every = family.full_every
        if "sliding_window" not in section.values or section.values["sliding_window"] is not None:
            section.assume("sliding_window_pattern", every)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _window(section: Section, family: Family) -> int | None:
    key = "attention_chunk_size" if family.windows == "chunked" else "sliding_window"
    if key in section.values and section.values[key] is None:
        # A null window switches it off in every class.
        return None
    found = section.raw(key)
    if found is not None:
        return check_int(section.path_of(key), found, high=MAX_DIMENSION * 10)
    return section.size(key)
