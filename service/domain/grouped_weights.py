"""AWQ and GPTQ: groups of weights along the inputs share a scale, and modules may differ from the rest.

GPTQ as vLLM 0.28 reads it (quantization/utils/gptq_utils.py): the first pattern of `dynamic` that matches the beginning
of a module's name decides, and what `modules_in_block_to_quantize` does not name stays in 16 bits.
"""

from collections.abc import Mapping
from dataclasses import replace

from service.domain.config_section import Section
from service.domain.module_pattern import GatheredNames, ModuleNames, read_names
from service.domain.quantised_format import QUANTISED_PARTS, Format, Rule, known_bits

_LEFT_OUT = "-:"
# Each is compared with every module.
_MOST_RUNS = 16


def awq_rules(part: Section) -> tuple[Rule, ...]:
    """One for all modules."""
    return (Rule(format=_format(part, zero_point=part.flag("zero_point", default=True)), parts=_parts(part)),)


def gptq_rules(part: Section) -> tuple[Rule, ...]:
    """What is left out, what is stored in another way, the rest. A zero point is stored even where it is symmetric."""
    parts = _parts(part)
    rules = [*_dynamic(part, parts), Rule(format=_format(part, zero_point=True), parts=parts)]
    block = _block(part)
    return tuple(rules) if block is None else (Rule(format=None, names=block, named=False, parts=None), *rules)


def _parts(part: Section) -> tuple[str, ...]:
    has_head = part.values.get("lm_head") is not None and part.flag("lm_head")
    return (*QUANTISED_PARTS, "head") if has_head else QUANTISED_PARTS


def _format(part: Section, *, zero_point: bool) -> Format:
    bits = known_bits(part, "bits" if part.values.get("bits") is not None else "w_bit")
    group = part.values.get("group_size", part.values.get("q_group_size"))
    if group == -1 and not isinstance(group, bool):
        cols = 0
    else:
        cols = part.size("group_size" if "group_size" in part.values else "q_group_size")
    # A 16-bit scale for each group, and a zero point as wide as a weight.
    return Format(name=f"int{bits}", bits=bits, scale_bits=16 + (bits if zero_point else 0), block_cols=cols)


def _dynamic(part: Section, parts: tuple[str, ...]) -> list[Rule]:
    """Patterns in turn with the same outcome are one rule."""
    patterns = part.part("dynamic")
    if patterns is None:
        return []
    runs: list[tuple[Format | None, GatheredNames]] = []
    last: list[Rule] = []
    for pattern, change in patterns.values.items():
        form = None if pattern.startswith(_LEFT_OUT) else _changed(part, patterns, pattern, change)
        if not runs or runs[-1][0] != form:
            runs.append((form, GatheredNames(patterns)))
        if len(runs) > _MOST_RUNS:
            raise patterns.refusal(pattern, f"let the format change at most {_MOST_RUNS} times; sort the patterns")
        if not runs[-1][1].add_prefix(pattern.removeprefix(_LEFT_OUT).removeprefix("+:")):
            part.notes.warnings.append(
                f"{patterns.path}: a pattern could not be read, so all modules that no earlier one names are counted "
                "as 16-bit ones, which may be more than they take"
            )
            last = [Rule(format=None, parts=None)]
            break
    return [*(Rule(format=form, names=found.names, parts=parts) for form, found in runs), *last]


def _changed(part: Section, patterns: Section, pattern: str, change: object) -> Format:
    if not isinstance(change, Mapping):
        raise patterns.refusal(pattern, 'give an object such as {"bits": 8}', value=change)
    changed = {**part.values, **{key: value for key, value in change.items() if value is not None}}
    return _format(replace(part, values=changed, path=patterns.path_of(pattern)), zero_point=True)


def _block(part: Section) -> ModuleNames | None:
    """The modules that hold one of the listed names anywhere in theirs; None where no list says so."""
    key = "modules_in_block_to_quantize"
    listed = part.values.get(key)
    if not listed:
        return None
    if not isinstance(listed, list):
        raise part.refusal(key, "give a list of module names", value=listed)
    names: list[object] = []
    for entry in listed:
        names += entry if isinstance(entry, list) else [entry]
    anywhere = [f"*{name}*" if isinstance(name, str) else name for name in names]
    return read_names(replace(part, values={key: anywhere}), (key,))
