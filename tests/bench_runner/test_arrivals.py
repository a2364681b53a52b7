from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bench_runner.arrivals import RateTable, gamma_ms, on_off_ms, piecewise_poisson_ms, poisson_ms
from service.domain.errors import InvalidInputError

# 10,000 arrivals on average: the rate is within 3 % and the gaps' variation within 5 % in all but freak draws.
RATE_RPS, UNTIL_MS = 10.0, 1_000_000.0


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def variation(arrivals_ms: NDArray[np.float64]) -> float:
    gaps_ms = np.diff(arrivals_ms)
    return float(gaps_ms.std() / gaps_ms.mean())


def test_poisson_arrivals_have_their_rate_and_a_variation_of_one() -> None:
    arrivals_ms = poisson_ms(rng(), rate_rps=RATE_RPS, until_ms=UNTIL_MS)
    assert len(arrivals_ms) == pytest.approx(10_000, rel=0.03)
    assert variation(arrivals_ms) == pytest.approx(1.0, rel=0.05)
    assert (np.diff(arrivals_ms) >= 0).all()
    assert 0 <= arrivals_ms[0] <= arrivals_ms[-1] < UNTIL_MS


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_arrivals_have_their_rate_and_variation(cv: float) -> None:
    arrivals_ms = gamma_ms(rng(), rate_rps=RATE_RPS, cv=cv, until_ms=UNTIL_MS)
    # The count's relative deviation grows with cv: 3 % at cv = 3.
    assert len(arrivals_ms) == pytest.approx(10_000, rel=0.03 * max(1.0, cv))
    assert variation(arrivals_ms) == pytest.approx(cv, rel=0.06)


def test_on_off_arrivals_have_their_mean_rate_and_are_burstier_than_poisson() -> None:
    arrivals_ms = on_off_ms(rng(), rate_rps=RATE_RPS, on_ms=2000.0, off_ms=6000.0, until_ms=UNTIL_MS)
    # About 125 cycles, so the share of on time is uncertain by about 9 %.
    assert len(arrivals_ms) == pytest.approx(10_000, rel=0.27)
    assert variation(arrivals_ms) > 3.0
    assert (np.diff(arrivals_ms) >= 0).all()


def test_a_rate_table_gives_each_window_its_own_rate_and_an_empty_one_none() -> None:
    rates = RateTable(start_s=np.array([0.0, 100.0, 200.0]), rate_rps=np.array([50.0, 0.0, 10.0]), end_s=300.0)
    counts = np.histogram(piecewise_poisson_ms(rng(), rates), bins=[0, 100_000, 200_000, 300_000])[0]
    assert counts[0] == pytest.approx(5000, rel=0.06)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(1000, rel=0.12)


def test_a_scaled_table_keeps_its_shape() -> None:
    rates = RateTable(start_s=np.array([0.0, 100.0]), rate_rps=np.array([3.0, 1.0]), end_s=200.0)
    assert rates.scaled(mean_rps=20.0).rate_rps.tolist() == [30.0, 10.0]


def test_equal_generators_give_equal_arrivals() -> None:
    first, second = (on_off_ms(rng(), rate_rps=5.0, on_ms=50.0, off_ms=50.0, until_ms=9000.0) for _ in range(2))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: poisson_ms(rng(), rate_rps=0.0, until_ms=1.0), "rate_rps: 0.0"),
        (lambda: gamma_ms(rng(), rate_rps=1.0, cv=-1.0, until_ms=1.0), "cv: -1.0"),
        (lambda: on_off_ms(rng(), rate_rps=1.0, on_ms=0.0, off_ms=1.0, until_ms=1.0), "on_ms: 0.0"),
        (lambda: RateTable(start_s=np.array([1.0, 1.0]), rate_rps=np.ones(2), end_s=2.0), "start_s"),
        (lambda: RateTable(start_s=np.array([0.0]), rate_rps=np.array([-1.0]), end_s=2.0), "rate_rps"),
    ],
)
def test_what_is_no_rate_is_refused(build: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        build()
