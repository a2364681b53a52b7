"""The engine's loop once more, in Python, around vLLM's own scheduler instead of the simulator's.

Clients, front end, step times and jitter are the fast simulator's; only who is scheduled when is decided elsewhere.
"""

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench_runner.engine import Engine, record_step, step_ms
from bench_runner.front_end import first_ms, next_start_ms, pop, push, run_front_end
from bench_runner.measurement import Recorder
from bench_runner.scheduler import Step, new_step


class StepScheduler(Protocol):
    """What the loop asks of a scheduler. Slots and Step mean what they mean in bench_runner.scheduler."""

    def add_request(self, slot: int) -> None:
        """A request of the slot's lengths and contents joins the waiting queue."""

    def schedule(self, step: Step) -> int:
        """Fills `step` and returns its tokens; 0 if there is nothing to compute."""

    def update(self, emitted: NDArray[np.int64], finished: NDArray[np.bool_]) -> int:
        """Takes the oldest step: fills the slots that got a token and whether it was their last; returns how many."""


def run_with(scheduler: StepScheduler, engine: Engine, recorder: Recorder) -> Recorder:
    """run_engine with another scheduler; the recorder must have room for every request of the run."""
    slots = len(engine.clients.sent_ms)
    depth = 2 if engine.limits.asynchronous else 1
    emitted, finished = np.zeros(slots, np.int64), np.zeros(slots, np.bool_)
    ends_ms: deque[float] = deque()
    now_ms, gpu_free_ms = 0.0, 0.0
    while now_ms < recorder.end_ms:
        run_front_end(engine.front_end, engine.clients, recorder, engine.requests, now_ms)
        while first_ms(engine.front_end.ready) <= now_ms:
            scheduler.add_request(pop(engine.front_end.ready)[0])
        while len(ends_ms) < depth:
            step = new_step(slots=slots)
            if scheduler.schedule(step) == 0:
                break
            gpu_free_ms = max(gpu_free_ms, now_ms) + step_ms(engine, step)
            record_step(engine.trace, step, gpu_free_ms)
            ends_ms.append(gpu_free_ms)
        if not ends_ms:
            upcoming = min(next_start_ms(engine.front_end), first_ms(engine.front_end.ready))
            if upcoming == np.inf:
                break
            now_ms = max(now_ms, upcoming)
            continue
        now_ms = ends_ms.popleft()
        for index in range(scheduler.update(emitted, finished)):
            push(engine.front_end.emitted, emitted[index], now_ms, finished[index])
    run_front_end(engine.front_end, engine.clients, recorder, engine.requests, recorder.end_ms)
    return recorder
