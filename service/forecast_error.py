"""Whether two expected numbers can be told apart: how far the estimator was off where its bundle was tested."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from service.domain.manifest import QUANTITIES
from service.expectation import Range


def forecast_errors(evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    """By quantity, a relative error: of each test set the median of |estimated median ÷ simulated median - 1|, of the
    test sets the middle one. Quantities that the evaluation says nothing of are left out."""
    sets = _part(evaluation, "test_sets")
    forecasts = [_part(_part(sets, name), "forecast") for name in sets]
    found = {}
    for quantity in QUANTITIES:
        errors = [_part(forecast, quantity).get("error") for forecast in forecasts]
        numbers = [float(one) for one in errors if isinstance(one, int | float) and 0 <= one < math.inf]
        if numbers:
            found[quantity] = statistics.median(numbers)
    return found


def _part(content: Any, name: str) -> Mapping[str, Any]:
    part = content.get(name) if isinstance(content, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def told_apart(one: Range | None, other: Range | None, *, error: float | None) -> bool | None:
    """None where there are not two. Those whose ranges do not meet can be told apart, and those that differ by more
    than the error; where none is known, those of which one value lies outside of the other's range."""
    if one is None or other is None:
        return None
    if one.high < other.low or other.high < one.low:
        return True
    if error is None:
        return not (one.low <= other.value <= one.high and other.low <= one.value <= other.high)
    return abs(math.log(one.value / other.value)) > math.log1p(error)
