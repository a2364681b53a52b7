"""Whether a difference can be told from none: how far the estimator was off where its bundle was tested."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from service.domain.manifest import QUANTITIES
from service.expectation import Change, Expectation, Expected, Range

# A change this small is none: nobody could measure it between two runs.
ALIKE = 0.005
RATIOS = tuple(f"{quantity}_ratio" for quantity in QUANTITIES)


def forecast_errors(evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    """By quantity, and by RATIOS of its ratio to the engine default's, a relative error: of each test set the median of
    |estimated median ÷ simulated median - 1|, of the test sets the middle one. What the evaluation says nothing of is
    left out."""
    sets = _part(evaluation, "test_sets")
    forecasts = [_part(_part(sets, name), "forecast") for name in sets]
    found = {}
    for quantity in (*QUANTITIES, *RATIOS):
        errors = [_part(forecast, quantity).get("error") for forecast in forecasts]
        numbers = [float(one) for one in errors if isinstance(one, int | float) and 0 <= one < math.inf]
        if numbers:
            found[quantity] = statistics.median(numbers)
    return found


def _part(content: Any, name: str) -> Mapping[str, Any]:
    part = content.get(name) if isinstance(content, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def apart(expectation: Expectation, errors: Mapping[str, float]) -> dict[str, bool | None] | None:
    """By quantity, whether what ranks first and the engine's default can be told apart: by the change where there is
    one, else by the two sides. None where there are not two sides; of a quantity, where it has no value."""
    first, own, change = expectation.first, expectation.engine_default, expectation.change
    if first is None or own is None:
        return None
    if change is not None:
        return {
            name: changed(getattr(change, name), error=errors.get(ratio))
            for name, ratio in zip(QUANTITIES, RATIOS, strict=True)
        }
    return {name: told_apart(getattr(first, name), getattr(own, name), error=errors.get(name)) for name in QUANTITIES}


def misses_alone(first: Expected, own: Expected, change: Change | None, errors: Mapping[str, float]) -> bool:
    """Whether the first is expected to miss a limit while the engine's default meets all.

    The two are estimated separately: where there is a change, what is missed has to be told to grow, too.
    """
    if first.meets_limits or not own.meets_limits:
        return False
    if change is None:
        return True
    judged = zip(QUANTITIES[1:], RATIOS[1:], (first.meets_ttft, first.meets_tpot), strict=True)
    grows = [(getattr(change, name), errors.get(ratio)) for name, ratio, met in judged if not met]
    return any(one is not None and one.value > 0 and changed(one, error=error) for one, error in grows)


def changed(change: Range | None, *, error: float | None) -> bool | None:
    """None where there is no change. One that is larger than the error of such ratios is told from none, and one whose
    whole range lies on one side of it; but none up to ALIKE."""
    if change is None:
        return None
    size = abs(math.log1p(change.value))
    if size <= math.log1p(ALIKE):
        return False
    return change.low > 0 or change.high < 0 or (error is not None and size > math.log1p(error))


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
