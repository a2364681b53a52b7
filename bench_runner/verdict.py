"""Is the recommended configuration what it was recommended as? Pairs of visits, an interval, three possible answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["confirmed", "contradicted", "too noisy"]

# Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1 on; beyond the table the normal's.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean and its 95 % interval; low and high are None with fewer than two values."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One server of one side: what its row says. Percentiles in milliseconds, None where undefined.

    invalid: the row is no label, because the client was saturated or prompts were not fresh.
    """

    output_throughput_tps: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    slo_met: bool
    invalid: bool = False


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean; None without values."""
    if not values:
        return None
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Interval(mean=mean, low=None, high=None, n=n)
    half = _quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def throughput_ratio(recommended: Sequence[Visit], default: Sequence[Visit]) -> Interval | None:
    """Recommended ÷ default, the geometric mean over pairs of visits and its 95 % interval.

    Each recommended visit is paired with the default visit beside it in time, so that a drift of the machine cancels.
    None without a pair in which both sides have a throughput.
    """
    pairs = zip(recommended, default, strict=False)
    logs = [
        math.log(ours.output_throughput_tps / theirs.output_throughput_tps)
        for ours, theirs in pairs
        if ours.output_throughput_tps > 0 and theirs.output_throughput_tps > 0
    ]
    found = mean_interval(logs)
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Interval(mean=math.exp(found.mean), low=low, high=high, n=found.n)


def is_narrow(ratio: Interval | None, *, precision: float) -> bool:
    """True if the interval lies within ±precision of its middle: the stopping rule, which does not look at the sign."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return (ratio.high - ratio.low) / 2 <= precision


def verdict(
    recommended: Sequence[Visit], default: Sequence[Visit], *, precision: float, least_pairs: int
) -> tuple[Verdict, str]:
    """The answer and the reason in one sentence.

    The claim is "not worse than the engine's default": the SLO first, then throughput. Contradicted if the
    recommended side violates an SLO that the default meets in every visit, or if its throughput interval lies below 1;
    confirmed if it meets one that the default always violates, or its interval lies above 1 − precision.
    """
    pairs = min(len(recommended), len(default))
    if pairs < least_pairs:
        return "too noisy", f"{pairs} pairs of visits in the time given; {least_pairs} are needed"
    invalid = sum(visit.invalid for side in (recommended, default) for visit in side)
    if invalid:
        return "too noisy", f"{invalid} visits are invalid (see invalid_cause in their rows): the client is in the way"
    ours, theirs = (_slo_share(side) for side in (recommended, default))
    if ours == 1 and theirs == 0:
        return "confirmed", "it meets the SLO in every visit, the engine's default in none"
    if ours == 0 and theirs == 1:
        return "contradicted", "the engine's default meets the SLO in every visit, it meets it in none"
    if ours not in (0, 1) or theirs not in (0, 1):
        return "too noisy", f"the SLO is met in {ours:.0%} of its visits and in {theirs:.0%} of the default's"
    ratio = throughput_ratio(recommended, default)
    if ratio is None or ratio.low is None or ratio.high is None:
        return "too noisy", "too few visits with a throughput on both sides"
    said = f"throughput is {ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times the default's"
    if ratio.high < 1:
        return "contradicted", said
    if ratio.low > 1 - precision:
        return "confirmed", said
    return "too noisy", f"{said}, which leaves both open"


def _slo_share(visits: Sequence[Visit]) -> float:
    return sum(visit.slo_met for visit in visits) / len(visits)


def _quantile(degrees: int) -> float:
    return T_95[degrees - 1] if degrees <= len(T_95) else NORMAL_95
