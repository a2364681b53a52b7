"""Whether our numbers support what was concluded from the published ones: a rule per conclusion, no opinion.

A rule reads a test set of evaluation.json and says holds or not, with the numbers that decide it. What the numbers
cannot decide (an undefined value) counts as not supported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from offline.comparison import TTFT_TAIL_RATIO
from offline.policies import FIXED, HEUR, LIGHTGBM, MLP

TestSet = dict[str, Any]
# The published TPOT is given as "about 7 ms" for both; a tenth is what "about" can carry.
_ALIKE = 0.1
# The published table's policies; "of the four" in a claim means these.
FOUR = (FIXED, HEUR, LIGHTGBM, MLP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a claim holds on a test set, and the numbers that say so."""

    holds: bool
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A published statement and the rule that asks our numbers for it."""

    claim: str
    rule: Callable[[TestSet], Finding]


def number(value: float | None) -> str:
    """A figure as the card prints it: four significant digits at least, thousands separated."""
    if value is None:
        return "undefined"
    # Adding 0.0 turns the −0.0 of a difference between equals into 0.
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value + 0.0:.4g}"


def interval_text(value: float | None, ends: Sequence[float | None], *, missing: str = "undefined") -> str:
    """`value [low, high]`."""
    shown, low, high = (missing if figure is None else number(figure) for figure in (value, *ends))
    return f"{shown} [{low}, {high}]"


def levels(test_set: TestSet, theirs: dict[str, dict[str, float]]) -> str:
    """How far our goodput is from the published one, as ratios without a verdict."""
    ratios = {name: test_set["policies"][name]["goodput_tps"] / theirs[name]["goodput_tps"] for name in FOUR}
    return f"Goodput, ours ÷ published: {_listed(dict(ratios))}."


def paragraph(conclusions: tuple[Conclusion, ...], test_set: TestSet) -> str:
    """What agrees with the published conclusions and what does not, one sentence for each side."""
    findings = [(conclusion.claim, conclusion.rule(test_set)) for conclusion in conclusions]
    agreeing = [f"{claim} ({finding.numbers})" for claim, finding in findings if finding.holds]
    disagreeing = [f"that {claim} ({finding.numbers})" for claim, finding in findings if not finding.holds]
    agreement = (
        f"The numbers agree that {'; that '.join(agreeing)}." if agreeing else "No published conclusion holds here."
    )
    if not disagreeing:
        return f"{agreement} None of the published conclusions checked is contradicted."
    return f"{agreement} Our numbers do not support {'; nor '.join(disagreeing)}."


def _values(test_set: TestSet, metric: str) -> dict[str, float | None]:
    return {name: test_set["policies"][name][metric] for name in FOUR}


def _listed(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def _best_is(metric: str, winner: str, *, highest: bool) -> Callable[[TestSet], Finding]:
    """The winner is better than each of the other three; a tie is no win."""

    def rule(test_set: TestSet) -> Finding:
        values = _values(test_set, metric)
        best, others = values[winner], [value for name, value in values.items() if name != winner]
        sign = 1 if highest else -1
        holds = best is not None and all(other is not None and sign * best > sign * other for other in others)
        return Finding(holds=holds, numbers=_listed(values))

    return rule


def _ordered_violations(test_set: TestSet) -> Finding:
    rates = {name: float(test_set["policies"][name]["slo_violation_rate"]) for name in FOUR}
    holds = max(rates[MLP], rates[LIGHTGBM]) < rates[HEUR] < rates[FIXED]
    return Finding(holds=holds, numbers=_listed(_values(test_set, "slo_violation_rate")))


def _failures_of_fixed(test_set: TestSet) -> Finding:
    rates = {name: float(test_set["policies"][name]["failure_rate"]) for name in FOUR}
    holds = rates[FIXED] > rates[HEUR] > 0 and rates[MLP] == rates[LIGHTGBM] == 0
    return Finding(holds=holds, numbers=_listed(_values(test_set, "failure_rate")))


def _never_failed(test_set: TestSet) -> Finding:
    values = _values(test_set, "failure_rate")
    return Finding(holds=not any(values.values()), numbers=_listed(values))


def _indistinguishable(policy: str, metric: str) -> Callable[[TestSet], Finding]:
    """The interval of policy − FIXED contains 0."""

    def rule(test_set: TestSet) -> Finding:
        low, high, numbers = _interval(test_set, policy, metric)
        return Finding(holds=low is not None and high is not None and low <= 0 <= high, numbers=numbers)

    return rule


def _clearly_below(policy: str, metric: str) -> Callable[[TestSet], Finding]:
    """The whole interval of policy − FIXED lies below 0."""

    def rule(test_set: TestSet) -> Finding:
        _, high, numbers = _interval(test_set, policy, metric)
        return Finding(holds=high is not None and high < 0, numbers=numbers)

    return rule


def _interval(test_set: TestSet, policy: str, metric: str) -> tuple[float | None, float | None, str]:
    difference = test_set["comparisons"][f"{policy}-vs-{FIXED}"][metric]
    low, high = difference["ci"]
    return low, high, interval_text(difference["delta"], difference["ci"])


def _longer_tail(test_set: TestSet) -> Finding:
    row, base = (test_set["policies"][name] for name in (MLP, FIXED))
    tail, base_tail = row["ttft_p95_p95_ms"], base["ttft_p95_p95_ms"]
    # null is a tail that failures made unbounded: longer than any finite one.
    holds = base_tail is not None and (tail is None or tail > base_tail)
    shown = ["unbounded" if value is None else f"{number(value)} ms" for value in (tail, base_tail)]
    return Finding(holds=holds, numbers=f"MLP {shown[0]}, FIXED {shown[1]}")


def _same_tpot(test_set: TestSet) -> Finding:
    mlp, fixed = (test_set["policies"][name]["tpot_p95_p95_ms_without_failures"] for name in (MLP, FIXED))
    holds = mlp is not None and fixed is not None and abs(mlp / fixed - 1) <= _ALIKE
    return Finding(holds=holds, numbers=f"MLP {number(mlp)} ms, FIXED {number(fixed)} ms")


def _gates_pass(test_set: TestSet) -> Finding:
    verdicts = test_set["gates"]["verdicts"]
    six = [verdict for verdict in verdicts if verdict["metric"] != TTFT_TAIL_RATIO]
    passed = sum(verdict["passed"] for verdict in six)
    return Finding(holds=passed == len(six), numbers=f"{test_set['gates']['policy']}: {passed} of {len(six)} passed")


DEV_CONCLUSIONS = (
    Conclusion(
        claim="MLP and LightGBM violate the SLO less often than HEUR, and HEUR less often than FIXED",
        rule=_ordered_violations,
    ),
    Conclusion(claim="FIXED fails more often than HEUR, while MLP and LightGBM never fail", rule=_failures_of_fixed),
    Conclusion(claim="the MLP has the highest goodput of the four", rule=_best_is("goodput_tps", MLP, highest=True)),
    Conclusion(claim="the MLP has the lowest regret of the four", rule=_best_is("regret", MLP, highest=False)),
)

TEST_CONCLUSIONS = (
    Conclusion(
        claim="the MLP's SLO violation rate cannot be told from FIXED's (the interval of the difference contains 0)",
        rule=_indistinguishable(MLP, "slo_violation_rate"),
    ),
    Conclusion(
        claim="the MLP's throughput cannot be told from FIXED's",
        rule=_indistinguishable(MLP, "output_throughput_tps"),
    ),
    Conclusion(claim="the MLP's goodput cannot be told from FIXED's", rule=_indistinguishable(MLP, "goodput_tps")),
    Conclusion(
        claim="HEUR's throughput is below FIXED's with an interval that excludes 0",
        rule=_clearly_below(HEUR, "output_throughput_tps"),
    ),
    Conclusion(
        claim="LightGBM violates the SLO least of the four",
        rule=_best_is("slo_violation_rate", LIGHTGBM, highest=False),
    ),
    Conclusion(
        claim="LightGBM has the highest goodput of the four", rule=_best_is("goodput_tps", LIGHTGBM, highest=True)
    ),
    Conclusion(claim="none of the four ever fails", rule=_never_failed),
    Conclusion(claim="the MLP's TTFT tail is longer than FIXED's", rule=_longer_tail),
    Conclusion(
        claim="the p95 TPOT of MLP and FIXED is alike within a tenth (published: about 7 ms for both)", rule=_same_tpot
    ),
    Conclusion(claim="six gates 'not worse than FIXED' pass (their contents are this project's)", rule=_gates_pass),
)
