"""The registered protocol: hypotheses, sets, policies, metrics and goals, fixed before a test list is simulated."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

FIXED, ENGINE_DEFAULT, HEUR, SINGLE_BEST = "FIXED", "ENGINE_DEFAULT", "HEUR", "SINGLE_BEST"
LIGHTGBM, REFERENCE, NOMINAL = "LightGBM", "MLP-reference", "MLP-nominal"
ROBUST, LARGE = "MLP-robust", "MLP-large"
ORACLE_NOMINAL, ORACLE_ROBUST = "ORACLE-nominal", "ORACLE-robust"
# The order of every table; oracles where a set has the draws for them.
POLICIES = (
    FIXED, ENGINE_DEFAULT, HEUR, SINGLE_BEST, LIGHTGBM, REFERENCE, NOMINAL, ROBUST, LARGE, ORACLE_NOMINAL,
    ORACLE_ROBUST,
)  # fmt: skip
BASES = (ENGINE_DEFAULT, FIXED)
ORACLE_SUFFIX = "-oracle"
TEST_SETS = (
    "T2", "T3", "T4", "T2-oracle", "T3-oracle", "T6-2x", "T6-4x", "T5", "prefix-sweep", "T6-exact", "T6-typical",
    "T6-rough",
)  # fmt: skip
BEYOND = "T2-beyond"

HYPOTHESES = (
    "H1 Under typical uncertainty the robust ranker violates the SLO less often than the engine's default and than "
    "candidate 0, with more goodput and no longer TTFT tail: on unseen workloads (T2), models (T3) and traces (T4).",
    "H2 It has most of what any choice by expected utility could gain there (ORACLE-robust), and more than half of it "
    "beyond the trained hull.",
    "H3 The signs hold on a machine whose host, front-end, kernel times and KV cache differ by up to 50 % (T5).",
    "H4 With twice and four times the announced clients it repairs at least as many violations as it causes (T6).",
    "H5 A ranker that never saw a prefix ratio above 0.7 loses utility above it against one that did, all else equal "
    "(the reference's guess about its agent workload).",
)
METRICS = (
    "A scenario's value is the mean over its judged draws; a set's value the mean over scenarios.",
    "slo_violation_rate, failure_rate, output_throughput_tps, goodput_tps, regret, slo_regret as in the reference, "
    "regrets over draws in which one of the 15 candidates meets the SLO.",
    "ttft_tail_ratio: 95th percentile of p95 TTFT over the draws in which some configuration meets the SLO, failures "
    "+inf, policy over base.",
    "Paired percentile bootstrap, 2,000 replicates, clusters model × announced workload; T3 also by model.",
    "Captured share: gain over ENGINE_DEFAULT ÷ ORACLE-robust's, on the scenarios that have oracle draws.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on a figure of a comparison. `end`: which end of its interval has to keep it, or the value itself."""

    name: str
    test_set: str
    base: str
    figure: Literal["slo_violation_rate", "goodput_tps", "ttft_tail_ratio", "captured violations", "captured goodput",
                    "new minus repaired"]  # fmt: skip
    end: Literal["upper", "lower", "value"]
    op: Literal["<", ">", "<=", ">="]
    target: float


def goals() -> tuple[Goal, ...]:
    """Every goal, each printed as one BAR line."""
    found = []
    for test_set in ("T2", "T3", "T4"):
        for base in BASES:
            short = "default" if base == ENGINE_DEFAULT else "fixed"
            prefix = f"{test_set}-vs-{short}"
            found += [
                _goal(f"{prefix}-violations", test_set, base, "slo_violation_rate", "upper", "<", 0.0),
                _goal(f"{prefix}-goodput", test_set, base, "goodput_tps", "lower", ">", 0.0),
                _goal(f"{prefix}-ttft-tail", test_set, base, "ttft_tail_ratio", "value", "<=", 1.0),
            ]
    for test_set, violations, goodput in (("T2", 0.8, 0.7), ("T3", 0.8, 0.7), (BEYOND, 0.6, 0.5)):
        oracles, name = f"{test_set}{ORACLE_SUFFIX}", f"{test_set}-captured"
        found += [
            _goal(f"{name}-violations", oracles, ENGINE_DEFAULT, "captured violations", "value", ">=", violations),
            _goal(f"{name}-goodput", oracles, ENGINE_DEFAULT, "captured goodput", "value", ">=", goodput),
        ]
    for test_set in ("T6-2x", "T6-4x"):
        found.append(
            _goal(f"{test_set}-new-minus-repaired", test_set, ENGINE_DEFAULT, "new minus repaired", "value", "<=", 0.0)
        )
    for base in BASES:
        short = "default" if base == ENGINE_DEFAULT else "fixed"
        found += [
            _goal(f"T5-vs-{short}-violations-sign", "T5", base, "slo_violation_rate", "value", "<", 0.0),
            _goal(f"T5-vs-{short}-goodput-sign", "T5", base, "goodput_tps", "value", ">", 0.0),
        ]
    return tuple(found)


def _goal(name: str, test_set: str, base: str, figure: Any, end: Any, op: Any, target: float) -> Goal:
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
        "test_sets": list(TEST_SETS),
    }


def judge(goal: Goal, test_sets: dict[str, Any]) -> tuple[float | None, bool]:
    """The figure's value or interval end, and whether the goal is met; an undefined figure meets nothing."""
    comparison = test_sets[goal.test_set]["comparisons"][f"{ROBUST}-vs-{goal.base}"]
    if goal.figure.startswith("captured"):
        metric = "slo_violation_rate" if goal.figure == "captured violations" else "goodput_tps"
        value = comparison["captured"][metric]["value"]
    elif goal.figure == "new minus repaired":
        value = comparison["unsafe_rate"]["value"] - comparison["repaired_rate"]["value"]
    else:
        estimate = comparison[goal.figure]
        centre = estimate["value"] if goal.figure == "ttft_tail_ratio" else estimate["delta"]
        value = {"lower": estimate["ci"][0], "upper": estimate["ci"][1], "value": centre}[goal.end]
    if value is None:
        return None, False
    met = {
        "<": value < goal.target,
        ">": value > goal.target,
        "<=": value <= goal.target,
        ">=": value >= goal.target,
    }[goal.op]
    return float(value), bool(met)
