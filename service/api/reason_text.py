"""The reasons of an answer as lines of text, one fact each."""

from collections.abc import Iterator
from typing import Any

from service.api.counted import counted


def reason_lines(content: dict[str, Any]) -> Iterator[str]:
    """Of an answer's `range`, `holds_until` and `explanation`; nothing where they are null."""
    if content["range"] is not None:
        yield from _range(content["range"])
    if content["explanation"] is not None:
        yield from _explanation(content["explanation"], content["policy"]["evidence"])
    holds = dict(content["holds_until"] or {})
    choice = holds.pop("choice", None)
    for number, turns in holds.items():
        found = [
            f"{word} {turn['value']:,g} ({turn['choice']} there)"
            for word, turn in (("above", turns["below"]), ("below", turns["above"]))
            if turn is not None
        ]
        yield f"{choice} holds for {number} {' and '.join(found) or 'to the end of what was trained'}"


def _beside(margin: float, other: str) -> str:
    return f"{'behind' if margin < 0 else 'ahead of'} {other} by {abs(margin):.3f}"


def _range(part: dict[str, Any]) -> Iterator[str]:
    for name, meaning in (("first", "first"), ("best_mean", "best on average"), ("least_regret", "least regret")):
        held = part[name]
        if held is None:
            continue
        at = held["worst_at"]
        gain = "" if held["mean_gain"] is None else f"gain {held['mean_gain']:.3f} over what would run otherwise, "
        yield (
            f"over the range, {meaning}: {held['config_id']}, {gain}worst regret {held['worst_regret']:.3f} at "
            f"{counted(at['concurrency'], 'client')} of {at['prompt_tokens']:,} + {at['max_new_tokens']:,} tokens"
        )


def _explanation(part: dict[str, Any], evidence: str) -> Iterator[str]:
    margin = part["margin"]
    if margin["to_engine_default"] is not None:
        needed = f"needed more than {margin['needed']:.3f} ahead"
        yield f"{_beside(margin['to_engine_default'], 'what would run otherwise')}, {needed}"
    if margin["to_second"] is not None:
        yield _beside(margin["to_second"], margin["second"])
    if part["limit"] is not None:
        yield part["limit"]["sentence"]
    for one in part["neighbours"]:
        best, default = one["best"]["throughput_tps"], one["engine_default"]["throughput_tps"]
        yield (
            f"trained on {evidence} runs, distance {one['distance']:.2f}: {counted(one['concurrency'], 'client')} of "
            f"{one['prompt_tokens']:,.0f} + {one['max_new_tokens']:,.0f} tokens, {one['weight_gb']:.1f} GB: "
            f"{one['config_id']} {best:,.0f} tokens/s, engine default {default:,.0f}"
        )
