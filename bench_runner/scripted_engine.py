"""The engine behind a scripted server: who gets a place, which bytes leave when, what it remembers of each request."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from bench_runner.scripted_answer import RequestRecord, Write

BLOCK_TOKENS = 16


class PrefixCache:
    """Blocks of 16 tokens, known by everything up to their end; never full."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def add(self, prompt: Sequence[Any]) -> int:
        """Tokens of the prompt that were known; one token at least is always computed, as in vLLM."""
        position, cached, chain = 0, 0, 0
        for position in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
            chain = hash((chain, tuple(prompt[position - BLOCK_TOKENS : position])))
            if chain in self._known and cached == position - BLOCK_TOKENS and position < len(prompt):
                cached = position
            self._known.add(chain)
        return cached

    def clear(self) -> None:
        """Forgets everything."""
        self._known.clear()


class Answer:
    """A request on its way: its writes, and where they go."""

    __slots__ = ("_next", "record", "started_ns", "write", "writes")

    def __init__(self, record: RequestRecord, writes: Sequence[Write], write: Callable[[bytes], None]) -> None:
        self.record = record
        self.writes = writes
        self.write = write
        self.started_ns = 0
        self._next = 0

    def step(self) -> int | None:
        """Sends what is due; the time of what comes then in ns, None after the last."""
        entry = self.writes[self._next]
        if entry.tokens:
            record = self.record
            record.last_ns = time.monotonic_ns()
            record.first_ns = record.first_ns or record.last_ns
            record.tokens += entry.tokens
        self.write(entry.data)
        self._next += 1
        return self.due_ns()

    def due_ns(self) -> int | None:
        """When the next write is due; None after the last."""
        if self._next == len(self.writes):
            return None
        return self.started_ns + int(self.writes[self._next].after_s * 1e9)


class Engine:
    """Places for `max_running` answers, a queue for the others, and one timer for all of them."""

    def __init__(self, *, max_running: int | None, loop: asyncio.AbstractEventLoop) -> None:
        self.running: set[Answer] = set()
        self.waiting: deque[Answer] = deque()
        self._max_running = max_running
        self._loop = loop
        self._due: list[tuple[int, int, Answer]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def submit(self, answer: Answer) -> None:
        """Starts an answer, or queues it."""
        self.waiting.append(answer)
        self._admit()
        self._arm()

    def drop(self, answer: Answer) -> None:
        """The client has gone."""
        if answer in self.running:
            self.running.discard(answer)
            self._admit()
            self._arm()
        elif answer in self.waiting:
            self.waiting.remove(answer)

    def _admit(self) -> None:
        while self.waiting and (self._max_running is None or len(self.running) < self._max_running):
            answer = self.waiting.popleft()
            answer.started_ns = time.monotonic_ns()
            self.running.add(answer)
            self._push(answer, answer.due_ns())

    def _push(self, answer: Answer, due_ns: int | None) -> None:
        if due_ns is None:
            self.running.discard(answer)
            answer.record.ended = True
            self._admit()
        else:
            heapq.heappush(self._due, (due_ns, next(self._order), answer))

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic_ns()
        while self._due and self._due[0][0] <= now:
            answer = heapq.heappop(self._due)[2]
            if answer in self.running:
                self._push(answer, answer.step())
        self._arm()

    def _arm(self) -> None:
        if not self._due:
            return
        due_ns = self._due[0][0]
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self._loop.call_at(due_ns / 1e9, self._tick)


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
