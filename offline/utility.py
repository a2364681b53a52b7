"""What the ranker learns to order: throughput where the SLO is met, worse than anything where it is not."""

import numpy as np
from numpy.typing import NDArray

SLO_VIOLATED_UTILITY = -1.0


def utilities(*, throughput_tps: NDArray[np.float64], slo_met: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Utility of every candidate, [lists, 15] from [lists, 15]; higher is better.

    SLO met: throughput ÷ the best throughput among the list's candidates that meet the SLO, in (0, 1]; else −1.
    """
    if throughput_tps.ndim != 2 or throughput_tps.shape != slo_met.shape:
        raise ValueError(f"throughput {throughput_tps.shape} and slo_met {slo_met.shape} must be one [lists, n] shape")
    best = best_feasible_tps(throughput_tps=throughput_tps, slo_met=slo_met)[:, None]
    share = np.divide(throughput_tps, best, out=np.zeros_like(throughput_tps), where=slo_met)
    return np.where(slo_met, share, SLO_VIOLATED_UTILITY)


def best_feasible_tps(*, throughput_tps: NDArray[np.float64], slo_met: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Best throughput among candidates that meet the SLO, [lists]; NaN where none does."""
    best = np.where(slo_met, throughput_tps, -np.inf).max(axis=1)
    return np.where(slo_met.any(axis=1), best, np.nan)
