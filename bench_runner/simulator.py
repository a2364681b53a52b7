"""One cell on a virtual clock: clients, front end, scheduler and step times joined by the engine's loop."""

import hashlib
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import Clients, new_clients, next_uniform, send
from bench_runner.front_end import (
    Costs,
    FrontEnd,
    first_ms,
    length,
    new_front_end,
    next_start_ms,
    pop,
    push,
    run_front_end,
)
from bench_runner.kernel import kernel
from bench_runner.kv_cache import BLOCK, FREE, BlockPool, new_pool
from bench_runner.measurement import COMPLETED, TOKENS, WITH_TPOT, Recorder, grown, new_recorder, percentile
from bench_runner.scheduler import (
    HIT_TOKENS,
    NUM_WAITING,
    PREEMPTIONS,
    QUERIED_TOKENS,
    Limits,
    Requests,
    Step,
    add_request,
    new_requests,
    new_step,
    schedule,
    share_prefix,
    update,
)
from bench_runner.step_time import StepTable, gpu_ms
from service.domain.candidate import Candidate
from service.domain.scenario import Workload

SCHEDULER = "simulator 1, rules of vLLM 0.28"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """What the kernel tables do not hold. Times in milliseconds; `sources` says where each number comes from.

    host_step_ms + host_sequence_ms · sequences is the CPU work of a step (schedule, prepare inputs, sample, detokenise
    bookkeeping); asynchronous scheduling hides it behind the GPU unless it is the longer of the two.
    """

    asynchronous: bool = True
    host_step_ms: float = 1.8
    host_sequence_ms: float = 0.008
    request_ms: float = 1.0
    prompt_token_ms: float = 0.0002
    output_token_ms: float = 0.03
    ramp_ms: float = 1000.0
    step_jitter: float = 0.01

    def sources(self) -> dict[str, str]:
        """Where each parameter comes from; all but the first are assumptions, named so that they can be varied."""
        return {
            "asynchronous": "default of vLLM 0.28 on a GPU",
            "host_step_ms": "assumption inside the -0.9 to +2.7 ms by which published decode steps exceed kernel sums",
            "host_sequence_ms": "assumption: 2 ms of a step at 256 sequences",
            "request_ms": "assumption: HTTP, validation and hand-over of one request",
            "prompt_token_ms": "assumption: a token-id list is parsed, nothing is tokenised",
            "output_token_ms": "assumption: one streamed chunk per token",
            "ramp_ms": "choice: clients start within the first second of the warm-up",
            "step_jitter": "choice: ±1 % on each step, so that closed loops do not lock",
        }

    def digest(self) -> str:
        """Twelve hex digits that name these settings in a row's provenance."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one simulated run shows. Arrays hold one value per request completed in the window, in milliseconds."""

    tokens: int
    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    waiting_at_end: int
    running_at_end: int
    kv_usage_peak: float
    preemptions: int
    cached_token_ratio: float | None
    steps: int

    def ttft_percentile(self, share: float) -> float | None:
        """TTFT in milliseconds; None where nothing completed."""
        return percentile(self.ttft_ms, share)

    def tpot_percentile(self, share: float) -> float | None:
        """TPOT in milliseconds; None where no answer had a second token."""
        return percentile(self.tpot_ms, share)


class Host(NamedTuple):
    """CPU work of a step in milliseconds, and the size of the jitter on a step."""

    step_ms: float
    sequence_ms: float
    jitter: float


class Totals(NamedTuple):
    """Counters of a run: [6] of steps, peak blocks in use, and the scheduler's totals when the window opened."""

    steps: NDArray[np.int64]
    peak_blocks: NDArray[np.int64]
    at_start: NDArray[np.int64]


@kernel
def _step_ms(
    table: StepTable, requests: Requests, step: Step, limits: Limits, host: Host, state: NDArray[np.uint64]
) -> float:
    busy = gpu_ms(table, requests, step) * (1.0 + host.jitter * (2.0 * next_uniform(state) - 1.0))
    cpu = host.step_ms + host.sequence_ms * step.size[0]
    return max(busy, cpu) if limits.asynchronous else busy + cpu


@kernel
def _admit_ready(front_end: FrontEnd, requests: Requests, now_ms: float) -> None:
    while first_ms(front_end.ready) <= now_ms:
        client, _ = pop(front_end.ready)
        add_request(requests, client)


@numba.njit(cache=True)  # argsort allocates
def _start_clients(front_end: FrontEnd, clients: Clients, starts_ms: NDArray[np.float64]) -> None:
    order = np.argsort(starts_ms, kind="mergesort")
    for client in order:
        send(clients, client, starts_ms[client])
        push(front_end.sent, client, starts_ms[client], False)


@numba.njit(cache=True)  # allocates
def _run(
    requests: Requests,
    pool: BlockPool,
    limits: Limits,
    table: StepTable,
    front_end: FrontEnd,
    clients: Clients,
    recorder: Recorder,
    steps: tuple[Step, Step],
    host: Host,
    totals: Totals,
    state: NDArray[np.uint64],
) -> Recorder:
    """EngineCore.step_with_batch_queue: keep up to two steps in flight (one if synchronous), then take the oldest."""
    count = len(clients.sent_ms)
    depth = 2 if limits.asynchronous else 1
    ends_ms = np.zeros(2)
    emitted, finished = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    now_ms, gpu_free_ms, in_flight, oldest = 0.0, 0.0, 0, 0
    opened = False
    usable = pool.totals[FREE]
    while now_ms < recorder.end_ms:
        if len(recorder.ttft_ms) - recorder.counts[COMPLETED] <= count:
            recorder = grown(recorder)
        run_front_end(front_end, clients, recorder, requests.prompt, now_ms)
        _admit_ready(front_end, requests, now_ms)
        if not opened and now_ms >= recorder.start_ms:
            opened = True
            totals.at_start[:] = requests.totals
        while in_flight < depth:
            row = (oldest + in_flight) % 2
            # numba indexes a tuple of equal types only by a constant.
            step = steps[0] if row == 0 else steps[1]
            if schedule(requests, pool, limits, step) == 0:
                break
            gpu_free_ms = max(gpu_free_ms, now_ms) + _step_ms(table, requests, step, limits, host, state)
            ends_ms[row] = gpu_free_ms
            in_flight += 1
            totals.steps[0] += 1
            if opened:
                totals.peak_blocks[0] = max(totals.peak_blocks[0], usable - pool.totals[FREE])
        if in_flight == 0:
            upcoming = min(next_start_ms(front_end), first_ms(front_end.ready))
            if upcoming == np.inf:
                break
            now_ms = max(now_ms, upcoming)
            continue
        step = steps[0] if oldest == 0 else steps[1]
        now_ms = ends_ms[oldest]
        for index in range(update(requests, pool, step, emitted, finished)):
            push(front_end.emitted, emitted[index], now_ms, finished[index])
        oldest, in_flight = (oldest + 1) % 2, in_flight - 1
    run_front_end(front_end, clients, recorder, requests.prompt, recorder.end_ms)
    return recorder


def simulate(
    *,
    workload: Workload,
    candidate: Candidate,
    kv_blocks: int,
    table: StepTable,
    settings: SimulationSettings,
    warm_up_ms: float,
    window_ms: float,
    seed: int,
) -> Observed:
    """Runs one closed loop. kv_blocks: blocks of 16 tokens that the KV cache has. Equal arguments, equal result."""
    clients_count = workload.concurrency
    requests = new_requests(slots=clients_count, max_tokens=workload.sequence_tokens)
    requests.prompt[:] = workload.prompt_tokens
    requests.output[:] = workload.max_new_tokens
    shared = int(workload.prompt_tokens * workload.shared_prefix_ratio) // BLOCK
    contents = share_prefix(requests, np.full(clients_count, shared, dtype=np.int64))
    pool = new_pool(blocks=kv_blocks, contents=contents, caching=candidate.enable_prefix_caching)
    costs = Costs(settings.request_ms, settings.prompt_token_ms, settings.output_token_ms)
    front_end = new_front_end(
        clients=clients_count, outstanding_tokens=clients_count * workload.max_new_tokens, costs=costs
    )
    clients = new_clients(count=clients_count)
    state = np.array([seed], dtype=np.uint64)
    starts_ms = np.array([next_uniform(state) for _ in range(clients_count)]) * settings.ramp_ms
    _start_clients(front_end, clients, starts_ms)
    totals = Totals(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(len(requests.totals), np.int64))
    usable = int(pool.totals[FREE])
    recorder = _run(
        requests,
        pool,
        Limits(candidate.max_num_seqs, candidate.max_num_batched_tokens, settings.asynchronous),
        table,
        front_end,
        clients,
        new_recorder(start_ms=warm_up_ms, end_ms=warm_up_ms + window_ms, capacity=max(1024, 4 * clients_count)),
        (new_step(slots=clients_count), new_step(slots=clients_count)),
        Host(settings.host_step_ms, settings.host_sequence_ms, settings.step_jitter),
        totals,
        state,
    )
    in_window = requests.totals - totals.at_start
    waiting = int(requests.totals[NUM_WAITING]) + length(front_end.sent) + length(front_end.ready)
    queried = int(in_window[QUERIED_TOKENS])
    return Observed(
        tokens=int(recorder.counts[TOKENS]),
        ttft_ms=recorder.ttft_ms[: recorder.counts[COMPLETED]],
        tpot_ms=recorder.tpot_ms[: recorder.counts[WITH_TPOT]],
        waiting_at_end=waiting,
        running_at_end=clients_count - waiting,
        kv_usage_peak=int(totals.peak_blocks[0]) / usable,
        preemptions=int(in_window[PREEMPTIONS]),
        cached_token_ratio=int(in_window[HIT_TOKENS]) / queried if queried else None,
        steps=int(totals.steps[0]),
    )
