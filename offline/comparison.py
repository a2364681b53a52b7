"""One policy against another on the same scenarios: differences with intervals, and the rates that need both."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline.bootstrap import (
    binomial_upper_bound,
    mean_difference_interval,
    resamples,
    tail_ratio,
    ttft_tail_ratio_interval,
)
from offline.metrics import (
    MEAN_METRICS,
    Picked,
    goodputs,
    mean_of,
    throughput_ratio_where_both_meet,
    ttft_tail_ms,
)
from offline.settings import BootstrapSettings

TTFT_TAIL_RATIO = "ttft_tail_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its interval; NaN where undefined, +inf where a tail is unbounded."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """policy − base for each mean metric, policy ÷ base for the TTFT tail, and shares of scenarios.

    unsafe_rate: share where base meets the SLO and the policy does not, unsafe_upper95 its one-sided 95 % bound.
    oracle_gain_captured: goodput gained over base ÷ what the oracle gains; None where the oracle gains nothing.
    coverage: share of scenarios in which the policy sets flags at all.
    """

    differences: dict[str, Estimate]
    ttft_tail: Estimate
    throughput_ratio: float | None
    both_meet: int
    unsafe_rate: float
    unsafe_upper95: float
    oracle_gain_captured: float | None
    coverage: float

    def to_json(self) -> dict[str, Any]:
        """As in evaluation.json; null stands for undefined or unbounded."""
        return {
            **{
                name: {"delta": finite(estimate.value), "ci": [finite(estimate.low), finite(estimate.high)]}
                for name, estimate in self.differences.items()
            },
            TTFT_TAIL_RATIO: {
                "value": finite(self.ttft_tail.value),
                "ci": [finite(self.ttft_tail.low), finite(self.ttft_tail.high)],
            },
            "throughput_ratio_both_meet_slo": {"value": self.throughput_ratio, "n": self.both_meet},
            "unsafe_rate": {"value": self.unsafe_rate, "upper95": self.unsafe_upper95},
            "oracle_gain_captured": self.oracle_gain_captured,
            "coverage": self.coverage,
        }


def finite(value: float | None) -> float | None:
    """The value, or None where strict JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def compare(
    picked: Picked, base: Picked, *, oracle: Picked, coverage: float, settings: BootstrapSettings
) -> Comparison:
    """picked against base, both over the same scenarios in the same order."""
    draws = resamples(len(picked.failed), settings)
    differences = {}
    for name, metric in MEAN_METRICS.items():
        values, base_values = metric(picked), metric(base)
        low, high = mean_difference_interval(values, base_values, draws=draws, confidence=settings.confidence)
        delta = mean_of(values - base_values)
        differences[name] = Estimate(value=math.nan if delta is None else delta, low=low, high=high)
    ratio = float(tail_ratio(np.array(ttft_tail_ms(picked)), np.array(ttft_tail_ms(base))))
    low, high = ttft_tail_ratio_interval(picked, base, draws=draws, confidence=settings.confidence)
    both_ratio, both = throughput_ratio_where_both_meet(picked, base)
    unsafe = int((base.slo_met & ~picked.slo_met).sum())
    return Comparison(
        differences=differences,
        ttft_tail=Estimate(value=ratio, low=low, high=high),
        throughput_ratio=both_ratio,
        both_meet=both,
        unsafe_rate=unsafe / len(picked.failed),
        unsafe_upper95=binomial_upper_bound(unsafe, len(picked.failed), confidence=0.95),
        oracle_gain_captured=_gain_captured(picked, base, oracle),
        coverage=coverage,
    )


def _gain_captured(picked: Picked, base: Picked, oracle: Picked) -> float | None:
    base_goodput = goodputs(base).mean()
    room = goodputs(oracle).mean() - base_goodput
    return float((goodputs(picked).mean() - base_goodput) / room) if room > 0 else None
