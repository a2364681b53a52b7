"""A bundle's model card: what it was trained on, when it abstains, every table good or bad, and where it goes wrong."""

from typing import Any

from offline.conclusions import number
from offline.robust.card_sets import SET_NAMES, set_part, table_of
from offline.robust.protocol import (
    ENGINE_DEFAULT,
    HYPOTHESES,
    ORACLE_SUFFIX,
    ROBUST,
)
from service.domain.manifest import QUANTITIES, Manifest

# Named, because a file keeps no order of its keys.
_CAUSES = ("failed", "TTFT alone", "TPOT alone", "both")
_UNCERTAINTY = {
    "exact": "exactly what was announced",
    "typical": "what may really come when a workload was announced",
    "rough": "what may come when a workload was announced roughly, twice as far off as typical",
}


def render_card(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """The whole card."""
    parts = [
        f"# {manifest.name}",
        _summary(manifest, evaluation),
        "## Goals\n\n" + _goals(evaluation),
        "## When flags are recommended\n\n" + _rule(manifest, evaluation),
        "## The estimator\n\n" + _estimator(manifest, evaluation),
    ]
    if evaluation["explanation"]:
        parts.append("## What breaks the SLO\n\n" + _explanation(evaluation))
    parts.append("## Training\n\n" + _training(manifest, evaluation))
    parts += [
        set_part(name, evaluation["test_sets"][name], evaluation["test_sets"].get(f"{name}{ORACLE_SUFFIX}"))
        for name in SET_NAMES
        if name in evaluation["test_sets"]
    ]
    parts += [_limits(), _again()]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    met = sum(goal["met"] for goal in evaluation["goals"])
    closed = ", ".join(evaluation["not_opened"])
    judged = f"{met} of {len(evaluation['goals'])} goals judged so far are met. " if evaluation["goals"] else ""
    opened = f"Test sets that are still closed: {closed}." if closed else "Every test set was opened once."
    if evaluation["registration"] is None:
        opened = "**For trying out: these weights are registered nowhere and were tested on nothing.**"
    return (
        f"A {manifest.parameters:,}-parameter ranker of 15 vLLM {manifest.engine_version} configurations and the "
        f"engine's own default on {manifest.gpu}, trained for {_UNCERTAINTY[manifest.confidence]}, with an estimator "
        "of what each will show. **Evidence: simulated**; no GPU was involved: every figure holds as far as scheduler "
        f"and step times do.\n\n{judged}{opened}"
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
    return table_of(["goal", "figure", "of", "value", "target", "verdict"], rows)


def _rule(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    calibration = evaluation["calibration"]
    rule = calibration["rule"]
    rows = [
        [
            f"{row['risk_price']:g}" if "risk_price" in row else f"near tie {row['near_tie']:g}",
            f"{100 * row['coverage']:.1f}",
            f"{row['utility']:.4f}",
            f"{100 * row['worse']:.2f}",
            *(f"{one['worse']} of {one['n']:,}" for one in row["by_group"].values()),
            f"{100 * row['upper95']:.2f}",
        ]
        for row in calibration["rows"]
    ]
    groups = list(calibration["rows"][0]["by_group"])
    return (
        f"Each candidate's score is reduced by {rule['risk_price']:g} for a whole unit of its chance to be worse than "
        "the engine's default (SLO newly violated, or goodput more than 5 % below). The first candidate is recommended "
        f"if what is left exceeds the default's score by more than {rule['margin']:g} and its chance not to be worse "
        f"is at least {rule['threshold']:g}; scores within {rule['near_tie']:g} of the best are a near tie; a "
        f"utilisation of 0.45 has to gain more than {rule['low_utilisation_gain']:g}. Out of support nothing is "
        "recommended.\n\nThe price was calibrated by learn-then-test on lists of families (Mistral, Phi) and regions "
        "of the announced space that neither network trained on, one draw each: prices from the highest on, each "
        "accepted while in every group the 95 % bound on the share of worse draws is at most 1 %. Percent of lists "
        "with flags set, mean utility, percent of worse draws, worse draws in each group, and the worst bound in "
        "percent:\n\n"
        + table_of(["price", "flags set", "utility", "worse", *groups, "bound"], rows)
        + f"\n\nOne unit of score is worth {manifest.score_slope:.3f} of utility, on dev."
    )


def _estimator(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    levels = manifest.estimator.levels if manifest.estimator else ()
    columns = [f"{what} {quantity}" for what in ("error", "band") for quantity in QUANTITIES]
    sets = {
        "calibration split": evaluation["calibration"],
        **{name: table for name, table in evaluation["test_sets"].items() if "forecast" in table},
    }
    rows = [
        [
            name,
            *(f"{table['reliability'][chance]['ece']:.4f}" for chance in ("not_worse", "slo_met")),
            *(f"{100 * table['forecast'][quantity]['error']:.0f}" for quantity in QUANTITIES),
            *(f"{100 * table['forecast'][quantity]['coverage']:.1f}" for quantity in QUANTITIES),
        ]
        for name, table in sets.items()
    ]
    return (
        f"A network of its own on the same features, for each configuration: the quantiles "
        f"{', '.join(f'{level:g}' for level in levels)} of throughput, p95 "
        "TTFT and p95 TPOT over draws of the true workload in which something completes, and two probabilities. "
        "Expected calibration error of both probabilities; median error of the median in percent (against the median "
        "of the judged draws; of a single draw in the calibration split, so mostly the draw's own spread); percent of "
        "draws within the 5 % and 95 % quantiles:\n\n"
        + table_of(["set", "ECE not worse", "ECE SLO met", *columns], rows)
    )


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
        + table_of(["set", "policy", *_CAUSES], rows)
        + "\n\nThe default's violations are mostly of TPOT: its large steps hold up everybody's next token. A smaller "
        "token budget repairs them and lets first tokens wait longer, mostly inside the SLO, which is what the TTFT "
        f"tail ratio sees. The tail where both policies meet the SLO, and the median TTFT where {ROBUST} repairs a "
        f"violation, from {ENGINE_DEFAULT} to {ROBUST}: {tails}."
    )


def _training(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    lists, counts = manifest.training["lists_sha256"], evaluation["calibration"]["lists"]
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in manifest.training_range.items())
    header = ["utility", "violations, points", "goodput, tok/s", "flags set %"]
    dev = [
        [name, *_judged(row), f"{100 * row['worse_rate']:.2f}"]
        for name, row in evaluation["calibration"]["dev"].items()
    ]
    text = (
        "Each list is one announced workload with one draw of the true one, under all 16 configurations: "
        f"{counts['trained']:,} to train on, {counts['calibration']:,} of the calibration split, {counts['dev']:,} of "
        f"dev. Ranges: {ranges}. Files by sha256: "
        + ", ".join(f"{name} `{digest[:12]}`" for name, digest in lists.items())
        + f". Definition they were simulated under `{manifest.plan_sha256[:12]}`.\n\n"
        "On dev (differences from ENGINE_DEFAULT; dev figures are biased by choices that were made on it):\n\n"
        + table_of(["policy", *header, "worse %"], dev)
    )
    earlier = evaluation["earlier_ablation"]
    if earlier is None:
        return text
    rows = [
        [
            row["variant"],
            f"{row['lists']:,}" if "lists" in row else "",
            *_judged(row),
            f"{100 * row['unsafe_rate']:.2f}",
        ]
        for row in earlier["rows"]
    ]
    return (
        text + f"\n\nVariants that were compared on dev before, under registration {earlier['registration']}, by the "
        "highest score alone; unsafe: an SLO newly violated:\n\n"
        + table_of(["variant", "lists", *header, "unsafe %"], rows)
    )


def _judged(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['utility']:.4f}",
        f"{100 * row['violations_vs_default']:+.2f}",
        f"{row['goodput_vs_default_tps']:+.1f}",
        f"{100 * row['coverage']:.0f}",
    ]


def _limits() -> str:
    items = [
        "the lists are simulated, not measured; kernel times are tables, host and front-end times assumptions",
        "windows are 3 to 8 s after a warm-up of 1.25 to 2.5 s, longer where a client's turn is, not the reference's "
        "4 s and 15 s; on 167 dev lists 95 % of the SLO verdicts are those of the reference's windows",
        "dev and the calibration split chose settings and rule, so their figures are biased",
        "one engine version, dense BF16 models without tensor parallelism",
        "uncertainty is an assumption: log-normal factors (one standard deviation 1.4 for lengths, 1.8 for clients)",
        "training and test scenarios are weighted towards where the choice matters; rates are not those of a fleet",
    ]
    return "## Limits\n\n" + "\n".join(f"- {one}" for one in items)


def _again() -> str:
    return (
        "## Make it again\n\n`make train-full` simulates every set that is missing, trains, calibrates, evaluates what "
        "the registration allows and writes bundles and cards; it resumes where it was stopped. `make train-robust` "
        "trains on the committed lists."
    )
