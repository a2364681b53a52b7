"""One cell on a virtual clock: what goes into the engine's loop and what comes out of it."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import Clients, new_clients, next_uniform
from bench_runner.engine import STEPS, Engine, Host, Totals, Trace, new_trace, run_engine
from bench_runner.front_end import Costs, later_than, length, new_front_end, start_clients
from bench_runner.kv_cache import BLOCK, FREE, LOST, blocks_of, new_pool
from bench_runner.measurement import COMPLETED, DELAYED, TOKENS, WITH_TPOT, Recorder, new_recorder, percentile
from bench_runner.request_stream import RequestStream, SharedContents, closed_stream, longest, most_outstanding_tokens
from bench_runner.scheduler import (
    ANY_HIT,
    BLOCKS_BOUND,
    FREE_HIT,
    HIT_TOKENS,
    NUM_WAITING,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_TOKENS,
    PREEMPTIONS,
    QUERIED_TOKENS,
    SEQS_BOUND,
    TOKENS_BOUND,
    Limits,
    new_requests,
    new_step,
    number_own_contents,
)
from bench_runner.step_time import StepTable
from service.domain.candidate import Candidate
from service.domain.errors import InvalidInputError
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
class LimitsUse:
    """What a whole run, warm-up included, asked of its limits. A limit is bound if a larger one could change the run.

    blocks counts those that requests held or were checked to have room for, at most. content_lost: the last copy of
    something that could still be asked for was evicted. hit, free_hit: a prefix hit occurred; one on a block that
    nobody held at that moment, which a smaller cache might have evicted by then.
    """

    running: int
    tokens: int
    blocks: int
    running_bound: bool
    tokens_bound: bool
    blocks_bound: bool
    content_lost: bool
    hit: bool
    free_hit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one simulated run shows. Arrays hold one value per request completed in the window, in milliseconds.

    delayed counts requests of an open loop that were due in the window and found no free slot; those that are still
    without one at the end are in waiting_at_end. Their TTFT counts from when they were due.
    """

    tokens: int
    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    waiting_at_end: int
    running_at_end: int
    kv_usage_peak: float
    preemptions: int
    cached_token_ratio: float | None
    steps: int
    delayed: int
    limits_use: LimitsUse

    def ttft_percentile(self, share: float) -> float | None:
        """TTFT in milliseconds; None where nothing completed."""
        return percentile(self.ttft_ms, share)

    def tpot_percentile(self, share: float) -> float | None:
        """TPOT in milliseconds; None where no answer had a second token."""
        return percentile(self.tpot_ms, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each client of a closed loop sends, [clients] each: tokens in, tokens out, blocks of the common prefix."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    shared_blocks: NDArray[np.int64]

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Every client sends the workload's own numbers."""
        shared = int(workload.prompt_tokens * workload.shared_prefix_ratio) // BLOCK
        lengths = (workload.prompt_tokens, workload.max_new_tokens, shared)
        prompt, output, shared_blocks = (np.full(workload.concurrency, n, dtype=np.int64) for n in lengths)
        return cls(prompt=prompt, output=output, shared_blocks=shared_blocks)

    def stream(self) -> RequestStream:
        """The same as a stream: one request per client, sent again and again."""
        clients = len(self.prompt)
        prefix = np.arange(self.shared_blocks.max(), dtype=np.int64)
        return closed_stream(
            prompt=self.prompt,
            output=self.output,
            shared=SharedContents(self.shared_blocks, np.zeros(clients, dtype=np.int64), prefix),
            think_ms=np.zeros(clients),
            queue_start=np.arange(clients + 1, dtype=np.int64),
            repeats=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The timed region, in milliseconds from the start of the clients."""

    warm_up_ms: float
    length_ms: float

    @property
    def end_ms(self) -> float:
        """When the run ends."""
        return self.warm_up_ms + self.length_ms


def new_engine(
    stream: RequestStream,
    candidate: Candidate,
    *,
    kv_blocks: int,
    table: StepTable,
    settings: SimulationSettings,
    seed: int,
    trace: Trace | None = None,
) -> Engine:
    """An engine at time 0 with its clients about to start. kv_blocks: blocks of 16 tokens that the KV cache has."""
    if blocks_of(longest(stream)) > kv_blocks - 1:
        raise InvalidInputError(
            path="kv_blocks", value=kv_blocks, remedy=f"the longest request has {longest(stream)} tokens; leave it out"
        )
    count = len(stream.queue_of)
    requests = new_requests(slots=count, max_tokens=longest(stream))
    contents = number_own_contents(requests, shared_numbers=stream.shared_numbers)
    costs = Costs(settings.request_ms, settings.prompt_token_ms, settings.output_token_ms)
    engine = Engine(
        requests=requests,
        pool=new_pool(blocks=kv_blocks, contents=contents, caching=candidate.enable_prefix_caching),
        limits=Limits(candidate.max_num_seqs, candidate.max_num_batched_tokens, settings.asynchronous),
        table=table,
        front_end=new_front_end(clients=count, outstanding_tokens=most_outstanding_tokens(stream), costs=costs),
        clients=new_clients(stream),
        steps=(new_step(slots=count), new_step(slots=count)),
        host=Host(settings.host_step_ms, settings.host_sequence_ms, settings.step_jitter),
        totals=Totals(np.zeros(1, np.int64), np.zeros(len(requests.totals), np.int64)),
        trace=trace or new_trace(),
        random=np.array([seed], dtype=np.uint64),
    )
    # Arrivals of an open loop have their own times.
    ramp_ms = 0.0 if stream.open_loop else settings.ramp_ms
    starts_ms = np.array([next_uniform(engine.random) for _ in range(count)]) * ramp_ms
    order = np.argsort(starts_ms, kind="stable")
    start_clients(engine.front_end, engine.clients, engine.requests, order, starts_ms)
    return engine


def simulate(
    stream: RequestStream,
    candidate: Candidate,
    *,
    kv_blocks: int,
    table: StepTable,
    settings: SimulationSettings,
    window: Window,
    seed: int,
) -> Observed:
    """Runs one stream. kv_blocks: blocks of 16 tokens that the KV cache has. Equal arguments, equal result."""
    engine = new_engine(stream, candidate, kv_blocks=kv_blocks, table=table, settings=settings, seed=seed)
    clients = len(stream.queue_of)
    recorder = new_recorder(start_ms=window.warm_up_ms, end_ms=window.end_ms, capacity=max(1024, 4 * clients))
    return run_to_end(engine, recorder)[0]


def run_to_end(engine: Engine, recorder: Recorder) -> tuple[Observed, Recorder]:
    """Runs a new engine until the recorder's window ends: what was seen, and the recorder with its log."""
    usable = int(engine.pool.totals[FREE])
    recorder = run_engine(engine, recorder)
    totals = engine.requests.totals
    in_window = totals - engine.totals.at_start
    waiting, running = _at_end(engine, recorder.end_ms)
    queried = int(in_window[QUERIED_TOKENS])
    observed = Observed(
        tokens=int(recorder.counts[TOKENS]),
        ttft_ms=recorder.ttft_ms[: recorder.counts[COMPLETED]],
        tpot_ms=recorder.tpot_ms[: recorder.counts[WITH_TPOT]],
        waiting_at_end=waiting,
        running_at_end=running,
        kv_usage_peak=int(engine.totals.peak_blocks[0]) / usable,
        preemptions=int(in_window[PREEMPTIONS]),
        cached_token_ratio=int(in_window[HIT_TOKENS]) / queried if queried else None,
        steps=int(engine.trace.counts[STEPS]),
        delayed=int(recorder.counts[DELAYED]),
        limits_use=_limits_use(engine),
    )
    return observed, recorder


def _limits_use(engine: Engine) -> LimitsUse:
    totals = engine.requests.totals
    return LimitsUse(
        running=int(totals[PEAK_RUNNING]),
        tokens=int(totals[PEAK_TOKENS]),
        blocks=int(totals[PEAK_BLOCKS]),
        running_bound=bool(totals[SEQS_BOUND]),
        tokens_bound=bool(totals[TOKENS_BOUND]),
        blocks_bound=bool(totals[BLOCKS_BOUND]),
        content_lost=bool(engine.pool.totals[LOST]),
        hit=bool(totals[ANY_HIT]),
        free_hit=bool(totals[FREE_HIT]),
    )


def _at_end(engine: Engine, end_ms: float) -> tuple[int, int]:
    """Requests that wait and that run when the window ends. One that its client has yet to send does neither."""
    clients, front_end = engine.clients, engine.front_end
    # A send that the front end's last event caused belongs to the run, although that event may end after the window.
    unsent = later_than(front_end.sent, max(end_ms, float(front_end.free_at_ms[0])))
    sent = int(clients.busy.sum()) - unsent
    waiting = int(engine.requests.totals[NUM_WAITING]) + length(front_end.sent) - unsent + length(front_end.ready)
    return waiting + _without_slot(clients, end_ms), sent - waiting


def _without_slot(clients: Clients, end_ms: float) -> int:
    """Requests of an open loop that have arrived and that no client has taken."""
    if not clients.stream.open_loop:
        return 0
    arrived = int(np.searchsorted(clients.stream.arrival_ms, end_ms, side="left"))
    return max(arrived - int(clients.next_row[0]), 0)
