"""A card's tables of test sets: every policy good or bad, what of the oracle's gain is had, where it goes wrong."""

from typing import Any

from offline.conclusions import interval_text, number
from offline.robust.card_table import markdown_table
from offline.robust.protocol import BASES, ENGINE_DEFAULT, ORACLE_ROBUST, ORACLE_SUFFIX, POLICIES, ROBUST

_METRICS = {
    "slo_violation_rate": "violation",
    "failure_rate": "failure",
    "output_throughput_tps": "tok/s",
    "goodput_tps": "goodput",
    "regret": "regret",
    "slo_regret": "slo_regret",
    "ttft_p95_p95_ms": "TTFT tail ms",
    "coverage": "flags set",
}
SET_NAMES = {
    "T2": "T2, unseen workloads: blocks of the announced space that training never saw",
    "T2-beyond": "T2 beyond the hull: prompt, output, concurrency or prefix ratio larger than any trained",
    "T3": "T3, unseen models: the Llama and OLMo families",
    "T4": "T4, trace-shaped: lengths of the Azure 2023 and Mooncake conversation traces, think times, popular prefixes",
    "T5": "T5, a different machine: host, front-end, kernel times and KV cache within ±50 %",
    "T6-exact": "T6, exactly what was announced comes",
    "T6-typical": "T6, typically off",
    "T6-rough": "T6, roughly announced: twice as far off",
    "T6-2x": "T6, twice the announced clients",
    "T6-4x": "T6, four times the announced clients",
    "T7-h200": "T7, unseen workloads on the H200",
    "T7-h100": "T7, unseen workloads on the H100",
}


def set_tables(evaluation: dict[str, Any]) -> list[str]:
    """A section for each set that was opened, in the protocol's order."""
    tables = evaluation["test_sets"]
    return [_set(name, evaluation) for name in SET_NAMES if name in tables]


def _set(name: str, evaluation: dict[str, Any]) -> str:
    table, oracles = (evaluation["test_sets"].get(one) for one in (name, f"{name}{ORACLE_SUFFIX}"))
    rows = [
        [policy, *(_cell(table["policies"][policy], metric) for metric in _METRICS)]
        for policy in POLICIES
        if policy in table["policies"]
    ]
    text = [
        f"#### {SET_NAMES[name]}",
        f"{table['n']:,} scenarios, {table['draws']} draws each; {100 * table['in_support']:.0f} % in support. "
        + _covered(table["where_it_matters"], draws="judged draws"),
        markdown_table(["policy", *_METRICS.values()], rows),
        _differences(table),
        _risk(table),
    ]
    if oracles is not None:
        text += [_captured(oracles), _kept(f"{name}{ORACLE_SUFFIX}", evaluation)]
    text += ["By stratum, differences without intervals:", _strata(table), "Worst ten scenarios:", _worst(table)]
    return "\n\n".join(part for part in text if part)


def _covered(one: dict[str, Any], *, draws: str) -> str:
    share = "undefined" if one["coverage"] is None else f"{100 * one['coverage']:.0f} %"
    return f"Of {one['n']} scenarios in support in which the choice matters by the {draws}, flags are set in {share}."


def _cell(row: dict[str, Any], metric: str) -> str:
    value = row[metric]
    if metric in ("slo_violation_rate", "failure_rate", "coverage"):
        return f"{100 * value:.2f} %"
    return "unbounded" if value is None and metric == "ttft_p95_p95_ms" else number(value)


def _differences(table: dict[str, Any]) -> str:
    rows = []
    for key, one in table["comparisons"].items():
        tail = one.get("ttft_tail_ratio")
        rows.append(
            [
                key,
                _points(one["slo_violation_rate"]),
                interval_text(one["goodput_tps"]["delta"], one["goodput_tps"]["ci"]),
                interval_text(tail["value"], tail["ci"]) if tail else "",
            ]
        )
    text = markdown_table(["comparison", "violations, points", "goodput, tok/s", "TTFT tail ratio"], rows)
    if "by_model_clusters" in table:
        models = "; ".join(
            f"vs {base}: violations {_points(table['by_model_clusters'][base]['slo_violation_rate'])}, goodput "
            + interval_text(
                table["by_model_clusters"][base]["goodput_tps"]["delta"],
                table["by_model_clusters"][base]["goodput_tps"]["ci"],
            )
            for base in BASES
        )
        text += f"\n\nIntervals over models instead of scenarios, {ROBUST} {models}."
    return text


def _risk(table: dict[str, Any]) -> str:
    rows = [
        [
            base,
            *(
                at_most(one)
                for one in (
                    table["comparisons"][f"{ROBUST}-vs-{base}"]["worse_rate"],
                    table["risk"][base]["where set"],
                    table["risk"][base]["in support"],
                )
            ),
        ]
        for base in BASES
    ]
    return (
        f"Draws in which {ROBUST} does worse than a base (at most, with 95 % confidence): all of them, whatever is "
        "answered; those with flags set, as a share of all; all of the scenarios in support.\n\n"
        + markdown_table(["worse than", "all draws", "where set", "in support"], rows)
    )


def at_most(one: dict[str, Any]) -> str:
    if one["value"] is None:
        return "undefined"
    return f"{100 * one['value']:.2f} % (at most {100 * one['upper95']:.2f} %)"


def _points(estimate: dict[str, Any]) -> str:
    low, high = estimate["ci"]
    return f"{100 * estimate['delta']:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _captured(table: dict[str, Any]) -> str:
    rows = []
    for key, one in table["comparisons"].items():
        shares, policy = one["captured"], key.removesuffix(f"-vs-{ENGINE_DEFAULT}")
        rows.append(
            [
                policy,
                _points(one["slo_violation_rate"]),
                _share(shares["slo_violation_rate"]),
                interval_text(one["goodput_tps"]["delta"], one["goodput_tps"]["ci"]),
                _share(shares["goodput_tps"]),
                _cell(table["policies"][policy], "ttft_p95_p95_ms"),
            ]
        )
    tail = _cell(table["policies"][ENGINE_DEFAULT], "ttft_p95_p95_ms")
    return (
        f"Against {ENGINE_DEFAULT} on the {table['n']} scenarios with further draws for oracles to choose by, and the "
        f"share of {ORACLE_ROBUST}'s gain that each has:\n\n"
        + markdown_table(["policy", "violations, points", "share", "goodput, tok/s", "share", "TTFT tail ms"], rows)
        + "\n\n"
        + _covered(table["where_it_matters"], draws="oracle's draws")
        + f" The TTFT tail of {ENGINE_DEFAULT} here: {tail}. {ORACLE_ROBUST} "
        "chooses by expected utility over draws of its own, not by goodput: a policy can have more of it, a share of a "
        "small gain says little, and where it gains none the share is undefined. Where its tail exceeds the default's, "
        "choosing by expected utility lengthens the tail."
    )


def _kept(name: str, evaluation: dict[str, Any]) -> str:
    """What is left of the oracle's gain behind the part that has to be kept, of the goals that ask for it."""
    kept = [goal for goal in evaluation["goals"] if goal["test_set"] == name and goal["figure"].startswith("kept ")]
    each = "; ".join(
        f"`{goal['name']}` {_kept_value(goal)}, {'met' if goal['met'] else '**missed**'} from 0 on" for goal in kept
    )
    return f"{ROBUST}'s gain less the part of {ORACLE_ROBUST}'s that has to be kept: {each}." if kept else ""


def _kept_value(goal: dict[str, Any]) -> str:
    if goal["figure"] == "kept violations":
        return f"{100 * goal['value']:+.2f} points"
    return f"{goal['value']:+.1f} tok/s"


def _share(one: dict[str, Any]) -> str:
    return "undefined" if one["value"] is None else f"{100 * one['value']:.0f} %"


def _strata(table: dict[str, Any]) -> str:
    rows = [
        [
            stratum,
            str(one["n"]),
            *(
                text
                for base in BASES
                for text in (f"{100 * one[base]['slo_violation_rate']:+.2f}", f"{one[base]['goodput_tps']:+.1f}")
            ),
        ]
        for stratum, one in table["by_stratum"].items()
    ]
    header = [f"{what} vs {base}" for base in BASES for what in ("points", "tok/s")]
    return markdown_table(["stratum", "n", *header], rows)


def _worst(table: dict[str, Any]) -> str:
    rows = [
        [
            one["model"],
            f"{one['prompt_tokens']} → {one['max_new_tokens']}, prefix {one['shared_prefix_ratio']:g}, "
            f"{one['concurrency']} clients",
            one["chosen"],
            f"{one['violations'][0]:.2f} / {one['violations'][1]:.2f}",
            f"{number(one['goodput_tps'][0])} / {number(one['goodput_tps'][1])}",
            one["reason"],
        ]
        for one in table["worst"]
    ]
    return markdown_table(["model", "announced", "chosen", "violations, ours / default", "goodput", "reason"], rows)
