"""One cell, seen step by step: the fast simulator's own run, with the state of the engine noted at every step."""

import difflib
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.engine import STEPS, Engine, new_trace
from bench_runner.kv_cache import FREE
from bench_runner.measurement import LOGGED, Recorder, new_recorder
from bench_runner.plan import Plan
from bench_runner.reference_loop import run_with
from bench_runner.scheduler import NUM_RUNNING, NUM_WAITING, Step, add_request, schedule, update
from bench_runner.simulate import CellSimulator
from bench_runner.simulator import Load, Window, new_engine
from service.domain.cell import CellKey
from service.domain.errors import InvalidInputError, UnknownNameError
from service.domain.memory import kv_blocks

MOST_STEPS, MOST_ROWS, MOST_REQUESTS = 200_000, 12_000_000, 400_000
NEAREST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """A run of one cell, warm-up included. Times in milliseconds from the start of the clients.

    [steps] each, as the step was scheduled: when it ends, requests that run and that wait at the engine, the share of
    the KV cache in use, tokens of prefill chunks and of decodes. [requests]: when each first token reached its client,
    and its TTFT. tokens_in_window: output tokens that clients received inside the window.
    """

    window: Window
    end_ms: NDArray[np.float64]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    kv_usage: NDArray[np.float64]
    prefill_tokens: NDArray[np.int64]
    decode_tokens: NDArray[np.int64]
    first_token_ms: NDArray[np.float64]
    ttft_ms: NDArray[np.float64]
    tokens_in_window: int


class SeenScheduler:
    """The simulator's scheduler behind the protocol of the Python loop; notes the engine's state at every step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._usable = int(engine.pool.totals[FREE])
        self._in_flight: deque[Step] = deque()
        self.rows: list[tuple[int, int, float, int, int]] = []

    def add_request(self, slot: int) -> None:
        """Joins the waiting queue."""
        add_request(self._engine.requests, slot)

    def schedule(self, step: Step) -> int:
        """Fills the step; one that computes nothing is not noted."""
        requests, pool = self._engine.requests, self._engine.pool
        tokens = int(schedule(requests, pool, self._engine.limits, step))
        if tokens == 0:
            return 0
        self._in_flight.append(step)
        size = int(step.size[0])
        # The rule by which the step tables price it: one token behind the whole prompt is a decode.
        decodes = (step.tokens[:size] == 1) & (step.context[:size] >= requests.prompt[step.slot[:size]])
        decoded = int(decodes.sum())
        used = (self._usable - int(pool.totals[FREE])) / self._usable
        running, waiting = int(requests.totals[NUM_RUNNING]), int(requests.totals[NUM_WAITING])
        self.rows.append((running, waiting, used, tokens - decoded, decoded))
        return tokens

    def update(self, emitted: NDArray[np.int64], finished: NDArray[np.bool_]) -> int:
        """Takes the oldest step."""
        step = self._in_flight.popleft()
        return int(update(self._engine.requests, self._engine.pool, step, emitted, finished))


def key_of(plan: Plan, cell_id: str) -> CellKey:
    """The cell of that id; UnknownNameError lists the nearest ids of the plan."""
    keys = {key.cell_id: key for key in plan.cells()}
    if cell_id not in keys:
        nearest = difflib.get_close_matches(cell_id, keys, n=NEAREST, cutoff=0.0)
        raise UnknownNameError(path="cell", value=cell_id, known=nearest, of=len(keys))
    return keys[cell_id]


def view_cell(simulator: CellSimulator, key: CellKey) -> CellView:
    """Runs the cell once more, as `simulate` does, and keeps what every step saw.

    InvalidInputError if its server would not start, or if the run has more steps than are kept.
    """
    plan = simulator.plan
    row = simulator.fill(key)
    if row.failure_cause == "kv_cache_too_small":
        raise InvalidInputError(
            path="cell", value=key.cell_id, remedy="its server would not start: there is no step to plot"
        )
    model, candidate, workload = plan.model(key), plan.candidate(key), plan.workload(key)
    window = Window(warm_up_ms=plan.warm_up_s * 1000, length_ms=plan.window_s * 1000)
    engine = new_engine(
        Load.of(workload).stream(),
        candidate,
        kv_blocks=kv_blocks(model, candidate, memory_gib=plan.memory_gib),
        table=simulator.tables.of(key.model),
        settings=simulator.settings,
        seed=plan.scenario_seed(key),
        trace=new_trace(steps=MOST_STEPS, rows=MOST_ROWS),
    )
    scheduler = SeenScheduler(engine)
    recorder = new_recorder(
        start_ms=window.warm_up_ms, end_ms=window.end_ms, capacity=MOST_REQUESTS, logged=MOST_REQUESTS
    )
    recorder = run_with(scheduler, engine, recorder)
    return _view(scheduler, engine, recorder, window, cell_id=key.cell_id)


def _view(scheduler: SeenScheduler, engine: Engine, recorder: Recorder, window: Window, *, cell_id: str) -> CellView:
    steps = int(engine.trace.counts[STEPS])
    end_ms = engine.trace.end_ms[: len(scheduler.rows)]
    if steps > MOST_STEPS or not end_ms.all() or recorder.counts[LOGGED] >= MOST_REQUESTS:
        raise InvalidInputError(path="cell", value=cell_id, remedy="too many steps to keep; plan a shorter window_s")
    seen = np.array(scheduler.rows, dtype=np.float64).reshape(-1, 5)
    first_ms, ttft_ms = _first_tokens(engine, recorder)
    return CellView(
        window=window,
        end_ms=end_ms,
        running=seen[:, 0].astype(np.int64),
        waiting=seen[:, 1].astype(np.int64),
        kv_usage=seen[:, 2],
        prefill_tokens=seen[:, 3].astype(np.int64),
        decode_tokens=seen[:, 4].astype(np.int64),
        first_token_ms=first_ms,
        ttft_ms=ttft_ms,
        tokens_in_window=int(recorder.counts[0]),
    )


def _first_tokens(engine: Engine, recorder: Recorder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of completed requests from the log, and of those that still stream from their clients; in time order."""
    clients = engine.clients
    log = recorder.log[: recorder.counts[LOGGED]]
    # A client that thinks or waits has received nothing of the request that it has in flight.
    streaming = clients.busy & (clients.received > 0)
    sent = np.concatenate((log[:, 1], clients.sent_ms[streaming]))
    first = np.concatenate((log[:, 2], clients.first_token_ms[streaming]))
    order = np.argsort(first, kind="stable")
    return first[order], (first - sent)[order]
