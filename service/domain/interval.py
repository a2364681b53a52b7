"""Student's t interval of a mean: what a handful of repeated measurements says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean; None without values."""
    if not values:
        return None
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Interval(mean=mean, low=None, high=None, n=n)
    half = _quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def _quantile(degrees: int) -> float:
    return T_95[degrees - 1] if degrees <= len(T_95) else NORMAL_95
