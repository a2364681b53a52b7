"""Shares as people read them."""

import pytest

from service.api.percent import between, chance, risk, signed


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.064, "+6.4 %"),
        (-0.0999, "-10 %"),
        (0.1249, "+12 %"),
        (31.0, "+3,100 %"),
        (0.0004, "0 %"),
        (-0.0004, "0 %"),
    ],
)
def test_a_change_has_a_sign_and_as_many_digits_as_tell_something(share: float, text: str) -> None:
    assert signed(share) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.012, 0.153, "-1 to +15 %"),
        (-0.002, 0.05, "0 to +5 %"),
        (-0.003, 0.0042, "-0.3 to +0.4 %"),
        (0.0003, 0.002, "0 to +0.2 %"),
        (-0.0004, 0.0003, "less than 0.1 % either way"),
    ],
)
def test_a_range_of_changes_is_short_unless_it_is_narrow(low: float, high: float, text: str) -> None:
    assert between(low, high) == text


def test_no_chance_is_certain_and_no_risk_is_none() -> None:
    assert [chance(one) for one in (0.0, 0.614, 0.989, 1.0)] == ["less than 1 %", "61 %", "99 %", "more than 99 %"]
    assert [risk(one) for one in (0.0, 0.0011, 0.075)] == ["less than 0.1 %", "0.1 %", "7.5 %"]
