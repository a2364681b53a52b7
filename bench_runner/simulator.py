"""One cell on a virtual clock: what goes into the engine's loop and what comes out of it."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import new_clients, next_uniform, send
from bench_runner.engine import STEPS, Engine, Host, Totals, Trace, new_trace, run_engine
from bench_runner.front_end import Costs, length, new_front_end, push
from bench_runner.kv_cache import BLOCK, FREE, new_pool
from bench_runner.measurement import COMPLETED, TOKENS, WITH_TPOT, new_recorder, percentile
from bench_runner.scheduler import (
    HIT_TOKENS,
    NUM_WAITING,
    PREEMPTIONS,
    QUERIED_TOKENS,
    Limits,
    new_requests,
    new_step,
    share_prefix,
)
from bench_runner.step_time import StepTable
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

    @property
    def longest(self) -> int:
        """Tokens of the longest request when it ends."""
        return int((self.prompt + self.output).max())


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
    load: Load,
    candidate: Candidate,
    *,
    kv_blocks: int,
    table: StepTable,
    settings: SimulationSettings,
    seed: int,
    trace: Trace | None = None,
) -> Engine:
    """An engine at time 0 with its clients about to start. kv_blocks: blocks of 16 tokens that the KV cache has."""
    count = len(load.prompt)
    requests = new_requests(slots=count, max_tokens=load.longest)
    requests.prompt[:], requests.output[:] = load.prompt, load.output
    contents = share_prefix(requests, load.shared_blocks)
    costs = Costs(settings.request_ms, settings.prompt_token_ms, settings.output_token_ms)
    engine = Engine(
        requests=requests,
        pool=new_pool(blocks=kv_blocks, contents=contents, caching=candidate.enable_prefix_caching),
        limits=Limits(candidate.max_num_seqs, candidate.max_num_batched_tokens, settings.asynchronous),
        table=table,
        front_end=new_front_end(clients=count, outstanding_tokens=int(load.output.sum()), costs=costs),
        clients=new_clients(count=count),
        steps=(new_step(slots=count), new_step(slots=count)),
        host=Host(settings.host_step_ms, settings.host_sequence_ms, settings.step_jitter),
        totals=Totals(np.zeros(1, np.int64), np.zeros(len(requests.totals), np.int64)),
        trace=trace or new_trace(),
        random=np.array([seed], dtype=np.uint64),
    )
    starts_ms = np.array([next_uniform(engine.random) for _ in range(count)]) * settings.ramp_ms
    for client in np.argsort(starts_ms, kind="stable"):
        send(engine.clients, client, starts_ms[client])
        push(engine.front_end.sent, client, starts_ms[client], False)
    return engine


def simulate(
    load: Load,
    candidate: Candidate,
    *,
    kv_blocks: int,
    table: StepTable,
    settings: SimulationSettings,
    window: Window,
    seed: int,
) -> Observed:
    """Runs one closed loop. kv_blocks: blocks of 16 tokens that the KV cache has. Equal arguments, equal result."""
    engine = new_engine(load, candidate, kv_blocks=kv_blocks, table=table, settings=settings, seed=seed)
    usable = int(engine.pool.totals[FREE])
    clients = len(load.prompt)
    recorder = run_engine(
        engine, new_recorder(start_ms=window.warm_up_ms, end_ms=window.end_ms, capacity=max(1024, 4 * clients))
    )
    totals = engine.requests.totals
    in_window = totals - engine.totals.at_start
    waiting = int(totals[NUM_WAITING]) + length(engine.front_end.sent) + length(engine.front_end.ready)
    queried = int(in_window[QUERIED_TOKENS])
    return Observed(
        tokens=int(recorder.counts[TOKENS]),
        ttft_ms=recorder.ttft_ms[: recorder.counts[COMPLETED]],
        tpot_ms=recorder.tpot_ms[: recorder.counts[WITH_TPOT]],
        waiting_at_end=waiting,
        running_at_end=clients - waiting,
        kv_usage_peak=int(engine.totals.peak_blocks[0]) / usable,
        preemptions=int(in_window[PREEMPTIONS]),
        cached_token_ratio=int(in_window[HIT_TOKENS]) / queried if queried else None,
        steps=int(engine.trace.counts[STEPS]),
    )
