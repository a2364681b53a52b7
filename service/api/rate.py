"""How often one caller may ask: a bucket that fills at a rate and holds twice what a second brings."""

from collections import OrderedDict
from collections.abc import Callable

BURST_S = 2.0
# Callers are remembered as long as there is room; one who comes back later starts with a full bucket.
MOST_CALLERS = 10_000


class RateLimit:
    """Token buckets of one process, by the caller's key."""

    def __init__(self, per_s: float, *, clock: Callable[[], float]) -> None:
        self._per_s, self._clock = per_s, clock
        self._most = max(1.0, BURST_S * per_s)
        # What is in the bucket, and when that was true.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """0 if the request may pass, which takes one out of the bucket; else the seconds until one will be there."""
        now_s = self._clock()
        left, since_s = self._buckets.pop(key, (self._most, now_s))
        left = min(self._most, left + (now_s - since_s) * self._per_s)
        passes = left >= 1.0
        self._buckets[key] = (left - 1.0 if passes else left), now_s
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1.0 - left) / self._per_s
