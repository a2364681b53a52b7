"""One cell on a server that is ready: its repetitions, pooled into a row, and how that came about."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_runner.engine_metrics import read_sample
from bench_runner.load import LoadProgress
from bench_runner.measurement import percentile
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.repetition import Repetition, designed_ratio, died, load_spec, measure_once
from bench_runner.results import failed_row
from bench_runner.server import EngineServer
from bench_runner.server_failure import ServerFailureError, log_tail
from bench_runner.stop import Stop
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.scenario import Workload

SECONDS_BETWEEN_IDLE_CHECKS = 0.2
# Below, the 95th percentile is the largest value or nearly so.
FEW_REQUESTS = 20
LOCKSTEP = 0.95


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
        # Before the row exists: a server that has hung under this load is this cell's failure, not the next one's.
        wait_idle(server, deadline_s=protocol.idle_deadline_s, stop=stop)
        check_alive(server, deadline_s=protocol.request_timeout_s, stop=stop)
    warnings += _doubts(repetitions, clients=workload.concurrency)
    missing = sorted({name for repetition in repetitions for name in repetition.engine.missing})
    warnings += [f"/metrics has no {name}" for name in missing]
    return MeasuredCell(
        result=_row(key, workload, repetitions, plan=plan, provenance=provenance),
        run=_run_record(repetitions, workload, plan=plan, protocol=protocol, warnings=sorted(set(warnings))),
    )


def wait_idle(server: EngineServer, *, deadline_s: float, stop: Stop) -> None:
    """Returns when the server runs and queues nothing; ServerFailureError if that does not happen in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        stop.check()
        if server.exit_code is not None:
            raise died(server)
        sample = read_sample(server.base_url)
        # A server that is well and does not say how busy it is cannot be waited for.
        if (sample is not None and sample.idle is not False) or (sample is None and server.healthy()):
            return
        time.sleep(SECONDS_BETWEEN_IDLE_CHECKS)
    raise ServerFailureError(
        "server_hung", f"still busy {deadline_s:g} s after the last request was cut", log_tail(server.log)
    )


def check_alive(server: EngineServer, *, deadline_s: float, stop: Stop) -> None:
    """An idle server answers a prompt of one token with one; ServerFailureError if it does not in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        stop.check()
        if server.exit_code is not None:
            raise died(server)
        if server.answers():
            return
    raise ServerFailureError("server_hung", f"idle, and no answer within {deadline_s:g} s", log_tail(server.log))


def _doubts(repetitions: list[Repetition], *, clients: int) -> list[str]:
    """What a reader of the percentiles should know."""
    doubts = []
    completed = sum(len(repetition.ttft_ms) for repetition in repetitions)
    if completed < FEW_REQUESTS:
        doubts.append(f"few requests: a p95 over {completed}")
    together = max((r.lockstep for r in repetitions if r.lockstep is not None), default=0.0)
    if clients > 1 and together > LOCKSTEP:
        doubts.append(f"clients move in lockstep ({together:.2f}): percentiles depend on how they started")
    if any(repetition.cached_token_ratio is None for repetition in repetitions):
        doubts.append("cached tokens unknown: that prompts were fresh is not proven by the server")
    return doubts


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
    result = failed_row(key, plan=plan, provenance=provenance, cause=failure.cause)
    run = {"invalid_cause": None, "detail": failure.detail, "log_tail": list(failure.log_tail)}
    return MeasuredCell(result=result, run=run)
