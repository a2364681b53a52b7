"""One cell on a server that is ready: load, what came of it, and what the server said meanwhile."""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.engine_metrics import EngineObserved, EngineSampler, observe, read_sample
from bench_runner.load import LoadProgress, LoadResult, LoadSpec, run_load
from bench_runner.measurement import percentile
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.request_log import Outcome, RequestLog
from bench_runner.server import EngineServer
from bench_runner.server_failure import Cause, ServerFailureError, log_tail
from bench_runner.stop import Stop
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.scenario import Workload

CAUSE_OF_OUTCOME: dict[Outcome, Cause] = {
    Outcome.REFUSED: "requests_refused",
    Outcome.HTTP_ERROR: "http_error",
    Outcome.GARBAGE: "garbage_answer",
    Outcome.CUT: "answer_cut",
    Outcome.TIMED_OUT: "server_hung",
    Outcome.NO_TOKENS: "no_tokens",
    Outcome.SHORT: "wrong_length",
}
SECONDS_BETWEEN_IDLE_CHECKS = 0.2


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
    loop_lag_p95_ms: float
    client_cpu: float
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
            "engine": asdict(self.engine),
            "invalid_cause": self.invalid_cause,
            "errors": list(self.errors),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """A row and how it came about."""

    result: CellResult
    run: dict[str, Any]


def measure_cell(
    server: EngineServer,
    key: CellKey,
    *,
    plan: Plan,
    protocol: Protocol,
    provenance: Provenance,
    stop: Stop,
    on_progress: Callable[[LoadProgress], None],
) -> MeasuredCell:
    """Measures all repetitions. ServerFailureError if this server cannot be used on; InterruptedRunError on a stop."""
    workload = plan.workload(key)
    repetitions, warnings = [], []
    for index in range(protocol.repetitions):
        wait_idle(server, deadline_s=protocol.idle_deadline_s, stop=stop)
        if not server.reset_prefix_cache():
            warnings.append("the server has no /reset_prefix_cache: old prefixes stay in its cache until evicted")
        spec = load_spec(server, workload, protocol=protocol, scenario_seed=plan.scenario_seed(key), repetition=index)
        repetitions.append(measure_once(server, spec, workload, protocol=protocol, stop=stop, on_progress=on_progress))
    missing = sorted({name for repetition in repetitions for name in repetition.engine.missing})
    warnings += [f"/metrics has no {name}" for name in missing]
    return MeasuredCell(
        result=_row(key, workload, repetitions, plan=plan, provenance=provenance),
        run=_run_record(repetitions, workload, plan=plan, protocol=protocol, warnings=sorted(set(warnings))),
    )


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
    with EngineSampler(server.base_url, interval_s=protocol.metrics_interval_s) as sampler:
        load = run_load(
            spec, should_stop=lambda: stop.requested or server.exit_code is not None, on_progress=on_progress
        )
    stop.check()
    _refuse_dead(server, load)
    start_s = load.start_ns / 1e9 + protocol.warm_up_s
    engine = observe(sampler.samples, start_s=start_s, end_s=start_s + protocol.window_s)
    region = (round(start_s * 1e9), round((start_s + protocol.window_s) * 1e9))
    completed = _completed_in(load.log, region)
    ratio = cached_ratio(load.log, completed, prompt_tokens=workload.prompt_tokens)
    log = load.log
    gaps = log.tokens[completed] - log.first_chunk_tokens[completed]
    times = (log.last_ns[completed] - log.first_ns[completed])[gaps > 0] / 1e6
    return Repetition(
        seeds={"ramp": spec.ramp_seed, "prefix": spec.prefix_seed, "prompt": spec.prompt_seed},
        tokens=load.tokens_in_window,
        ttft_ms=(log.first_ns - (log.sent_ns if spec.arrivals_s is None else log.due_ns))[completed] / 1e6,
        tpot_ms=times / gaps[gaps > 0],
        queueing_ms=(log.sent_ns - log.due_ns)[completed] / 1e6,
        failed=int(np.sum(_failed(log) & (log.sent_ns >= region[0]))),
        waiting_at_end=load.waiting_at_end,
        running_at_end=load.running_at_end,
        delayed=load.delayed,
        cached_token_ratio=ratio,
        loop_lag_p95_ms=load.client.loop_lag_p95_ms,
        client_cpu=load.client.cpu_share,
        engine=engine,
        invalid_cause=_invalid_cause(load, ratio, workload, protocol=protocol),
        errors=log.errors,
    )


def wait_idle(server: EngineServer, *, deadline_s: float, stop: Stop) -> None:
    """Returns when the server runs and queues nothing; ServerFailureError if that does not happen in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        stop.check()
        if server.exit_code is not None:
            raise _died(server)
        sample = read_sample(server.base_url)
        # A server that does not say cannot be waited for.
        if sample is not None and sample.idle is not False:
            return
        time.sleep(SECONDS_BETWEEN_IDLE_CHECKS)
    raise ServerFailureError(
        "server_hung", f"still busy {deadline_s:g} s after the last request was cut", log_tail(server.log)
    )


def cached_ratio(log: RequestLog, chosen: NDArray[np.bool_], *, prompt_tokens: int) -> float | None:
    """Share of the prompts of the chosen requests that came from the prefix cache; None if the server does not say."""
    told = chosen & (log.cached_tokens >= 0)
    return float(np.mean(log.cached_tokens[told])) / prompt_tokens if told.any() else None


def designed_ratio(workload: Workload) -> float:
    """Share of the prompt that requests have in common, in whole tokens."""
    return int(workload.prompt_tokens * workload.shared_prefix_ratio) / workload.prompt_tokens


def _invalid_cause(load: LoadResult, ratio: float | None, workload: Workload, *, protocol: Protocol) -> str | None:
    if load.client.saturated(max_lag_p95_ms=protocol.max_loop_lag_p95_ms, max_cpu_share=protocol.max_client_cpu):
        return "client_saturated"
    if ratio is not None and ratio > designed_ratio(workload) + protocol.cached_ratio_tolerance:
        return "cached_tokens_above_design"
    return None


def _completed_in(log: RequestLog, region: tuple[int, int]) -> NDArray[np.bool_]:
    return (log.outcome == Outcome.COMPLETED) & (log.last_ns >= region[0]) & (log.last_ns < region[1])


def _failed(log: RequestLog) -> NDArray[np.bool_]:
    return (log.outcome != Outcome.COMPLETED) & (log.outcome != Outcome.UNFINISHED)


def _died(server: EngineServer) -> ServerFailureError:
    return ServerFailureError("server_died", f"the server ended with code {server.exit_code}", log_tail(server.log))


def _refuse_dead(server: EngineServer, load: LoadResult) -> None:
    """A run from which nothing can be counted is a failure of the server, named after what its requests met most."""
    if server.exit_code is not None:
        raise _died(server)
    log, failed = load.log, _failed(load.log)
    if load.gave_up is None and (log.outcome == Outcome.COMPLETED).any():
        return
    if failed.any():
        worst = Outcome(Counter(log.outcome[failed].tolist()).most_common(1)[0][0])
        detail = f"{int(failed.sum())} requests ended as {worst.name}"
        detail += f", the first with {log.errors[0]!r}" if log.errors else ""
        raise ServerFailureError(CAUSE_OF_OUTCOME[worst], detail, log_tail(server.log))
    if load.gave_up is not None:
        raise ServerFailureError("requests_refused", load.gave_up, log_tail(server.log))
    if not log.tokens.any():
        raise ServerFailureError("server_hung", "no request got a single token", log_tail(server.log))


def _row(
    key: CellKey, workload: Workload, repetitions: list[Repetition], *, plan: Plan, provenance: Provenance
) -> CellResult:
    """Repetitions pooled: tokens over all windows, percentiles over all requests."""
    ttft_ms = np.concatenate([repetition.ttft_ms for repetition in repetitions])
    tpot_ms = np.concatenate([repetition.tpot_ms for repetition in repetitions])
    failed, completed = sum(repetition.failed for repetition in repetitions), len(ttft_ms)
    error_rate = failed / (failed + completed) if failed + completed else 1.0
    ok = completed > 0
    ttft_p95_ms, tpot_p95_ms = percentile(ttft_ms, 95), percentile(tpot_ms, 95)
    engines = [repetition.engine for repetition in repetitions]
    ratios = [r.cached_token_ratio for r in repetitions if r.cached_token_ratio is not None]
    preemptions = [engine.preemptions for engine in engines if engine.preemptions is not None]
    return CellResult(
        key=key,
        workload=workload,
        plan_sha256=plan.sha256,
        provenance=provenance,
        status="ok" if ok else "failed",
        failure_cause=None if ok else "no_request_completed",
        completed=completed,
        waiting_at_end=max(repetition.waiting_at_end for repetition in repetitions),
        running_at_end=max(repetition.running_at_end for repetition in repetitions),
        error_rate=error_rate,
        output_throughput_tps=sum(r.tokens for r in repetitions) / (plan.window_s * len(repetitions)) if ok else 0.0,
        ttft_p50_ms=percentile(ttft_ms, 50),
        ttft_p95_ms=ttft_p95_ms,
        tpot_p50_ms=percentile(tpot_ms, 50),
        tpot_p95_ms=tpot_p95_ms,
        kv_usage_peak=max((e.kv_usage_peak for e in engines if e.kv_usage_peak is not None), default=None),
        preemptions=sum(preemptions) if preemptions else None,
        cached_token_ratio=sum(ratios) / len(ratios) if ratios else None,
        slo_met=ok and plan.slo.met(ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=tpot_p95_ms, error_rate=error_rate),
    )


def _run_record(
    repetitions: list[Repetition], workload: Workload, *, plan: Plan, protocol: Protocol, warnings: list[str]
) -> dict[str, Any]:
    """Beside the row: validity, spread, design, and each repetition."""
    each = [repetition.to_json(window_s=plan.window_s) for repetition in repetitions]
    return {
        "protocol": protocol.digest(),
        "loop": "closed",
        "repetitions": len(each),
        "invalid_cause": next((r.invalid_cause for r in repetitions if r.invalid_cause is not None), None),
        "spread": {
            name: _spread([item[name] for item in each])
            for name in ("output_throughput_tps", "ttft_p50_ms", "ttft_p95_ms", "tpot_p95_ms")
        },
        "cached_token_ratio_designed": designed_ratio(workload),
        "warnings": warnings,
        "each": each,
    }


def _spread(values: list[float | None]) -> float | None:
    """Largest minus smallest; None with fewer than two values: one repetition says nothing about spread."""
    numbers = [value for value in values if value is not None]
    return max(numbers) - min(numbers) if len(numbers) > 1 else None


def failed_cell(key: CellKey, failure: ServerFailureError, *, plan: Plan, provenance: Provenance) -> MeasuredCell:
    """The row of a cell that no server could measure, with the end of the last server's log."""
    result = CellResult(
        key=key,
        workload=plan.workload(key),
        plan_sha256=plan.sha256,
        provenance=provenance,
        status="failed",
        failure_cause=failure.cause,
        completed=0,
        waiting_at_end=None,
        running_at_end=None,
        error_rate=1.0,
        output_throughput_tps=0.0,
        ttft_p50_ms=None,
        ttft_p95_ms=None,
        tpot_p50_ms=None,
        tpot_p95_ms=None,
        kv_usage_peak=None,
        preemptions=None,
        cached_token_ratio=None,
        slo_met=False,
    )
    run = {"invalid_cause": None, "detail": failure.detail, "log_tail": list(failure.log_tail)}
    return MeasuredCell(result=result, run=run)
