"""How far the estimator's numbers are from what draws of the true workload showed."""

import numpy as np
from numpy.typing import NDArray

from offline.robust.estimator import Predicted, logarithms
from offline.robust.lists import Outcomes
from service.domain.manifest import QUANTITIES

RATIOS = tuple(f"{quantity}_ratio" for quantity in QUANTITIES)


def forecast_errors(
    predicted: Predicted, outcomes: Outcomes, *, where: NDArray[np.bool_] | None = None
) -> dict[str, dict[str, float]]:
    """Of each quantity and of its ratio to the engine default's (RATIOS), over all draws and configurations.

    predicted: [n, 16, …], outcomes: [n, draws, 16]. error: median of |estimated median ÷ median over the draws − 1|,
    per scenario and configuration; p90: its 90th percentile. coverage: share of draws inside the band; width: median
    of upper ÷ lower end. where: [n, 16] rows that count, all by default. Errors of a ratio are over what differs from
    the default: most configurations do exactly as it does, and there the error would say little.
    """
    values, defined = logarithms(outcomes)
    if where is not None:
        defined = defined & where.reshape(len(values), 1, -1, 1)
    quantiles = np.concatenate([predicted.quantiles, predicted.ratios], axis=-2).astype(np.float64)[:, None]
    found = {}
    for k, name in enumerate((*QUANTITIES, *RATIOS)):
        low, middle, high = (quantiles[..., k, level] for level in range(3))
        value, there = values[..., k], defined[..., k]
        inside: NDArray[np.bool_] = (low <= value) & (value <= high)
        seen = _medians(value, there)
        error = np.abs(np.expm1(middle[:, 0] - seen))
        error = error[np.isfinite(error) & ((seen != 0) | (name not in RATIOS))]
        found[name] = {
            "error": float(np.median(error)),
            "error_p90": float(np.quantile(error, 0.9)),
            "coverage": float(inside[there].mean()),
            "width": float(np.exp(np.median((high - low)[:, 0][there.any(axis=1)]))),
        }
    return found


def _medians(values: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[n, 16] medians over the draws in which a value is defined; NaN where it never is."""
    ordered = np.sort(np.where(there, values, np.inf), axis=1)
    count = there.sum(axis=1)[:, None]
    last = values.shape[1] - 1
    lower, upper = (
        np.take_along_axis(ordered, at.clip(0, last), axis=1)[:, 0] for at in ((count - 1) // 2, count // 2)
    )
    # Infinity, where nothing is defined, becomes NaN.
    with np.errstate(invalid="ignore"):
        return np.asarray((lower + upper) / 2 + 0 * (upper - lower))
