"""One repetition of a cell: its load, and what came of it in the timed region."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.engine_metrics import EngineObserved, EngineSampler, observe
from bench_runner.load import LoadProgress, LoadResult, LoadSpec, client_saturated, run_load
from bench_runner.measurement import percentile
from bench_runner.protocol import Protocol
from bench_runner.request_log import NEVER, Outcome, RequestLog
from bench_runner.server import EngineServer
from bench_runner.server_failure import Cause, ServerFailureError, log_tail
from bench_runner.stop import Stop
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload

LEAST_SAMPLES = 5
# Of a window in which nothing was completed: no token for so much of its end is a server that hangs, not a slow one.
SILENT_SHARE = 1 / 3
CAUSE_OF_OUTCOME: dict[Outcome, Cause] = {
    Outcome.REFUSED: "requests_refused",
    Outcome.HTTP_ERROR: "http_error",
    Outcome.GARBAGE: "garbage_answer",
    Outcome.CUT: "answer_cut",
    Outcome.TIMED_OUT: "server_hung",
    Outcome.NO_TOKENS: "no_tokens",
    Outcome.SHORT: "wrong_length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One timed region. Arrays hold one value per request completed in it, in milliseconds."""

    seeds: dict[str, int]
    tokens: int
    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]
    queueing_ms: NDArray[np.float64]
    failed: int
    waiting_at_end: int
    running_at_end: int
    delayed: int
    cached_token_ratio: float | None
    lockstep: float | None
    loop_lag_p95_ms: float | None
    client_cpu: float | None
    engine: EngineObserved
    invalid_cause: str | None
    errors: tuple[str, ...]

    def to_json(self, *, window_s: float) -> dict[str, Any]:
        """What a row's run record keeps of it."""
        return {
            "seeds": self.seeds,
            "output_throughput_tps": self.tokens / window_s,
            "completed": len(self.ttft_ms),
            "failed": self.failed,
            "ttft_p50_ms": percentile(self.ttft_ms, 50),
            "ttft_p95_ms": percentile(self.ttft_ms, 95),
            "tpot_p50_ms": percentile(self.tpot_ms, 50),
            "tpot_p95_ms": percentile(self.tpot_ms, 95),
            "client_queueing_p95_ms": percentile(self.queueing_ms, 95),
            "client_loop_lag_p95_ms": self.loop_lag_p95_ms,
            "client_cpu": self.client_cpu,
            "delayed": self.delayed,
            "waiting_at_end": self.waiting_at_end,
            "running_at_end": self.running_at_end,
            "cached_token_ratio": self.cached_token_ratio,
            "lockstep": self.lockstep,
            "engine": asdict(self.engine),
            "invalid_cause": self.invalid_cause,
            "errors": list(self.errors),
        }


def load_spec(
    server: EngineServer, workload: Workload, *, protocol: Protocol, scenario_seed: int, repetition: int
) -> LoadSpec:
    """The load of one repetition: starts as in every configuration of the scenario, prompts as never before."""
    nonce = secrets.randbits(48)
    return LoadSpec(
        base_url=server.base_url,
        served_model=server.served_model,
        prompt_tokens=workload.prompt_tokens,
        shared_prefix_tokens=int(workload.prompt_tokens * workload.shared_prefix_ratio),
        max_new_tokens=workload.max_new_tokens,
        clients=workload.concurrency,
        ramp_s=protocol.ramp_s,
        warm_up_s=protocol.warm_up_s,
        window_s=protocol.window_s,
        ramp_seed=_mixed(protocol.ramp_seed, scenario_seed, repetition),
        prefix_seed=_mixed(protocol.prefix_seed, scenario_seed, nonce),
        prompt_seed=_mixed(protocol.prompt_seed, scenario_seed, nonce),
        token_ids=(protocol.token_id_low, protocol.token_id_high),
        request_timeout_s=protocol.request_timeout_s,
        processes=min(protocol.client_processes, workload.concurrency),
    )


def _mixed(*numbers: int) -> int:
    """One 48-bit seed from several."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, numbers)).encode()).digest()[:6], "big")


def measure_once(
    server: EngineServer,
    spec: LoadSpec,
    workload: Workload,
    *,
    protocol: Protocol,
    stop: Stop,
    on_progress: Callable[[LoadProgress], None],
) -> Repetition:
    """Sends one load. ServerFailureError if the server died, hung, or answered nothing that could be counted."""
    interval_s = min(protocol.metrics_interval_s, protocol.window_s / LEAST_SAMPLES)
    with EngineSampler(server.base_url, interval_s=interval_s) as sampler:
        load = run_load(
            spec, should_stop=lambda: stop.requested or server.exit_code is not None, on_progress=on_progress
        )
    stop.check()
    start_s = load.start_ns / 1e9 + protocol.warm_up_s
    engine = observe(sampler.samples, start_s=start_s, end_s=start_s + protocol.window_s)
    region = (round(start_s * 1e9), round((start_s + protocol.window_s) * 1e9))
    refuse_dead(server, load, region)
    completed = _completed_in(load.log, region)
    ratio = cached_ratio(load.log, completed, prompt_tokens=workload.prompt_tokens)
    if ratio is None:
        ratio = engine.cached_token_ratio
    log = load.log
    tpot_ms = log.tpot_ms()[completed]
    return Repetition(
        seeds={"ramp": spec.ramp_seed, "prefix": spec.prefix_seed, "prompt": spec.prompt_seed},
        tokens=load.tokens_in_window,
        ttft_ms=log.ttft_ms(from_due=spec.arrivals_s is not None)[completed],
        tpot_ms=tpot_ms[~np.isnan(tpot_ms)],
        queueing_ms=log.client_queue_ms()[completed],
        failed=int(np.sum(_failed_in(log, region))),
        waiting_at_end=load.waiting_at_end,
        running_at_end=load.running_at_end,
        delayed=load.delayed,
        cached_token_ratio=ratio,
        lockstep=lockstep(log.sent_ns[completed], log.last_ns[completed]),
        loop_lag_p95_ms=load.client.loop_lag_p95_ms,
        client_cpu=load.client.cpu_share,
        engine=engine,
        invalid_cause=_invalid_cause(load, ratio, workload, protocol=protocol),
        errors=log.errors,
    )


def cached_ratio(log: RequestLog, chosen: NDArray[np.bool_], *, prompt_tokens: int) -> float | None:
    """Share of the prompts of the chosen requests that came from the prefix cache; None if the server does not say."""
    told = chosen & (log.cached_tokens >= 0)
    return float(np.mean(log.cached_tokens[told])) / prompt_tokens if told.any() else None


def lockstep(sent_ns: NDArray[np.int64], last_ns: NDArray[np.int64]) -> float | None:
    """How much clients move as one: 1 if all answers end at the same phase of a request's length, near 0 if at any.

    The length of the mean of exp(2πi · end ÷ mean length) over the completed requests [n] (mean resultant length,
    Mardia and Jupp, Directional Statistics, 2000); None for fewer than two.
    """
    if len(last_ns) < 2:
        return None
    period_ns = float(np.mean(last_ns - sent_ns))
    phases = 2j * np.pi * ((last_ns - last_ns[0]) / period_ns)
    return float(abs(np.mean(np.exp(phases))))


def designed_ratio(workload: Workload) -> float:
    """Share of the prompt that requests have in common, in whole tokens."""
    return int(workload.prompt_tokens * workload.shared_prefix_ratio) / workload.prompt_tokens


def _invalid_cause(load: LoadResult, ratio: float | None, workload: Workload, *, protocol: Protocol) -> str | None:
    if ratio is not None and ratio > designed_ratio(workload) + protocol.cached_ratio_tolerance:
        return "cached_tokens_above_design"
    lag_ms, cpu = protocol.max_loop_lag_p95_ms, protocol.max_client_cpu
    if client_saturated(load.client, max_lag_p95_ms=lag_ms, max_cpu_share=cpu):
        return "client_saturated"
    return None


def _completed_in(log: RequestLog, region: tuple[int, int]) -> NDArray[np.bool_]:
    return np.asarray((log.outcome == Outcome.COMPLETED) & (log.last_ns >= region[0]) & (log.last_ns < region[1]))


def _failed(log: RequestLog) -> NDArray[np.bool_]:
    return np.asarray((log.outcome != Outcome.COMPLETED) & (log.outcome != Outcome.UNFINISHED))


def _failed_in(log: RequestLog, region: tuple[int, int]) -> NDArray[np.bool_]:
    """Those sent in the region; one that never got as far, because nobody let it connect, was due in it."""
    begun_ns = np.where(log.sent_ns == NEVER, log.due_ns, log.sent_ns)
    return np.asarray(_failed(log) & (begun_ns >= region[0]))


def died(server: EngineServer) -> ServerFailureError:
    """The failure of a server that has ended."""
    return ServerFailureError("server_died", f"the server ended with code {server.exit_code}", log_tail(server.log))


def refuse_dead(server: EngineServer, load: LoadResult, region: tuple[int, int]) -> None:
    """A timed region from which nothing can be counted is a failure, named after what its requests met most.

    ArtefactError if it was the load generator that failed: no configuration is to blame for that.
    """
    if server.exit_code is not None:
        raise died(server)
    if load.lost is not None:
        raise ArtefactError(f"{load.lost}; this is a mistake of the load generator, rows so far are kept")
    log = load.log
    if load.gave_up is None and _completed_in(log, region).any():
        return
    failed = _failed_in(log, region) if load.gave_up is None else _failed(log)
    if failed.any():
        worst = Outcome(Counter(log.outcome[failed].tolist()).most_common(1)[0][0])
        detail = f"{int(failed.sum())} requests ended as {worst.name}"
        detail += f", the first with {log.errors[0]!r}" if log.errors else ""
        raise ServerFailureError(CAUSE_OF_OUTCOME[worst], detail, log_tail(server.log))
    if load.gave_up is not None:
        raise ServerFailureError("requests_refused", load.gave_up, log_tail(server.log))
    silent_s = (region[1] - max(int(log.last_ns.max(initial=NEVER)), load.start_ns)) / 1e9
    if silent_s > SILENT_SHARE * (region[1] - region[0]) / 1e9:
        raise ServerFailureError(
            "server_hung", f"no request got a token in the last {silent_s:.1f} s", log_tail(server.log)
        )
