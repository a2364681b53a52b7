"""How a cell is measured on a real server. `Protocol` is the settings object and its documentation is the protocol."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Self

from bench_runner.plan import Plan
from service.domain.scenario import check_float, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Measures one configuration of one model: a `vllm serve` of its own, started for it, ended after it.

    Scope. What a client on the same host sees of a fresh server under one announced workload. The cells of one
    (model, configuration) run on one server, one after the other; before each repetition the server is idle and its
    prefix cache is reset (a server that cannot reset it is used on, with a warning: shared parts are new each time).

    Load. A closed loop of `concurrency` clients, each sending its next request when the last one has ended. Clients
    start at random moments of the first `ramp_s` of the warm-up, so that they do not move in lockstep. Prompts are
    random token ids in [token_id_low, token_id_high): the shared prefix is one draw per repetition, everything after
    it is drawn anew for every request. min_tokens = max_tokens and ignore_eos: every answer has its full length. No
    tokeniser runs.

    Clocks. CLOCK_MONOTONIC of this host, read when a request is handed to the socket and when bytes arrive. The
    processes that send the load raise their priority where they may: the clock must not queue behind the server.

    Timed region. [start + warm_up_s, start + warm_up_s + window_s). Throughput counts tokens (never chunks) that
    arrive in it; percentiles are over requests whose last token arrives in it; error_rate is the requests sent since
    its start that failed ÷ those and the completed ones.
    Repetitions are pooled; how much they spread stands beside the row.

    Stopping rule. The window's end, nothing else: no repetition is added or dropped after a look at its result.

    Randomness. A seed per source, so that one can be changed alone: ramp_seed for the starts (equal for all
    configurations of a scenario), prefix_seed for the shared part, prompt_seed for the fresh parts. To the last two a
    new nonce is added for each repetition and recorded with it: no prompt is ever sent twice to one server.

    Validity. A repetition whose client lagged (event loop p95 above max_loop_lag_p95_ms, or a process busy for more
    than max_client_cpu of the window) is `client_saturated`; one whose requests found more of their prompt in the
    prefix cache than designed, by more than cached_ratio_tolerance, is `cached_tokens_above_design`. Such rows are
    kept and never become labels.

    Failures. A server that does not start within start_deadline_s, dies, from which the timed region got nothing but
    failures, that is still busy idle_deadline_s after its clients left, or that then does not answer one token within
    request_timeout_s: the cell is tried again on a new server, max_attempts times in all, then it is a failed row.
    Nothing completed although the server is well is a failed row at once.

    Non-goals. Production traffic, quality of answers, networks between hosts, long-running servers, more than one GPU.
    """

    warm_up_s: float
    window_s: float
    ramp_seed: int
    prefix_seed: int
    prompt_seed: int
    ramp_s: float = 1.0
    repetitions: int = 1
    token_id_low: int = 1_000
    token_id_high: int = 31_000
    start_deadline_s: float = 900.0
    request_timeout_s: float = 120.0
    idle_deadline_s: float = 60.0
    stop_grace_s: float = 8.0
    metrics_interval_s: float = 0.5
    max_attempts: int = 3
    max_loop_lag_p95_ms: float = 4.0
    max_client_cpu: float = 0.85
    cached_ratio_tolerance: float = 0.02
    client_processes: int = 1

    def __post_init__(self) -> None:
        check_float("warm_up_s", self.warm_up_s, low=0.0, high=3600.0)
        check_float("window_s", self.window_s, low=0.1, high=3600.0)
        check_float("ramp_s", self.ramp_s, low=0.0, high=self.warm_up_s)
        check_int("repetitions", self.repetitions, high=1000)
        check_int("token_id_high", self.token_id_high, low=self.token_id_low + 1, high=10_000_000)
        check_int("max_attempts", self.max_attempts, high=100)
        check_int("client_processes", self.client_processes, high=256)
        check_float("start_deadline_s", self.start_deadline_s, low=0.1, high=24 * 3600.0)
        check_float("request_timeout_s", self.request_timeout_s, low=0.1, high=24 * 3600.0)
        check_float("stop_grace_s", self.stop_grace_s, low=0.1, high=15.0)

    @classmethod
    def of(cls, plan: Plan, **settings: Any) -> Self:
        """The plan's timed region and seeds, and the other settings."""
        seeds = {f"{name}_seed": _seed(plan.seed, name) for name in ("ramp", "prefix", "prompt")}
        settings.setdefault("ramp_s", min(1.0, plan.warm_up_s))
        return cls(warm_up_s=plan.warm_up_s, window_s=plan.window_s, **seeds, **settings)

    def digest(self) -> str:
        """Twelve hex digits that name this protocol in a row."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:12]

    @property
    def cell_s(self) -> float:
        """Seconds that one cell takes if nothing goes wrong, without the wait for an idle server."""
        return self.repetitions * (self.warm_up_s + self.window_s)


def _seed(seed: int, source: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}|{source}".encode()).digest()[:6], "big")
