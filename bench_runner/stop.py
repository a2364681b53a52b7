"""Stopping on request: a signal ends a run between two pieces of work, never inside one."""

import signal
from types import FrameType
from typing import Any, Self


class InterruptedRunError(Exception):
    """SIGTERM or Ctrl-C: everything finished is on disk."""


class Stop:
    """SIGTERM and Ctrl-C, answered at once while `at_once`, else at the next check.

    A worker that is being started must not be interrupted half-way: it would die with a traceback of its own.
    """

    def __init__(self) -> None:
        self.at_once = True
        self._received: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        first = self._received is None
        self._received = signal.Signals(number).name
        if first and self.at_once:
            self.check()

    @property
    def requested(self) -> bool:
        """True if a signal has come."""
        return self._received is not None

    def check(self) -> None:
        """Raises InterruptedRunError if a signal has come."""
        if self._received is not None:
            raise InterruptedRunError(self._received)
