"""The one fitted number of a trace-driven comparison: time per step that no profiled layer holds.

Launch gaps, input preparation, the sampler's small kernels: asynchronous scheduling hides the host's work behind the
GPU's, but not the gaps between two steps. Fitted on the requests that ended in the first half of the run, by their
TPOT; everything else about the run is a check.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.measured_run import MeasuredRequests
from bench_runner.trace_driven import SimulatedRun
from service.domain.errors import ArtefactError

GRID_MS = np.arange(0.0, 3.01, 0.25)
# Requests that run together share their steps: they are drawn again in blocks of neighbours.
BLOCK = 10
DRAWS = 2000
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """step_ms: the fitted milliseconds per step, with a 95 % interval from a block bootstrap over `requests` requests.

    others: what the same rule gives on other parts of the run; none of them is used.
    """

    step_ms: float
    low_ms: float
    high_ms: float
    requests: int
    until_ms: float
    others: dict[str, float]


def fit_step_ms(measured: MeasuredRequests, simulate: Callable[[float], SimulatedRun]) -> StepFit:
    """The step_ms at which simulated TPOT is unbiased over the first half. simulate: a run with that many ms a step.

    ArtefactError if no request ended in the first half, or if no value up to the grid's end would do.
    """
    tpot = np.array([simulate(float(step_ms)).tpot_ms for step_ms in GRID_MS])
    errors = tpot / measured.tpot_ms - 1
    known = np.isfinite(errors).all(axis=0)
    half_ms = float(measured.last_ms.max()) / 2
    first = np.flatnonzero(known & (measured.last_ms <= half_ms))
    later = np.flatnonzero(known & (measured.first_ms > half_ms))
    if len(first) < 2 * BLOCK:
        raise ArtefactError(
            f"{len(first)} requests ended in the first half of the run, {2 * BLOCK} are needed to fit; "
            "give --step-ms instead"
        )
    drawn = _drawn(first)
    return StepFit(
        step_ms=_unbiased(errors, first),
        low_ms=float(np.percentile(drawn_ms := [_unbiased(errors, rows) for rows in drawn], 2.5)),
        high_ms=float(np.percentile(drawn_ms, 97.5)),
        requests=len(first),
        until_ms=half_ms,
        others={
            "all requests": _unbiased(errors, np.flatnonzero(known)),
            "requests whose first token came in the second half": _unbiased(errors, later),
        },
    )


def _drawn(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    random = np.random.default_rng(SEED)
    starts = random.integers(0, len(rows) - BLOCK + 1, size=(DRAWS, len(rows) // BLOCK))
    return [rows[(chosen[:, None] + np.arange(BLOCK)).ravel()] for chosen in starts]


def _unbiased(errors: NDArray[np.float64], rows: NDArray[np.intp]) -> float:
    """Where the mean relative error crosses zero, by linear interpolation; the end of the grid if it does not."""
    if not len(rows):
        return float("nan")
    return float(np.interp(0.0, errors[:, rows].mean(axis=1), GRID_MS))
