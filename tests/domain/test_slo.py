from typing import Any

import pytest

from service.domain.errors import InvalidInputError
from service.domain.slo import REFERENCE_SLO, Slo


def test_the_reference_limits() -> None:
    assert Slo(max_p95_ttft_ms=3000.0, max_p95_tpot_ms=60.0, max_error_rate=0.01) == REFERENCE_SLO


@pytest.mark.parametrize(
    ("ttft_p95_ms", "tpot_p95_ms", "error_rate", "met"),
    [
        (100.0, 10.0, 0.0, True),
        # A limit is allowed to be reached.
        (3000.0, 60.0, 0.01, True),
        (3000.1, 60.0, 0.01, False),
        (3000.0, 60.1, 0.01, False),
        (3000.0, 60.0, 0.0101, False),
        # Nothing completed.
        (None, None, 0.0, False),
        (None, 10.0, 0.0, False),
        # One-token answers have no time per output token, so nothing there to violate.
        (100.0, None, 0.0, True),
        (5000.0, None, 0.0, False),
        (100.0, None, 0.5, False),
        (float("inf"), 10.0, 0.0, False),
        (100.0, float("inf"), 0.0, False),
        # What is no number meets no limit.
        (float("nan"), 10.0, 0.0, False),
        (100.0, float("nan"), 0.0, False),
        (100.0, 10.0, float("nan"), False),
    ],
)
def test_an_slo_is_met_when_every_limit_holds(
    ttft_p95_ms: float | None, tpot_p95_ms: float | None, error_rate: float, met: bool
) -> None:
    assert REFERENCE_SLO.met(ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, error_rate=error_rate) is met


@pytest.mark.parametrize("field", ["max_p95_ttft_ms", "max_p95_tpot_ms", "max_error_rate"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "60", None, 10**400])
def test_an_impossible_limit_is_refused_by_name(field: str, value: object) -> None:
    limits: dict[str, Any] = {field: value}
    with pytest.raises(InvalidInputError) as caught:
        Slo(**limits)
    assert caught.value.path == field


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("max_p95_ttft_ms", 0.001, True),
        ("max_p95_ttft_ms", 0.0, False),
        ("max_p95_ttft_ms", 1e9, True),
        ("max_p95_ttft_ms", 1.1e9, False),
        ("max_p95_tpot_ms", 0.001, True),
        ("max_p95_tpot_ms", 0.0, False),
        ("max_error_rate", 0.0, True),
        ("max_error_rate", 1, True),
        ("max_error_rate", 1.01, False),
    ],
)
def test_where_limits_end(field: str, value: float, accepted: bool) -> None:
    limits: dict[str, Any] = {field: value}
    if accepted:
        assert getattr(Slo(**limits), field) == value
    else:
        with pytest.raises(InvalidInputError, match=field):
            Slo(**limits)
