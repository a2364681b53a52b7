"""The load generator: clients in processes of their own, which measure the server, and themselves.

    run_load ── starts ──> load_worker (one or more) ── Clients ──> Connection ──> TokenStream
                                 └── LoopWatch: is it this process that is slow?

Times are ns of the monotonic clock, which all processes of a host share.
"""

import selectors
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from bench_runner.prompts import PromptSettings
from bench_runner.request_log import NEVER, Outcome, RequestLog
from bench_runner.worker_process import WorkerProcess
from service.domain.errors import InvalidInputError
from service.domain.scenario import check_float, check_int

POLL_S = 0.1
# Between the sending of the start and the start, so that every worker has read it.
LEAD_S = 0.05
WORKER_START_S = 60.0
# After the window's end.
WORKER_END_S = 10.0
STOP_S = 0.8
RECENT_S = 1.0
MOST_ERRORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """One run of load against one server. Times are in seconds from its start.

    prompt_tokens: of every prompt, exactly; its first shared_prefix_tokens are equal for all requests of a
    prefix_seed, the others are drawn anew for each. max_new_tokens: of every answer, exactly. token_ids: ids are drawn
    uniformly from low ≤ id < high. prompt_seed must differ between any two runs against one server.

    arrivals_s None is a closed loop: `clients` of them, which start at uniform random moments of the first ramp_s and
    send their next request when the last one has ended (0.1 s later if it failed). Else it is an open loop: a request
    is due at each of these moments, and at most `clients` are on their way at once; the others wait. With several
    processes each has its share of the clients and of the arrivals, so one may queue while another has a free place.

    The timed region is [warm_up_s, warm_up_s + window_s), and its end is the end of the run. A request that gets no
    byte for request_timeout_s has timed out.
    """

    base_url: str
    served_model: str
    prompt_tokens: int
    shared_prefix_tokens: int
    max_new_tokens: int
    clients: int
    arrivals_s: tuple[float, ...] | None = None
    ramp_s: float
    warm_up_s: float
    window_s: float
    prefix_seed: int
    ramp_seed: int
    prompt_seed: int
    token_ids: tuple[int, int]
    request_timeout_s: float
    processes: int = 1

    def __post_init__(self) -> None:
        check_int("prompt_tokens", self.prompt_tokens, high=10_000_000)
        check_int("shared_prefix_tokens", self.shared_prefix_tokens, low=0, high=self.prompt_tokens)
        check_int("max_new_tokens", self.max_new_tokens, high=10_000_000)
        check_int("clients", self.clients, high=100_000)
        check_int("processes", self.processes, high=256)
        check_int("token_ids", self.token_ids[1] - self.token_ids[0], high=10_000_000)
        for name in ("prefix_seed", "ramp_seed", "prompt_seed"):
            check_int(name, getattr(self, name), low=0, high=2**63 - 1)
        check_float("ramp_s", self.ramp_s, low=0.0, high=3600.0)
        check_float("warm_up_s", self.warm_up_s, low=0.0, high=24 * 3600.0)
        check_float("window_s", self.window_s, low=0.01, high=24 * 3600.0)
        check_float("request_timeout_s", self.request_timeout_s, low=0.01, high=24 * 3600.0)
        for moment_s in (self.arrivals_s or ())[:1]:
            check_float("arrivals_s", moment_s, low=0.0, high=24 * 3600.0)
        if list(self.arrivals_s or ()) != sorted(self.arrivals_s or ()):
            raise InvalidInputError(path="arrivals_s", value=self.arrivals_s, remedy="give them in ascending order")
        parts = urlsplit(self.base_url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path:
            raise InvalidInputError(path="base_url", value=self.base_url, remedy="give it as http://HOST:PORT")

    @property
    def host(self) -> str:
        """Of base_url."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def port(self) -> int:
        """Of base_url."""
        return urlsplit(self.base_url).port or 0

    @property
    def length_s(self) -> float:
        """From the start to the window's end."""
        return self.warm_up_s + self.window_s

    def prompts(self) -> PromptSettings:
        """What a worker writes its requests from."""
        return PromptSettings(
            served_model=self.served_model,
            host=urlsplit(self.base_url).netloc,
            prompt_tokens=self.prompt_tokens,
            shared_prefix_tokens=self.shared_prefix_tokens,
            max_new_tokens=self.max_new_tokens,
            token_ids=self.token_ids,
            prefix_seed=self.prefix_seed,
            prompt_seed=self.prompt_seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Where a run is. tokens_per_s: over the last second or so; errors: requests that have failed."""

    elapsed_s: float
    tokens_per_s: float
    in_flight: int
    completed: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How busy the load generator was in the timed region; None if the run ended before it.

    loop_lag: how late a timer fired in the event loop, sampled over time in all processes, so that one stall of 1 s
    weighs as much as it lasted. cpu_share: CPU seconds ÷ wall seconds of the busiest process. cpu_seconds: of all.
    """

    loop_lag_p95_ms: float | None
    loop_lag_max_ms: float | None
    cpu_share: float | None
    cpu_seconds: float | None


def client_saturated(client: ClientLoad, *, max_lag_p95_ms: float, max_cpu_share: float) -> bool:
    """Whether the client may have measured itself rather than the server."""
    lag, share = client.loop_lag_p95_ms, client.cpu_share
    return (lag is not None and lag > max_lag_p95_ms) or (share is not None and share > max_cpu_share)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadResult:
    """What a run of load has found.

    start_ns: the run's start on the monotonic clock. tokens_in_window: received in the timed region. At the run's end
    waiting_at_end requests had been sent and had no token, running_at_end had one but not the last. delayed (open
    loop): due in the timed region while no place was free. stopped: should_stop ended it. gave_up: why the server
    ended it early; lost: why a worker of ours did not last. None if that did not happen.
    """

    start_ns: int
    log: RequestLog
    tokens_in_window: int
    waiting_at_end: int
    running_at_end: int
    delayed: int
    client: ClientLoad
    stopped: bool
    gave_up: str | None
    lost: str | None


def run_load(
    spec: LoadSpec, *, should_stop: Callable[[], bool], on_progress: Callable[[LoadProgress], None]
) -> LoadResult:
    """Runs the load to the end of its window, or until should_stop or until the server is gone for 3 s.

    Blocks; should_stop and on_progress are called from here, several times a second. Whatever the server does is in
    the result, never an exception; so is a worker process that dies.
    """
    count = min(spec.processes, spec.clients)
    messages = [{"spec": asdict(spec), "index": index, "count": count} for index in range(count)]
    workers = [WorkerProcess(message) for message in messages]
    try:
        return _Run(spec, workers, on_progress=on_progress).result(should_stop)
    finally:
        for worker in workers:
            worker.close()


class _Run:
    """The worker processes of one run, from their start to their last word."""

    def __init__(
        self, spec: LoadSpec, workers: list[WorkerProcess], *, on_progress: Callable[[LoadProgress], None]
    ) -> None:
        self._spec = spec
        self._workers = workers
        self._on_progress = on_progress
        self._start_ns: int | None = None
        self._deadline_ns = time.monotonic_ns() + round(1e9 * WORKER_START_S)
        self._stopped = False
        self._gave_up: str | None = None
        self._received: deque[tuple[int, int]] = deque([(time.monotonic_ns(), 0)])

    def result(self, should_stop: Callable[[], bool]) -> LoadResult:
        """Returns when every worker has ended, or is lost."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.fileno(), selectors.EVENT_READ, worker)
            while any(not worker.over for worker in self._workers):
                for key, _ in selector.select(POLL_S):
                    worker = key.data
                    worker.read()
                    if worker.over:
                        selector.unregister(key.fileobj)
                now_ns = time.monotonic_ns()
                self._advance(now_ns, stop=should_stop())
                self._report(now_ns)
        return self._summary()

    def _advance(self, now_ns: int, *, stop: bool) -> None:
        reasons = [reason for worker in self._workers if (reason := worker.lost or worker.progress.get("gave_up"))]
        if self._stopped or self._gave_up is not None:
            pass
        elif stop or reasons:
            self._stopped, self._gave_up = stop, None if stop else reasons[0]
            self._deadline_ns = now_ns + round(1e9 * (STOP_S if stop else WORKER_END_S))
            for worker in self._workers:
                worker.stop()
        elif self._start_ns is None and all(worker.ready for worker in self._workers):
            self._start_ns = now_ns + round(1e9 * LEAD_S)
            self._deadline_ns = self._start_ns + round(1e9 * (self._spec.length_s + WORKER_END_S))
            for worker in self._workers:
                worker.tell({"start_ns": self._start_ns})
        if now_ns > self._deadline_ns:
            for worker in self._workers:
                if not worker.over:
                    worker.lose("a load worker did not end in time")

    def _report(self, now_ns: int) -> None:
        if self._start_ns is None:
            return

        def total(name: str) -> int:
            return sum(worker.progress.get(name, 0) for worker in self._workers)

        self._received.append((now_ns, total("tokens")))
        while len(self._received) > 2 and now_ns - self._received[0][0] > RECENT_S * 1e9:
            self._received.popleft()
        since_ns, before = self._received[0]
        self._on_progress(
            LoadProgress(
                elapsed_s=(now_ns - self._start_ns) / 1e9,
                tokens_per_s=1e9 * (self._received[-1][1] - before) / (now_ns - since_ns),
                in_flight=total("in_flight"),
                completed=total("completed"),
                errors=total("errors"),
            )
        )

    def _summary(self) -> LoadResult:
        ends = [worker.end for worker in self._workers if worker.end is not None]
        texts = dict.fromkeys(text for end in ends for text in end["errors"])
        log = RequestLog.of(np.concatenate([worker.rows for worker in self._workers]), tuple(texts)[:MOST_ERRORS])
        unfinished = (log.outcome == Outcome.UNFINISHED) & (log.sent_ns != NEVER)
        waiting = int(np.sum(unfinished & (log.first_ns == NEVER)))
        lost = next((worker.lost for worker in self._workers if worker.lost is not None), None)
        return LoadResult(
            start_ns=time.monotonic_ns() if self._start_ns is None else self._start_ns,
            log=log,
            tokens_in_window=sum(end["tokens_in_window"] for end in ends),
            waiting_at_end=waiting,
            running_at_end=int(np.sum(unfinished)) - waiting,
            delayed=sum(end["delayed"] for end in ends),
            client=_client_load([end["watch"] for end in ends]),
            stopped=self._stopped,
            gave_up=None if self._gave_up == lost else self._gave_up,
            lost=None if self._stopped else lost,
        )


def _client_load(watches: list[dict[str, Any]]) -> ClientLoad:
    lags_ms = np.array([lag for watch in watches for lag in watch["lags_ms"]])
    measured = [watch for watch in watches if watch["cpu_s"] is not None]
    return ClientLoad(
        loop_lag_p95_ms=float(np.percentile(lags_ms, 95)) if len(lags_ms) else None,
        loop_lag_max_ms=float(np.max(lags_ms)) if len(lags_ms) else None,
        cpu_share=max((watch["cpu_s"] / watch["wall_s"] for watch in measured), default=None),
        cpu_seconds=sum(watch["cpu_s"] for watch in measured) if measured else None,
    )
