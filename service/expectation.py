"""What a configuration is expected to deliver under the announced load: numbers, their range, and the limits they meet.

Estimates are logarithms of simulated quantities. The range joins two independent spreads: that of the true workloads
which were drawn for the announced one, and that of the simulator's own error in the regime that the load is in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import Candidate
from service.domain.error_bands import BandMetric, ErrorBand, ErrorBands
from service.domain.manifest import CHANCES, QUANTITIES, Abstention
from service.domain.preference import cautious
from service.domain.regime import Regime, announced_regime
from service.domain.scenario import Workload
from service.domain.slo import Slo
from service.estimator import Estimates

_METRICS: tuple[BandMetric, ...] = ("throughput", "ttft", "tpot")  # of QUANTITIES
_THROUGHPUT, _TTFT, _TPOT = QUANTITIES
_SLO_MET, *_NOT_WORSE = range(len(CHANCES))


class Range(NamedTuple):
    """The median of what is expected, and the 5th and 95th percentile around it, in the quantity's unit; of a change
    it is a share: 0.064 is 6.4 % more."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One configuration. tpot_p95_ms: None where an answer has one token.

    slo_met_chance: that the limits of training are met; None where others are judged. error_unknown: quantities whose
    range is that of the workloads alone, and why.
    """

    config_id: str
    throughput_tps: Range
    ttft_p95_ms: Range
    tpot_p95_ms: Range | None
    slo_met_chance: float | None
    meets_ttft: bool
    meets_tpot: bool
    regime: Regime
    error_unknown: Mapping[str, str]

    @property
    def meets_limits(self) -> bool:
        """Whether both times are expected within the limits."""
        return self.meets_ttft and self.meets_tpot


class Change(NamedTuple):
    """By what share a configuration's quantities differ from the engine default's in the same draw of the true
    workload. tpot_p95_ms: None where an answer has one token."""

    throughput_tps: Range
    ttft_p95_ms: Range
    tpot_p95_ms: Range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """recommended: of what is to be set, None where nothing is. declined: of the first-ranked configuration where the
    engine's default was preferred to it. engine_default: of what starts where nothing further is set, None where it
    would not. change: of the first-ranked against that, None where one of them lacks or where that is not the engine's
    default, which is all that changes were learnt against."""

    recommended: Expected | None
    declined: Expected | None
    engine_default: Expected | None
    change: Change | None = None

    @property
    def first(self) -> Expected | None:
        """Of what ranks first, set or not."""
        return self.recommended or self.declined

    @property
    def runs(self) -> Expected | None:
        """Of what would run."""
        return self.recommended or self.engine_default


def expectation_of(
    first: Expected | None, own: Expected | None, *, chosen: bool, change: Change | None = None
) -> Expectation | None:
    """first: of the configuration that ranks first, own: of the engine's default; chosen: whether the first is set;
    change: of the first against the engine's default."""
    if first is None and own is None:
        return None
    return Expectation(
        recommended=first if chosen else None,
        declined=None if chosen else first,
        engine_default=own,
        change=None if first is None or own is None else change,
    )


def change_of(ratios: Sequence[float], *, answer_tokens: int) -> Change:
    """ratios: 9 natural logarithms as in `expected_of`, of quantities ÷ what the engine's default shows.

    Both sides of a ratio met the same draw, and the same simulator with the same error: neither is in the range.
    """
    throughput, ttft, tpot = (
        Range(math.expm1(median), math.expm1(min(low, median)), math.expm1(max(high, median)))
        for low, median, high in (ratios[start : start + 3] for start in range(0, 3 * len(QUANTITIES), 3))
    )
    return Change(throughput, ttft, tpot if answer_tokens > 1 else None)


def expected_of(
    candidate: Candidate,
    *,
    quantiles: Sequence[float],
    slo_met_chance: float | None,
    workload: Workload,
    kv_cache_tokens: int,
    slo: Slo,
    bands: ErrorBands | None,
) -> Expected:
    """quantiles: 9 natural logarithms, the 5th, 50th and 95th percentile of each of QUANTITIES in turn.

    kv_cache_tokens: what the configuration leaves room for. bands: None for a bundle that carries none.
    """
    regime = announced_regime(workload, candidate, kv_cache_tokens=kv_cache_tokens)
    ranges: dict[str, Range] = {}
    unknown: dict[str, str] = {}
    for column, (name, metric) in enumerate(zip(QUANTITIES, _METRICS, strict=True)):
        band = None if bands is None else bands.of(metric, regime)
        low, median, high = quantiles[3 * column : 3 * column + 3]
        ranges[name] = joined_range(low, median, high, band)
        if band is None:
            unknown[name] = "the bundle carries no errors of the simulator"
        elif band.low is None:
            unknown[name] = band.reason or ""
    tpot = ranges[_TPOT] if workload.max_new_tokens > 1 else None
    if tpot is None:
        unknown.pop(_TPOT, None)
    return Expected(
        config_id=candidate.config_id,
        throughput_tps=ranges[_THROUGHPUT],
        ttft_p95_ms=ranges[_TTFT],
        tpot_p95_ms=tpot,
        slo_met_chance=slo_met_chance,
        meets_ttft=ranges[_TTFT].value <= slo.max_p95_ttft_ms,
        meets_tpot=tpot is None or tpot.value <= slo.max_p95_tpot_ms,
        regime=regime,
        error_unknown=unknown,
    )


def joined_range(low: float, median: float, high: float, band: ErrorBand | None) -> Range:
    """Of logarithms of a simulated quantity, in its unit; the value stays what the simulations had.

    A measurement is the simulated number ÷ (1 + error). In logarithms the error's centre moves the range, and on each
    side the two distances from their centres add up as independent ones do, to the root of the sum of their squares.
    The range is widened where the value would lie outside of it.
    """
    if band is None or band.bias is None or band.low is None or band.high is None:
        return Range(math.exp(median), math.exp(min(low, median)), math.exp(max(high, median)))
    least, centre, most = _shifts(band.low, band.bias, band.high)
    below = math.hypot(median - low, centre - least)
    above = math.hypot(high - median, most - centre)
    return Range(
        math.exp(median),
        math.exp(min(median, median + centre - below)),
        math.exp(max(median, median + centre + above)),
    )


@lru_cache(maxsize=256)
def _shifts(low: float, bias: float, high: float) -> tuple[float, float, float]:
    """Of relative errors of a simulation: by how much, in logarithms, a measurement is off it, ascending."""
    least, most = -math.log1p(high), -math.log1p(low)
    # A few large errors can carry a mean beyond the percentiles.
    return least, min(max(-math.log1p(bias), least), most), most


def priced(
    scores: NDArray[np.float32], estimates: Estimates | None, abstention: Abstention | None
) -> NDArray[np.float32]:
    """[16]: scores less the prices of the chances to be worse than the engine's default and than candidate 0; as they
    are where none is asked.

    abstention: None where the engine's default is nothing to compare with.
    """
    if estimates is None or abstention is None or (abstention.risk_price is None and abstention.fixed_price is None):
        return scores
    prices = (abstention.risk_price or 0.0, abstention.fixed_price or 0.0)
    return cautious(scores, not_worse(estimates), prices=prices)


def not_worse(estimates: Estimates) -> NDArray[np.float32]:
    """[16, 2]: that a configuration is not worse than the engine's default, which is the last, and than candidate 0."""
    chances = estimates.chances[:, _NOT_WORSE]  # a copy
    # Nothing is worse than itself; the network was not taught that.
    chances[-1, 0] = 1.0
    chances[0, 1] = 1.0
    return chances


def slo_met_chance(estimates: Estimates, row: int) -> float:
    """That the limits of training are met by the configuration in that row."""
    return float(estimates.chances[row, _SLO_MET])
