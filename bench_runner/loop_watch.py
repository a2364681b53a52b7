"""Watches the event loop that it runs in: whether it keeps up, and how much CPU its process takes."""

import asyncio
import time
from typing import Any

INTERVAL_NS = 10_000_000


class LoopWatch:
    """Samples lag every 10 ms of [start_ns, end_ns): how late a timer fires, hence how old a time stamp may be."""

    def __init__(self, *, start_ns: int, end_ns: int) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._lags_ms: list[float] = []
        self._due_ns = 0
        self._cpu_s: list[float] = []
        self._wall_ns: list[int] = []

    def start(self) -> None:
        """Begins; call it from the running loop."""
        self._loop = asyncio.get_running_loop()
        for moment_ns in (self._start_ns, self._end_ns):
            self._loop.call_later(max(0, moment_ns - time.monotonic_ns()) / 1e9, self._read_clocks)
        self._wait()

    def finish(self) -> dict[str, Any]:
        """lags_ms; cpu_s and wall_s of the timed region, None if it had not begun."""
        self._sample()
        if len(self._cpu_s) == 1:
            self._read_clocks()
        measured = len(self._cpu_s) == 2
        return {
            "lags_ms": self._lags_ms,
            "cpu_s": self._cpu_s[1] - self._cpu_s[0] if measured else None,
            "wall_s": (self._wall_ns[1] - self._wall_ns[0]) / 1e9 if measured else None,
        }

    def _read_clocks(self) -> None:
        self._cpu_s.append(time.process_time())
        self._wall_ns.append(time.monotonic_ns())

    def _wait(self) -> None:
        self._due_ns = time.monotonic_ns() + INTERVAL_NS
        self._timer = self._loop.call_later(INTERVAL_NS / 1e9, self._tick)

    def _tick(self) -> None:
        self._sample()
        self._wait()

    def _sample(self) -> None:
        """One sample, and one for every sample that the stall has swallowed: a stall weighs as much as it lasted."""
        lag_ns = max(0, time.monotonic_ns() - self._due_ns)
        for late_ns in range(lag_ns, -1, -INTERVAL_NS):
            if self._start_ns <= self._due_ns + lag_ns - late_ns < self._end_ns:
                self._lags_ms.append(late_ns / 1e6)
