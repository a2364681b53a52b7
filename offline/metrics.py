"""What a policy's choices cost: each metric of the evaluation as one function of the picked outcomes.

Every mean metric is a value per scenario first, because the paired bootstrap resamples scenarios. NaN marks a
scenario that a metric leaves out: regret needs a candidate that meets the SLO.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline.dataset import ENGINE_DEFAULT_CHOICE, Outcomes
from offline.utility import best_feasible_tps

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """Outcomes of one policy's choices, [scenarios] each; failed: throughput 0, latencies +inf.

    best_tps: throughput of the best of the 15 candidates that meets the SLO, NaN where none does.
    """

    throughput_tps: Vector
    ttft_p95_ms: Vector
    tpot_p95_ms: Vector
    slo_met: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    best_tps: Vector


def pick(outcomes: Outcomes, choices: NDArray[np.int64]) -> Picked:
    """The outcomes under choices [scenarios], each a candidate's index or ENGINE_DEFAULT_CHOICE."""
    if choices.shape != (len(outcomes.failed),) or not ((choices >= 0) & (choices <= ENGINE_DEFAULT_CHOICE)).all():
        raise ValueError(f"choices {choices} do not fit {len(outcomes.failed)} scenarios")
    rows = np.arange(len(choices))
    candidates = np.s_[:, :ENGINE_DEFAULT_CHOICE]
    return Picked(
        throughput_tps=outcomes.throughput_tps[rows, choices],
        ttft_p95_ms=outcomes.ttft_p95_ms[rows, choices],
        tpot_p95_ms=outcomes.tpot_p95_ms[rows, choices],
        slo_met=outcomes.slo_met[rows, choices],
        failed=outcomes.failed[rows, choices],
        best_tps=best_feasible_tps(
            throughput_tps=outcomes.throughput_tps[candidates], slo_met=outcomes.slo_met[candidates]
        ),
    )


def violations(picked: Picked) -> Vector:
    """1 where the SLO is violated; a failure violates it. Lower is better."""
    return (~picked.slo_met).astype(np.float64)


def failures(picked: Picked) -> Vector:
    """1 where the server did not start or completed nothing. Lower is better."""
    return picked.failed.astype(np.float64)


def throughputs(picked: Picked) -> Vector:
    """Output tokens per second, whether or not the SLO is met. Higher is better."""
    return picked.throughput_tps


def goodputs(picked: Picked) -> Vector:
    """Output tokens per second where the SLO is met, else 0. Higher is better."""
    return np.where(picked.slo_met, picked.throughput_tps, 0.0)


def regrets(picked: Picked) -> Vector:
    """1 − throughput ÷ best_tps. Lower is better.

    As published, a violating choice counts its throughput, so a value can be negative; so can ENGINE_DEFAULT's,
    which is not one of the 15 that best_tps is taken over.
    """
    return 1.0 - picked.throughput_tps / picked.best_tps


def slo_regrets(picked: Picked) -> Vector:
    """As regrets, but a choice that violates the SLO counts as throughput 0. Lower is better."""
    return 1.0 - goodputs(picked) / picked.best_tps


MEAN_METRICS: dict[str, Callable[[Picked], Vector]] = {
    "slo_violation_rate": violations,
    "failure_rate": failures,
    "output_throughput_tps": throughputs,
    "goodput_tps": goodputs,
    "regret": regrets,
    "slo_regret": slo_regrets,
}


def mean_of(values: Vector) -> float | None:
    """Mean over the scenarios that a metric covers; None if it covers none."""
    covered = values[~np.isnan(values)]
    return float(covered.mean()) if len(covered) else None


def percentile(values: Vector, share: float) -> Vector:
    """Percentile over the last axis by linear interpolation, share in [0, 1]; +inf may occur and propagates.

    numpy.percentile would answer NaN between a number and +inf, where an unbounded value is the truth.
    """
    ordered = np.sort(values, axis=-1)
    position = share * (values.shape[-1] - 1)
    below = int(position)
    low, high = ordered[..., below], ordered[..., min(below + 1, values.shape[-1] - 1)]
    weight = position - below
    if weight == 0:
        return np.asarray(low)
    with np.errstate(invalid="ignore"):
        between = low + weight * (high - low)
    return np.where(np.isinf(high), high, between)


def ttft_tail_ms(picked: Picked) -> float:
    """95th percentile over scenarios of the per-scenario p95 TTFT; a failure is +inf. Lower is better."""
    return float(percentile(picked.ttft_p95_ms, 0.95))


def tail_without_failures_ms(latency_ms: Vector, failed: NDArray[np.bool_]) -> float | None:
    """The same percentile as published: failed scenarios left out, so read it beside their number. None: all failed."""
    started = latency_ms[~failed & ~np.isnan(latency_ms)]
    return float(percentile(started, 0.95)) if len(started) else None


def throughput_ratio_where_both_meet(picked: Picked, base: Picked) -> tuple[float | None, int]:
    """Mean over scenarios of throughput ÷ base's throughput where both meet the SLO, and how many those are."""
    both = picked.slo_met & base.slo_met
    ratios = picked.throughput_tps[both] / base.throughput_tps[both]
    return (float(ratios.mean()) if len(ratios) else None), int(both.sum())
