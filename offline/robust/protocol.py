"""The registered protocol: hypotheses, sets, policies, metrics and goals, fixed before a test list is simulated."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from offline.robust.variants import EXACT, H100, H200, ROUGH, TYPICAL

FIXED, ENGINE_DEFAULT, HEUR, SINGLE_BEST = "FIXED", "ENGINE_DEFAULT", "HEUR", "SINGLE_BEST"
LIGHTGBM, REFERENCE, NOMINAL = "LightGBM", "MLP-reference", "MLP-nominal"
ROBUST, ALWAYS, WITH_TYPICAL = "MLP-robust", "MLP-always", "MLP-typical"
ORACLE_NOMINAL, ORACLE_ROBUST = "ORACLE-nominal", "ORACLE-robust"
# The order of every table. ROBUST answers as it is served; ALWAYS is its ranker's first candidate, without any rule;
# WITH_TYPICAL is what the variant for typical workloads says where another one is tested; oracles where a set has the
# draws for them.
POLICIES = (
    FIXED, ENGINE_DEFAULT, HEUR, SINGLE_BEST, LIGHTGBM, REFERENCE, NOMINAL, WITH_TYPICAL, ALWAYS, ROBUST,
    ORACLE_NOMINAL, ORACLE_ROBUST,
)  # fmt: skip
BASES = (ENGINE_DEFAULT, FIXED)
ORACLE_SUFFIX = "-oracle"
BEYOND = "T2-beyond"
# Which variant is tested on which set.
TEST_SETS: dict[str, str] = {
    "T2": TYPICAL, "T3": TYPICAL, "T4": TYPICAL, "T6-typical": TYPICAL, "T2-oracle": TYPICAL, "T3-oracle": TYPICAL,
    "T4-oracle": TYPICAL, "T6-typical-oracle": TYPICAL, "T6-2x": TYPICAL, "T6-4x": TYPICAL, "T5": TYPICAL,
    "T6-exact": EXACT, "T6-rough": ROUGH, "T7-h200": H200, "T7-h100": H100,
}  # fmt: skip
CENTRAL = ("T2", "T3", "T4", "T6-typical")
# Of the draws, at most this share may be worse than with the engine's default, with 95 % confidence.
RISK = 0.01

HYPOTHESES = (
    "H1 Under typical uncertainty the recommendations as they are served violate the SLO less often than the engine's "
    "default and than candidate 0, with more goodput and no longer TTFT tail: on unseen workloads (T2), models (T3), "
    "traces (T4) and drawn scenarios of the trained space (T6-typical).",
    "H2 At most 1 % of the draws are worse than with the engine's default (SLO newly violated, or goodput more than "
    "5 % below), and the flags that are set make at most 1 % of the draws worse than candidate 0, while at least 60 % "
    "of ORACLE-robust's reduction of violations and 50 % of its goodput gain remain and flags are set in at least 70 % "
    "of the scenarios in support in which the choice matters. In support at most 1 % are worse than candidate 0 "
    "wherever the answer leads, to the engine's default too.",
    "H3 The signs hold on a machine whose host, front-end, kernel times and KV cache differ by up to 50 % (T5).",
    "H4 With twice and four times the announced clients more violations are repaired than caused (T6).",
    "H5 The estimator's chances not to be worse are calibrated (expected calibration error at most 0.03), its bands "
    "hold at least 85 % of the draws, and its medians are close to those of the draws, closest those of the ratios to "
    "what the engine's default shows.",
    "H6 The variants for exactly and roughly known workloads, and those for H200 and H100, keep the same risk and "
    "violate the SLO less often than the engine's default of their GPU.",
)
METRICS = (
    "A scenario's value is the mean over its judged draws; a set's value the mean over scenarios.",
    "slo_violation_rate, failure_rate, output_throughput_tps, goodput_tps, regret, slo_regret as in the reference, "
    "regrets over draws in which one of the 15 candidates meets the SLO.",
    "worse_rate: share of draws in which the base meets the SLO and the policy violates it or has less than 95 % of "
    "the base's throughput; upper95: 95th percentile of its bootstrap. Where set: draws of scenarios with flags set, "
    "as a share of all draws. In support: of the draws of scenarios in support.",
    "coverage_where_it_matters: share of the scenarios in support with flags set, of those in which the best of the "
    "configurations that start has more than 0.05 expected utility above the engine's default, by the oracle draws.",
    "ttft_tail_ratio: 95th percentile of p95 TTFT over the draws in which some configuration meets the SLO, failures "
    "+inf, policy over base.",
    "Paired percentile bootstrap, 2,000 replicates, clusters model × announced workload; T3 also by model.",
    "Captured share: gain over ENGINE_DEFAULT ÷ ORACLE-robust's, undefined where the oracle gains nothing. Kept: gain "
    "over ENGINE_DEFAULT less 60 % of ORACLE-robust's reduction of violations, or 50 % of its goodput gain, where that "
    "is one; it says the same wherever the share is defined.",
    "Estimator error: median over scenarios and configurations of |estimated median ÷ median of the judged draws − 1|, "
    "of which the median of so few draws is a part; band: share of draws within its 5 % and 95 % quantiles; both over "
    "scenarios in support. Of a ratio: to the engine default's number in the same draw; its error over "
    "what differs from the default in the median draw.",
)
Figure = Literal[
    "slo_violation_rate", "goodput_tps", "ttft_tail_ratio", "kept violations", "kept goodput", "new minus repaired",
    "worse", "worse where set", "worse in support", "covered", "ece not_worse_than_engine_default",
    "ece not_worse_than_fixed", "error throughput_tps", "error ttft_p95_ms", "error tpot_p95_ms",
    "error throughput_tps_ratio", "error ttft_p95_ms_ratio", "error tpot_p95_ms_ratio", "band throughput_tps",
    "band ttft_p95_ms", "band tpot_p95_ms", "band throughput_tps_ratio", "band ttft_p95_ms_ratio",
    "band tpot_p95_ms_ratio", "captured violations", "captured goodput", "ece",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on a figure of a comparison. `end`: which end of its interval has to keep it, or the value itself."""

    name: str
    test_set: str
    base: str
    figure: Figure
    end: Literal["upper", "lower", "value"]
    op: Literal["<", ">", "<=", ">="]
    target: float


def goals() -> tuple[Goal, ...]:
    """Every goal, each printed as one BAR line."""
    found: list[Goal] = []
    for test_set in CENTRAL:
        found += _against_bases(test_set)
        found += [
            _goal(f"{test_set}-worse-than-default", test_set, "worse", "upper", "<=", RISK),
            _goal(
                f"{test_set}-worse-than-fixed-where-set", test_set, "worse where set", "upper", "<=", RISK, base=FIXED
            ),
            _goal(
                f"{test_set}-worse-than-fixed-in-support", test_set, "worse in support", "upper", "<=", RISK, base=FIXED
            ),
        ]
    for test_set in CENTRAL:
        oracles = f"{test_set}{ORACLE_SUFFIX}"
        found += [
            _goal(f"{test_set}-covered-where-it-matters", oracles, "covered", "value", ">=", 0.7),
            _goal(f"{test_set}-kept-violations", oracles, "kept violations", "value", ">=", 0.0),
            _goal(f"{test_set}-kept-goodput", oracles, "kept goodput", "value", ">=", 0.0),
        ]
    for test_set in CENTRAL:
        found += _of_the_estimator(test_set)
    for test_set in ("T6-2x", "T6-4x"):
        found.append(_goal(f"{test_set}-new-minus-repaired", test_set, "new minus repaired", "value", "<=", 0.0))
    for base in BASES:
        short = "default" if base == ENGINE_DEFAULT else "fixed"
        found += [
            _goal(f"T5-vs-{short}-violations-sign", "T5", "slo_violation_rate", "value", "<", 0.0, base=base),
            _goal(f"T5-vs-{short}-goodput-sign", "T5", "goodput_tps", "value", ">", 0.0, base=base),
        ]
    for test_set in ("T6-exact", "T6-rough", "T7-h200", "T7-h100"):
        found += [
            _goal(f"{test_set}-worse-than-default", test_set, "worse", "upper", "<=", RISK),
            _goal(
                f"{test_set}-worse-than-fixed-where-set", test_set, "worse where set", "upper", "<=", RISK, base=FIXED
            ),
            _goal(f"{test_set}-vs-default-violations", test_set, "slo_violation_rate", "upper", "<", 0.0),
            _goal(f"{test_set}-ece", test_set, "ece not_worse_than_engine_default", "value", "<=", 0.03),
        ]
    return tuple(found)


def _against_bases(test_set: str) -> list[Goal]:
    found = []
    for base in BASES:
        prefix = f"{test_set}-vs-{'default' if base == ENGINE_DEFAULT else 'fixed'}"
        found += [
            _goal(f"{prefix}-violations", test_set, "slo_violation_rate", "upper", "<", 0.0, base=base),
            _goal(f"{prefix}-goodput", test_set, "goodput_tps", "lower", ">", 0.0, base=base),
            _goal(f"{prefix}-ttft-tail", test_set, "ttft_tail_ratio", "value", "<=", 1.0, base=base),
        ]
    return found


_SHORT = {"throughput": "throughput_tps", "ttft": "ttft_p95_ms", "tpot": "tpot_p95_ms"}
_LARGEST, _LARGEST_OF_RATIOS = (0.2, 0.35, 0.12), (0.05, 0.1, 0.15)


def _of_the_estimator(test_set: str) -> list[Goal]:
    found = [
        _goal(f"{test_set}-ece", test_set, "ece not_worse_than_engine_default", "value", "<=", 0.03),
        _goal(f"{test_set}-ece-fixed", test_set, "ece not_worse_than_fixed", "value", "<=", 0.03),
    ]
    for (short, quantity), own, ratio in zip(_SHORT.items(), _LARGEST, _LARGEST_OF_RATIOS, strict=True):
        found += [
            _goal(f"{test_set}-{short}-error", test_set, f"error {quantity}", "value", "<=", own),
            _goal(f"{test_set}-{short}-band", test_set, f"band {quantity}", "value", ">=", 0.85),
            _goal(f"{test_set}-{short}-ratio-error", test_set, f"error {quantity}_ratio", "value", "<=", ratio),
            _goal(f"{test_set}-{short}-ratio-band", test_set, f"band {quantity}_ratio", "value", ">=", 0.85),
        ]
    return found


def _goal(
    name: str, test_set: str, figure: Any, end: Any, op: Any, target: float, *, base: str = ENGINE_DEFAULT
) -> Goal:
    return Goal(name=name, test_set=test_set, base=base, figure=figure, end=end, op=op, target=target)


def goal_definitions() -> list[dict[str, Any]]:
    """What a registration fixes about the goals."""
    return [asdict(goal) for goal in goals()]


def protocol() -> dict[str, Any]:
    """What a registration fixes in words."""
    return {
        "hypotheses": list(HYPOTHESES),
        "policies": list(POLICIES),
        "bases": list(BASES),
        "metrics": list(METRICS),
        "test_sets": TEST_SETS,
    }


def judge(goal: Goal, test_sets: dict[str, Any]) -> tuple[float | None, bool]:
    """The figure's value or interval end, and whether the goal is met; an undefined figure meets nothing.

    Goals of earlier registrations, with figures that are not set any more, are judged, too.
    """
    value = _value(goal, test_sets[goal.test_set])
    if value is None:
        return None, False
    met = {
        "<": value < goal.target,
        ">": value > goal.target,
        "<=": value <= goal.target,
        ">=": value >= goal.target,
    }[goal.op]
    return float(value), bool(met)


def _value(goal: Goal, table: dict[str, Any]) -> float | None:
    kind, _, rest = goal.figure.partition(" ")
    if kind in ("error", "band"):
        return _number(table["forecast"][rest]["error" if kind == "error" else "coverage"])
    if kind == "ece":
        return _number(table["reliability"][rest or "not_worse"]["ece"])
    if kind == "covered":
        return _number(table["where_it_matters"]["coverage"])
    if kind == "worse" and rest:
        return _number(table["risk"][goal.base][rest]["upper95"])
    comparison = table["comparisons"][f"{ROBUST}-vs-{goal.base}"]
    if kind == "captured":
        return _number(comparison["captured"][_metric(rest)]["value"])
    if kind == "kept":
        return _kept(rest, comparison, table["comparisons"][f"{ORACLE_ROBUST}-vs-{goal.base}"])
    if kind == "worse":
        return _number(comparison["worse_rate"]["upper95"])
    if goal.figure == "new minus repaired":
        return float(comparison["unsafe_rate"]["value"] - comparison["repaired_rate"]["value"])
    estimate = comparison[goal.figure]
    centre = estimate["value"] if goal.figure == "ttft_tail_ratio" else estimate["delta"]
    return _number({"lower": estimate["ci"][0], "upper": estimate["ci"][1], "value": centre}[goal.end])


def _kept(what: str, ours: dict[str, Any], oracle: dict[str, Any]) -> float:
    share, sign = (0.6, -1) if what == "violations" else (0.5, 1)
    gain, best = (sign * float(one[_metric(what)]["delta"]) for one in (ours, oracle))
    return gain - share * max(best, 0.0)


def _metric(what: str) -> str:
    return "slo_violation_rate" if what == "violations" else "goodput_tps"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
