"""A card's account of training and calibration: the lists, the rule when flags are recommended, the estimator."""

from typing import Any

from offline.conclusions import number
from offline.robust.card_table import markdown_table
from offline.robust.protocol import ENGINE_DEFAULT, ROBUST
from service.domain.manifest import QUANTITIES, Manifest

# Named, because a file keeps no order of its keys.
_CAUSES = ("failed", "TTFT alone", "TPOT alone", "both")
_FIRST_TOKENS = {"ttft_tail_where_both_meet_ms": "tail, both meet", "ttft_median_where_repaired_ms": "median, repaired"}


def rule_text(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """The rule's numbers, and the table that they were chosen by."""
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
        + markdown_table(["price", "flags set", "utility", "worse", *groups, "bound"], rows)
        + f"\n\nOne unit of score is worth {manifest.score_slope:.3f} of utility, on dev."
    )


def estimator_text(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """How good the estimator is on the calibration split and on each set that was opened."""
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
        + markdown_table(["set", "ECE not worse", "ECE SLO met", *columns], rows)
    )


def explanation_text(evaluation: dict[str, Any]) -> str:
    """Percent of the draws by what broke them, and what became of first tokens where a violation was repaired."""
    broken = [
        [name, policy, *(f"{100 * shares[cause]:.2f}" for cause in _CAUSES)]
        for name, one in evaluation["explanation"].items()
        for policy, shares in one["broken"].items()
    ]
    repaired = [
        [
            name,
            f"{100 * one['repaired']:.2f}",
            f"{100 * one['repaired_by_tpot_alone']:.2f}",
            *(number(one[figure][policy]) for figure in _FIRST_TOKENS for policy in (ENGINE_DEFAULT, ROBUST)),
        ]
        for name, one in evaluation["explanation"].items()
    ]
    columns = [f"{what}, {who}" for what in _FIRST_TOKENS.values() for who in ("default", "ours")]
    return (
        "Percent of the draws, by what broke them:\n\n"
        + markdown_table(["set", "policy", *_CAUSES], broken)
        + f"\n\nPercent of the draws in which {ROBUST} repairs a violation of {ENGINE_DEFAULT} (failures apart), and "
        "in which that was of TPOT alone; the tail of p95 TTFT in ms where both meet the SLO, and its median where a "
        "violation is repaired. A smaller token budget makes steps shorter, which is TPOT, and lets first tokens wait "
        "longer, which is what the TTFT tail ratio sees:\n\n"
        + markdown_table(["set", "repaired", "TPOT alone", *columns], repaired)
    )


def training_text(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """The lists, dev's figures, and the variants that were compared before."""
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
        + markdown_table(["policy", *header, "worse %"], dev)
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
        + markdown_table(["variant", "lists", *header, "unsafe %"], rows)
    )


def _judged(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['utility']:.4f}",
        f"{100 * row['violations_vs_default']:+.2f}",
        f"{row['goodput_vs_default_tps']:+.1f}",
        f"{100 * row['coverage']:.0f}",
    ]
