"""The engine's loop on the virtual clock: admit, schedule up to two steps ahead, take the oldest step's tokens."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import Clients, next_uniform
from bench_runner.front_end import FrontEnd, first_ms, next_start_ms, pop, push, run_front_end
from bench_runner.kernel import allocating_kernel, kernel
from bench_runner.kv_cache import FREE, BlockPool
from bench_runner.measurement import COMPLETED, Recorder, grown
from bench_runner.scheduler import Limits, Requests, Step, add_request, schedule, update
from bench_runner.step_time import StepTable, gpu_ms

STEPS, ROWS = 0, 1


class Host(NamedTuple):
    """CPU work of a step in milliseconds, and the size of the jitter on a step."""

    step_ms: float
    sequence_ms: float
    jitter: float


class Trace(NamedTuple):
    """What every step did, as long as there is room: rows (step, slot, tokens) and the time at which a step ends.

    `counts` holds STEPS and ROWS. Without room, steps are only counted.
    """

    rows: NDArray[np.int64]
    end_ms: NDArray[np.float64]
    counts: NDArray[np.int64]


class Totals(NamedTuple):
    """[1] most blocks in use inside the window; [5] the scheduler's totals when the window opened."""

    peak_blocks: NDArray[np.int64]
    at_start: NDArray[np.int64]


class Engine(NamedTuple):
    """Everything that one run works on."""

    requests: Requests
    pool: BlockPool
    limits: Limits
    table: StepTable
    front_end: FrontEnd
    clients: Clients
    steps: tuple[Step, Step]
    host: Host
    totals: Totals
    trace: Trace
    random: NDArray[np.uint64]


def new_trace(*, steps: int = 0, rows: int = 0) -> Trace:
    """A trace with room for so many steps and rows."""
    return Trace(np.zeros((rows, 3), np.int64), np.zeros(steps), np.zeros(2, np.int64))


@kernel
def record_step(trace: Trace, step: Step, end_ms: float) -> None:
    """Adds a scheduled step to the trace."""
    number, row = trace.counts[STEPS], trace.counts[ROWS]
    trace.counts[STEPS] += 1
    if number >= len(trace.end_ms) or row + step.size[0] > len(trace.rows):
        return
    trace.end_ms[number] = end_ms
    for index in range(step.size[0]):
        trace.rows[row + index, 0] = number
        trace.rows[row + index, 1] = step.slot[index]
        trace.rows[row + index, 2] = step.tokens[index]
    trace.counts[ROWS] += step.size[0]


@kernel
def step_ms(engine: Engine, step: Step) -> float:
    """How long a step takes: GPU and host overlap when scheduling is asynchronous, else they add up."""
    jitter = 1.0 + engine.host.jitter * (2.0 * next_uniform(engine.random) - 1.0)
    busy = gpu_ms(engine.table, engine.requests, step) * jitter
    cpu = engine.host.step_ms + engine.host.sequence_ms * step.size[0]
    return max(busy, cpu) if engine.limits.asynchronous else busy + cpu


@kernel
def _admit_ready(front_end: FrontEnd, requests: Requests, now_ms: float) -> None:
    while first_ms(front_end.ready) <= now_ms:
        client, _ = pop(front_end.ready)
        add_request(requests, client)


@kernel
def _schedule_step(engine: Engine, step: Step, start_ms: float) -> float:
    """When the step that is scheduled now ends; negative if there is nothing to schedule."""
    if schedule(engine.requests, engine.pool, engine.limits, step) == 0:
        return -1.0
    end_ms = start_ms + step_ms(engine, step)
    record_step(engine.trace, step, end_ms)
    return end_ms


@allocating_kernel
def run_engine(engine: Engine, recorder: Recorder) -> Recorder:
    """EngineCore.step_with_batch_queue: keep up to two steps in flight (one if synchronous), then take the oldest."""
    requests, pool, front_end, clients = engine.requests, engine.pool, engine.front_end, engine.clients
    count = len(clients.sent_ms)
    depth = 2 if engine.limits.asynchronous else 1
    ends_ms = np.zeros(2)
    emitted, finished = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    now_ms, gpu_free_ms, in_flight, oldest = 0.0, 0.0, 0, 0
    opened = False
    usable = pool.totals[FREE]
    while now_ms < recorder.end_ms:
        if len(recorder.ttft_ms) - recorder.counts[COMPLETED] <= count:
            recorder = grown(recorder)
        run_front_end(front_end, clients, recorder, requests, now_ms)
        _admit_ready(front_end, requests, now_ms)
        if not opened and now_ms >= recorder.start_ms:
            opened = True
            engine.totals.at_start[:] = requests.totals
        while in_flight < depth:
            row = (oldest + in_flight) % 2
            # numba indexes a tuple of equal types only by a constant.
            step = engine.steps[0] if row == 0 else engine.steps[1]
            end_ms = _schedule_step(engine, step, max(gpu_free_ms, now_ms))
            if end_ms < 0:
                break
            gpu_free_ms = ends_ms[row] = end_ms
            in_flight += 1
            if opened:
                engine.totals.peak_blocks[0] = max(engine.totals.peak_blocks[0], usable - pool.totals[FREE])
        if in_flight == 0:
            upcoming = min(next_start_ms(front_end), first_ms(front_end.ready))
            if upcoming == np.inf:
                break
            now_ms = max(now_ms, upcoming)
            continue
        step = engine.steps[0] if oldest == 0 else engine.steps[1]
        now_ms = ends_ms[oldest]
        for index in range(update(requests, pool, step, emitted, finished)):
            push(front_end.emitted, emitted[index], now_ms, finished[index])
        oldest, in_flight = (oldest + 1) % 2, in_flight - 1
    run_front_end(front_end, clients, recorder, requests, recorder.end_ms)
    return recorder
