"""The robust ranker's model card: what it was trained on, every table good or bad, and where it goes wrong."""

from collections.abc import Sequence
from typing import Any

from offline.conclusions import interval_text, number
from offline.robust.protocol import (
    BASES,
    ENGINE_DEFAULT,
    HYPOTHESES,
    ORACLE_ROBUST,
    ORACLE_SUFFIX,
    POLICIES,
    ROBUST,
)
from service.domain.manifest import Manifest

# Named, because a file keeps no order of its keys.
_CAUSES = ("failed", "TTFT alone", "TPOT alone", "both")
# Of the pair of rankers that the sweep compares, one saw no ratio above this.
HIGHEST_SEEN = 0.7
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
_SET_NAMES = {
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
}


def render_card(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """The whole card."""
    parts = [
        f"# {manifest.name}",
        _summary(manifest, evaluation),
        "## Goals\n\n" + _goals(evaluation),
        "## What breaks the SLO\n\n" + _explanation(evaluation),
        "## Training\n\n" + _training(manifest, evaluation),
        *(
            _set(name, evaluation["test_sets"][name], evaluation["test_sets"].get(f"{name}{ORACLE_SUFFIX}"))
            for name in _SET_NAMES
            if name in evaluation["test_sets"]
        ),
    ]
    if "prefix-sweep" in evaluation["test_sets"]:
        parts.append(_sweep(evaluation["test_sets"]["prefix-sweep"]))
    parts += [_limits(evaluation), _again()]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    met = sum(goal["met"] for goal in evaluation["goals"])
    closed = ", ".join(evaluation["not_opened"])
    judged = f"{met} of {len(evaluation['goals'])} goals judged so far are met. " if evaluation["goals"] else ""
    return (
        f"A {manifest.parameters:,}-parameter ranker of 15 vLLM {manifest.engine_version} configurations and the "
        f"engine's own default on {manifest.gpu}, trained for what may really come when a workload was announced. "
        "**Evidence: simulated**; no GPU was involved: every figure holds as far as scheduler and step times do.\n\n"
        f"{judged}" + (f"Test sets that are still closed: {closed}." if closed else "Every test set was opened once.")
    )


def _goals(evaluation: dict[str, Any]) -> str:
    if not evaluation["goals"]:
        return "No test set has been opened, so no goal is judged. Hypotheses:\n\n" + "\n".join(
            f"- {one}" for one in HYPOTHESES
        )
    rows = [
        [
            goal["name"],
            goal["figure"],
            goal["end"],
            number(goal["value"]),
            f"{goal['op']} {goal['target']:g}",
            "met" if goal["met"] else "**missed**",
        ]
        for goal in evaluation["goals"]
    ]
    return _table(["goal", "figure", "of", "value", "target", "verdict"], rows)


def _explanation(evaluation: dict[str, Any]) -> str:
    rows = [
        [name, policy, *(f"{100 * broken[cause]:.2f}" for cause in _CAUSES)]
        for name, one in evaluation["explanation"].items()
        for policy, broken in one["broken"].items()
    ]
    tails = "; ".join(
        f"{name} {number(both[ENGINE_DEFAULT])} → {number(both[ROBUST])} ms and "
        f"{number(repaired[ENGINE_DEFAULT])} → {number(repaired[ROBUST])} ms"
        for name, one in evaluation["explanation"].items()
        for both, repaired in [(one["ttft_tail_where_both_meet_ms"], one["ttft_median_where_repaired_ms"])]
    )
    return (
        "Percent of the draws, by what broke them:\n\n"
        + _table(["set", "policy", *_CAUSES], rows)
        + "\n\nThe default's violations are mostly of TPOT: its large steps hold up everybody's next token. A smaller "
        "token budget repairs them and lets first tokens wait longer, mostly inside the SLO, which is what the TTFT "
        f"tail ratio sees. The tail where both policies meet the SLO, and the median TTFT where {ROBUST} repairs a "
        f"violation, from {ENGINE_DEFAULT} to {ROBUST}: {tails}."
    )


def _training(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    lists = manifest.training["lists_sha256"]
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in manifest.training_range.items())
    rows = [
        [
            row["variant"],
            f"{row['lists']:,}" if "lists" in row else "",
            f"{row['utility']:.4f}",
            f"{100 * row['violations_vs_default']:+.2f}",
            f"{row['goodput_vs_default_tps']:+.1f}",
            f"{100 * row['unsafe_rate']:.2f}",
            f"{100 * row['coverage']:.0f}",
        ]
        for row in evaluation["ablation"]
    ]
    margins = [
        [
            f"{row['margin']:g}",
            f"{row['utility']:.4f}",
            f"{100 * row['violations_vs_default']:+.2f}",
            f"{row['goodput_vs_default_tps']:+.1f}",
            f"{100 * row['unsafe_rate']:.2f}",
            f"{100 * row['coverage']:.0f}",
        ]
        for row in evaluation["margins"]["rows"]
    ]
    header = ["utility", "violations, points", "goodput, tok/s", "unsafe %", "flags set %"]
    return (
        "Each list is one announced workload with one draw of the true one, under all 16 configurations. Ranges: "
        f"{ranges}. Files by sha256: "
        + ", ".join(f"{name} `{digest[:12]}`" for name, digest in lists.items())
        + f". Definition of all sets `{manifest.plan_sha256[:12]}`.\n\n"
        "Chosen on dev (differences from ENGINE_DEFAULT; dev figures are biased by that choice):\n\n"
        + _table(["variant", "lists", *header], rows)
        + "\n\nThe margin, on calibration: the engine's default stays unless the best candidate's score exceeds its "
        f"own by more than {evaluation['margins']['margin']:g}.\n\n" + _table(["margin", *header], margins)
    )


def _set(name: str, table: dict[str, Any], oracles: dict[str, Any] | None) -> str:
    rows = [
        [policy, *(_cell(table["policies"][policy], metric) for metric in _METRICS)]
        for policy in POLICIES
        if policy in table["policies"]
    ]
    text = [
        f"## {_SET_NAMES[name]}",
        f"{table['n']:,} scenarios, {table['draws']} draws each.",
        _table(["policy", *_METRICS.values()], rows),
        _differences(table),
    ]
    if oracles is not None:
        text.append(_captured(oracles))
    text += ["By stratum, differences without intervals:", _strata(table), "Worst ten scenarios:", _worst(table)]
    return "\n\n".join(text)


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
                f"{100 * one['unsafe_rate']['value']:.2f} %" if "unsafe_rate" in one else "",
            ]
        )
    text = _table(["comparison", "violations, points", "goodput, tok/s", "TTFT tail ratio", "unsafe"], rows)
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
        + _table(["policy", "violations, points", "share", "goodput, tok/s", "share", "TTFT tail ms"], rows)
        + f"\n\nThe TTFT tail of {ENGINE_DEFAULT} here: {tail}. What {ORACLE_ROBUST} has is what a choice by expected "
        "utility can have; where its tail exceeds the default's, no such choice meets a tail ratio of 1."
    )


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
    return _table(["stratum", "n", *header], rows)


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
    return _table(["model", "announced", "chosen", "violations, ours / default", "goodput", "reason"], rows)


def _sweep(table: dict[str, Any]) -> str:
    rows = [
        [
            one["ratio"],
            number(one["seen"]["utility"]),
            number(one["unseen"]["utility"]),
            interval_text(one["loss"]["delta"], one["loss"]["ci"]),
        ]
        for one in table["rows"]
    ]
    return (
        "## H5, prefix ratios beyond the trained ones\n\n"
        "Two rankers, equal but for the training lists with a ratio above 0.7, and as many. "
        "Mean utility of their choices, and the loss of not having seen such ratios:\n\n"
        + _table(["ratio", "seen", "not seen", "loss [95 %]"], rows)
        + f"\n\nVerdict by the registered rule: **{table['verdict']}**. Read it with care: up to 0.7, where both "
        f"rankers saw such ratios, the loss is {_mean_loss(table)} on average, so what is lost above 0.7 is hardly "
        "more than what two rankers of different lists differ by anywhere."
    )


def _mean_loss(table: dict[str, Any]) -> str:
    """The mean loss over the ratios that both rankers saw."""
    losses = [one["loss"]["delta"] for one in table["rows"][:-1] if float(one["ratio"]) <= HIGHEST_SEEN]
    return number(sum(losses) / len(losses))


def _limits(evaluation: dict[str, Any]) -> str:
    items = [
        "the lists are simulated, not measured; kernel times are tables, host and front-end times assumptions",
        "windows are 3 to 8 s after a warm-up of 1.25 to 2.5 s, longer where a client's turn is, not the reference's "
        "4 s and 15 s; on 167 dev lists 95 % of the SLO verdicts are those of the reference's windows",
        "dev and calibration chose settings and margin, so their figures are biased",
        "one GPU type, one engine version, dense BF16 models without tensor parallelism",
        "uncertainty is an assumption: log-normal factors (one standard deviation 1.4 for lengths, 1.8 for clients)",
        "training and test scenarios are weighted towards where the choice matters; rates are not those of a fleet",
    ]
    return "## Limits\n\n" + "\n".join(f"- {one}" for one in items)


def _again() -> str:
    return (
        "## Make it again\n\n`make train-full` simulates every set that is missing, trains, evaluates what the "
        "registration allows and writes bundle and card; it resumes where it was stopped. `make train-sample` trains "
        "on the committed sample."
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
