"""When requests of an open loop arrive: ascending times from 0 to until_ms, [arrivals], in milliseconds.

Rates are in requests per second. A generator makes every draw; equal generators, equal arrivals.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.errors import InvalidInputError

MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """A rate that is constant in each window. [windows] each; a window ends where the next starts."""

    start_s: NDArray[np.float64]
    rate_rps: NDArray[np.float64]
    end_s: float

    def __post_init__(self) -> None:
        if not len(self.start_s) or self.start_s.shape != self.rate_rps.shape:
            value = f"{self.start_s.shape} windows, {self.rate_rps.shape} rates"
            raise InvalidInputError(path="rates", value=value, remedy="give one rate per window")
        if self.start_s[0] < 0 or (np.diff(self.start_s, append=self.end_s) <= 0).any():
            raise InvalidInputError(path="start_s", value=self.start_s.tolist(), remedy="ascending from 0 on")
        if not (self.rate_rps >= 0).all():
            raise InvalidInputError(path="rate_rps", value=self.rate_rps.tolist(), remedy="rates are not negative")

    def scaled(self, *, mean_rps: float) -> "RateTable":
        """The same shape at another mean rate."""
        lengths_s = np.diff(self.start_s, append=self.end_s)
        mean = float((self.rate_rps * lengths_s).sum() / lengths_s.sum())
        if mean == 0:
            raise InvalidInputError(path="rate_rps", value=0.0, remedy="a table of zeros has no shape")
        return RateTable(start_s=self.start_s, rate_rps=self.rate_rps * (mean_rps / mean), end_s=self.end_s)


def poisson_ms(rng: np.random.Generator, *, rate_rps: float, until_ms: float) -> NDArray[np.float64]:
    """Independent arrivals: exponential gaps."""
    mean_ms = MS_PER_S / _positive("rate_rps", rate_rps)
    return _from_gaps(lambda count: rng.exponential(mean_ms, count), mean_ms=mean_ms, until_ms=until_ms)


def gamma_ms(rng: np.random.Generator, *, rate_rps: float, cv: float, until_ms: float) -> NDArray[np.float64]:
    """Gamma gaps with coefficient of variation `cv`: 1 is Poisson, more is bursty, less is regular."""
    mean_ms = MS_PER_S / _positive("rate_rps", rate_rps)
    shape = _positive("cv", cv) ** -2
    return _from_gaps(lambda count: rng.gamma(shape, mean_ms / shape, count), mean_ms=mean_ms, until_ms=until_ms)


def on_off_ms(
    rng: np.random.Generator, *, rate_rps: float, on_ms: float, off_ms: float, until_ms: float
) -> NDArray[np.float64]:
    """Poisson arrivals in phases that last on_ms on average, none in between for off_ms on average.

    Both lengths are exponential; the first phase is an on phase. rate_rps is the mean over on and off.
    """
    on_ms, off_ms = _positive("on_ms", on_ms), _positive("off_ms", off_ms)
    rate_on_rps = _positive("rate_rps", rate_rps) * (on_ms + off_ms) / on_ms
    phases: list[NDArray[np.float64]] = []
    start_ms = 0.0
    while start_ms < until_ms:
        length_ms = rng.exponential(on_ms)
        phases.append(start_ms + poisson_ms(rng, rate_rps=rate_on_rps, until_ms=length_ms))
        start_ms += length_ms + rng.exponential(off_ms)
    arrivals_ms = np.concatenate(phases)
    return arrivals_ms[arrivals_ms < until_ms]


def piecewise_poisson_ms(rng: np.random.Generator, rates: RateTable) -> NDArray[np.float64]:
    """Poisson arrivals whose rate follows a table; time 0 is the start of its first window."""
    ends_s = np.append(rates.start_s[1:], rates.end_s)
    windows: list[NDArray[np.float64]] = []
    for start_s, end_s, rate_rps in zip(rates.start_s, ends_s, rates.rate_rps, strict=True):
        if rate_rps > 0:
            arrivals_ms = poisson_ms(rng, rate_rps=float(rate_rps), until_ms=float(end_s - start_s) * MS_PER_S)
            windows.append((start_s - rates.start_s[0]) * MS_PER_S + arrivals_ms)
    return np.concatenate(windows) if windows else np.zeros(0)


def _from_gaps(
    gaps_ms: Callable[[int], NDArray[np.float64]], *, mean_ms: float, until_ms: float
) -> NDArray[np.float64]:
    """Running sums of gaps that lie before until_ms. gaps_ms: draws so many gaps."""
    portion = int(1.1 * until_ms / mean_ms) + 16
    drawn = [np.cumsum(gaps_ms(portion))]
    while drawn[-1][-1] < until_ms:
        drawn.append(drawn[-1][-1] + np.cumsum(gaps_ms(portion)))
    arrivals_ms = np.concatenate(drawn)
    return arrivals_ms[arrivals_ms < until_ms]


def _positive(path: str, value: float) -> float:
    if not 0 < value < np.inf:
        raise InvalidInputError(path=path, value=value, remedy="a positive number")
    return value
