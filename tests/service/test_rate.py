"""The bucket of a caller: how many requests at once, how many over time, and whose bucket it is."""

import pytest

from service.api.rate import MOST_CALLERS, RateLimit


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def passed(rate: RateLimit, key: str, times: int) -> int:
    """How many of so many requests at one moment pass."""
    return sum(rate.wait_s(key) == 0 for _ in range(times))


def test_what_two_seconds_bring_may_come_at_once_and_then_one_by_one() -> None:
    clock = Clock()
    rate = RateLimit(10, clock=clock)
    assert passed(rate, "a", 50) == 20
    clock.now_s += 0.5
    assert passed(rate, "a", 50) == 5
    clock.now_s += 1000
    assert passed(rate, "a", 50) == 20


def test_who_is_refused_is_told_when_the_next_one_passes() -> None:
    clock = Clock()
    rate = RateLimit(0.5, clock=clock)
    assert rate.wait_s("a") == 0
    assert rate.wait_s("a") == pytest.approx(2.0)
    clock.now_s += 1.5
    # Asking in vain costs nothing.
    assert rate.wait_s("a") == pytest.approx(0.5)
    clock.now_s += 0.5
    assert rate.wait_s("a") == 0


def test_callers_do_not_take_from_each_other() -> None:
    rate = RateLimit(1, clock=Clock())
    assert (passed(rate, "a", 9), passed(rate, "b", 9)) == (2, 2)


def test_a_crowd_of_addresses_does_not_fill_the_memory() -> None:
    rate = RateLimit(1, clock=Clock())
    for number in range(MOST_CALLERS + 100):
        rate.wait_s(str(number))
    assert passed(rate, str(MOST_CALLERS + 99), 9) == 1
    # The oldest was forgotten and starts anew.
    assert passed(rate, "0", 9) == 2
