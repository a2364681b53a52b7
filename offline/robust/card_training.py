"""A card's account of training and calibration: the lists, the rule when flags are recommended, the estimator."""

from typing import Any

from offline.conclusions import number
from offline.robust.card_table import markdown_table
from offline.robust.forecast import RATIOS
from offline.robust.protocol import ENGINE_DEFAULT, FIXED, ROBUST
from offline.robust.report import CHANCE_NAMES
from offline.robust.rule import RISK
from offline.robust.variants import VARIANTS
from service.domain.manifest import QUANTITIES, Manifest

# Of a calibration's counts and bounds, the keys: against the engine's default, and against candidate 0.
_BASES = ("default", "fixed")
# Named, because a file keeps no order of its keys.
_CAUSES = ("failed", "TTFT alone", "TPOT alone", "both")
_FIRST_TOKENS = {"ttft_tail_where_both_meet_ms": "tail, both meet", "ttft_median_where_repaired_ms": "median, repaired"}


def rule_text(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """The rule's numbers, and the table that they were chosen by."""
    calibration = evaluation["calibration"]
    rule = calibration["rule"]
    low_utilisation_gain = rule["low_utilisation_gain"] * manifest.score_slope
    return (
        f"Every score, the engine default's too, is reduced by {rule['risk_price']:g} for a whole unit of the chance "
        "to be worse than the engine's default (SLO newly violated, or goodput more than 5 % below), and by "
        f"{rule['fixed_price']:g} for that to be worse than {FIXED}, candidate 0; a configuration is never worse than "
        "itself. The first candidate is recommended if what is left of its score exceeds what is left of the "
        f"default's by more than {rule['margin']:g} and its chance not to be worse than the default is at least "
        f"{rule['threshold']:g}; scores within {rule['near_tie']:g} of the best are a near tie; a utilisation of 0.45 "
        f"has to gain more than {rule['low_utilisation_gain']:.4g}, that is {low_utilisation_gain:.3g} of utility. "
        "Out of support nothing is recommended.\n\nThe first price was calibrated by learn-then-test on lists of "
        "families (Mistral, Phi) and regions of the announced space that neither network trained on, one draw each: "
        "from the highest on, the second price as given, accepted while in every group the 95 % bounds on the shares "
        f"of draws that flags made worse than {ENGINE_DEFAULT} and than {FIXED} are at most {100 * RISK:g} %, which "
        "leaves room below 1 % for what other sets vary by. Percent of lists with flags set, "
        f"mean utility; in each group the draws that flags made worse and their bound in percent, against "
        f"{ENGINE_DEFAULT} / {FIXED}; the worst of the bounds:\n\n"
        + _calibration_table(calibration["rows"])
        + f"\n\nOne unit of score is worth {manifest.score_slope:.3f} of utility, on dev."
    )


def _calibration_table(steps: list[dict[str, Any]]) -> str:
    prices = [step for step in steps if "risk_price" in step]
    rows = [
        [
            f"{step['risk_price']:g}" if "risk_price" in step else f"near tie {step['near_tie']:g}",
            f"{100 * step['coverage']:.1f}",
            f"{step['utility']:.4f}",
            *(
                text
                for one in step["by_group"].values()
                for text in (
                    " / ".join(f"{one['worse'][base]}" for base in _BASES),
                    " / ".join(f"{100 * one['upper95'][base]:.2f}" for base in _BASES),
                )
            ),
            f"{100 * step['upper95']:.2f}",
        ]
        for step in steps
    ]
    groups = [
        title
        for group, one in prices[0]["by_group"].items()
        for title in (f"worse of {one['n']:,}, {group}", f"bound, {group}")
    ]
    return markdown_table(["price of risk", "flags set", "utility", *groups, "worst bound"], rows)


def estimator_text(manifest: Manifest, evaluation: dict[str, Any]) -> str:
    """How good the estimator is on the calibration split and on each set that was opened."""
    levels = manifest.estimator.levels if manifest.estimator else ()
    columns = [f"{what} {quantity}" for what in ("error", "band") for quantity in QUANTITIES]
    tables = {
        "calibration split": evaluation["calibration"],
        **{name: table for name, table in evaluation["test_sets"].items() if "forecast" in table},
    }
    chances = [
        [name, *(f"{table['reliability'][chance]['ece']:.4f}" for chance in CHANCE_NAMES)]
        for name, table in tables.items()
    ]
    rows = [
        [
            name,
            what,
            *(f"{100 * table['forecast'][one]['error']:.1f}" for one in names),
            *(f"{100 * table['forecast'][one]['coverage']:.1f}" for one in names),
        ]
        for name, table in tables.items()
        for what, names in (("itself", QUANTITIES), (f"÷ {ENGINE_DEFAULT}'s", RATIOS))
    ]
    return (
        f"A network of its own on the same features, for each configuration: the quantiles "
        f"{', '.join(f'{level:g}' for level in levels)} of throughput, p95 TTFT and p95 TPOT over draws of the true "
        "workload in which something completes, the same quantiles of their ratios to what the engine's default shows "
        "in the same draw, in which what both share cancels, and three probabilities. Expected calibration error of "
        "the probabilities:\n\n"
        + markdown_table(["set", *CHANCE_NAMES.values()], chances)
        + "\n\nMedian error of the median in percent (against the median of the judged draws; of a single draw in "
        "the calibration split, so mostly the draw's own spread), and percent of draws within the 5 % and 95 % "
        "quantiles, of each number and of its ratio; errors of ratios over what differs from the default in "
        "the median draw:\n\n" + markdown_table(["set", "of", *columns], rows)
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
    last = VARIANTS[evaluation["variant"]].train[-1]
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
        + f". Definition that {last} was simulated under, which draws the rows of the others, too: "
        f"`{manifest.plan_sha256[:12]}`.\n\n"
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
