"""Paired bootstrap over scenarios: how far a difference between two policies depends on which scenarios were drawn."""

import math

import numpy as np
from numpy.typing import NDArray

from offline.metrics import Picked, Vector, percentile
from offline.settings import BootstrapSettings


def resamples(scenarios: int, settings: BootstrapSettings) -> NDArray[np.int64]:
    """Scenario indices drawn with replacement, [replicates, scenarios]; the settings' own seed, so always the same."""
    generator = np.random.default_rng(settings.seed)
    return generator.integers(0, scenarios, size=(settings.replicates, scenarios))


def interval(replicates: Vector, *, confidence: float) -> tuple[float, float]:
    """Percentile interval of replicate values; replicates that are undefined (NaN) do not count."""
    defined = replicates[~np.isnan(replicates)]
    if not len(defined):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    return float(percentile(defined, tail)), float(percentile(defined, 1 - tail))


def mean_difference_interval(
    values: Vector, base: Vector, *, draws: NDArray[np.int64], confidence: float
) -> tuple[float, float]:
    """Interval of mean(values − base), both [scenarios], over the same drawn scenarios; NaN scenarios are left out."""
    difference = (values - base)[draws]
    covered = ~np.isnan(difference)
    counts = covered.sum(axis=1)
    sums = np.where(covered, difference, 0.0).sum(axis=1)
    means = np.divide(sums, counts, out=np.full(len(draws), np.nan), where=counts > 0)
    return interval(means, confidence=confidence)


def tail_ratio(tail_ms: Vector, base_tail_ms: Vector) -> Vector:
    """tail ÷ base's tail, below 1 is better. Both unbounded: 1, neither is better; one alone: 0 or +inf."""
    both = np.isinf(tail_ms) & np.isinf(base_tail_ms)
    return np.divide(tail_ms, base_tail_ms, out=np.ones(np.shape(tail_ms)), where=~both)


def ttft_tail_ratio_interval(
    picked: Picked, base: Picked, *, draws: NDArray[np.int64], confidence: float
) -> tuple[float, float]:
    """Interval of the ratio of the two policies' TTFT tails over the same drawn scenarios; failures are +inf."""
    tails = percentile(picked.ttft_p95_ms[draws], 0.95)
    base_tails = percentile(base.ttft_p95_ms[draws], 0.95)
    return interval(tail_ratio(tails, base_tails), confidence=confidence)


def binomial_upper_bound(events: int, trials: int, *, confidence: float) -> float:
    """One-sided Clopper-Pearson upper bound of a rate: the p at which ≤ events of trials has chance 1 − confidence."""
    if events >= trials:
        return 1.0

    def chance(p: float) -> float:
        return math.fsum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(events + 1))

    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 1 - confidence else (low, middle)
    return high
