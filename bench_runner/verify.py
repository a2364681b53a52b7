"""Measures a recommended configuration and the engine's default alternately until the answer is clear or time is up."""

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from bench_runner.engine_command import EngineCommand
from bench_runner.load import LoadProgress
from bench_runner.machine import Machine
from bench_runner.measured_cell import MeasuredCell, failed_cell, measure_cell
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.recommendation import Recommendation
from bench_runner.server import EngineServer, free_port
from bench_runner.server_failure import ABORTING_CAUSES, ServerFailureError
from bench_runner.server_run import provenance_of, run_content
from bench_runner.stop import Stop
from bench_runner.verdict import Interval, Visit, is_narrow, mean_interval, throughput_ratio, verdict
from service.domain.cell import CellKey
from service.domain.errors import ArtefactError

OUTCOME_SCHEMA_VERSION = 1
Arm = Literal["recommended", "engine_default"]
# Two pairs, the second in reverse order: a drift that is linear in time cancels.
ORDER: tuple[Arm, ...] = ("recommended", "engine_default", "engine_default", "recommended")
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What is compared, and for how long at most. The plan holds one model, one workload and both configurations.

    The recommended one is the plan's first candidate. precision: half the width of the throughput ratio's interval at
    which measuring ends, and the loss that still counts as "not worse".
    """

    plan: Plan
    recommendation: Recommendation
    protocol: Protocol
    command: EngineCommand
    machine: Machine
    ports: range | None
    time_limit_s: float
    precision: float
    folder: Path

    def key(self, arm: Arm) -> CellKey:
        """The cell of one side."""
        keys = list(self.plan.cells())
        return keys[0] if arm == "recommended" else keys[-1]

    def server_command(self, arm: Arm) -> list[str]:
        """The default's server gets no flag at all: it is what a user has who sets nothing."""
        candidate = self.plan.candidates[0] if arm == "recommended" else None
        return self.command.for_candidate(str(self.plan.models[0].name), candidate)


@dataclass(frozen=True, slots=True)
class Side:
    """The visits of one side and what was written down about each."""

    visits: list[Visit]
    records: list[dict[str, Any]]


def run_verification(
    verification: Verification, *, stop: Stop, say: Callable[[str], None], on_progress: Callable[[LoadProgress], None]
) -> dict[str, Any]:
    """The outcome. InterruptedRunError on a signal; ArtefactError where neither side could be started."""
    sides: dict[Arm, Side] = {"recommended": Side([], []), "engine_default": Side([], [])}
    begun_s = time.monotonic()
    longest_s, number = 0.0, 0
    while number % 2 or not _over(verification, sides, begun_s=begun_s, longest_s=longest_s):
        arm = ORDER[number % len(ORDER)]
        visit_s = time.monotonic()
        cell, server = _visit(verification, arm, stop=stop, say=say, on_progress=on_progress)
        longest_s = max(longest_s, time.monotonic() - visit_s)
        number += 1
        sides[arm].visits.append(_as_visit(cell))
        sides[arm].records.append({**cell.result.to_row(), "run": cell.run, "server": server})
        say(_said(arm, cell))
        if all(
            side.visits and not any(visit.output_throughput_tps for visit in side.visits) for side in sides.values()
        ):
            raise ArtefactError(f"neither side answers: {cell.run.get('detail', cell.result.failure_cause)}")
    return _outcome(verification, sides, took_s=time.monotonic() - begun_s)


def _over(verification: Verification, sides: dict[Arm, Side], *, begun_s: float, longest_s: float) -> bool:
    """Asked between pairs: narrow enough, a side that never answers, or no time for another pair."""
    ours, theirs = sides["recommended"].visits, sides["engine_default"].visits
    ratio = throughput_ratio(ours, theirs)
    enough = min(len(ours), len(theirs)) >= LEAST_PAIRS
    if enough and (ratio is None or is_narrow(ratio, precision=verification.precision)):
        return True
    return bool(ours) and time.monotonic() - begun_s + 2 * longest_s > verification.time_limit_s


def _visit(
    verification: Verification,
    arm: Arm,
    *,
    stop: Stop,
    say: Callable[[str], None],
    on_progress: Callable[[LoadProgress], None],
) -> tuple[MeasuredCell, dict[str, Any] | None]:
    """One server, started, measured and ended; a failure is a visit without throughput."""
    stop.check()
    plan, protocol, key = verification.plan, verification.protocol, verification.key(arm)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    provenance = provenance_of(verification.machine, plan)
    server = EngineServer(
        verification.server_command(arm),
        port=free_port(verification.ports),
        environment=verification.command.environment(memory_gib=plan.memory_gib),
        log=verification.folder / "logs" / f"{name}.log",
        grace_s=protocol.stop_grace_s,
    )
    record = verification.folder / "server.json"
    say(f"starting {arm}")
    try:
        with server:
            started_s = time.monotonic()
            server.start(record)
            server.wait_ready(deadline_s=protocol.start_deadline_s, check=stop.check)
            content = run_content(
                server,
                plan=plan,
                protocol=protocol,
                machine=verification.machine,
                command=verification.command,
                start_s=time.monotonic() - started_s,
            )
            cell = measure_cell(
                server,
                key,
                plan=plan,
                protocol=protocol,
                provenance=provenance,
                stop=stop,
                on_progress=on_progress,
            )
    except ServerFailureError as failure:
        if failure.cause in ABORTING_CAUSES:
            raise ArtefactError(f"{failure}; change the command, log: {server.log}") from failure
        return failed_cell(key, failure, plan=plan, provenance=provenance), None
    finally:
        record.unlink(missing_ok=True)
    return cell, content


def _as_visit(cell: MeasuredCell) -> Visit:
    result = cell.result
    return Visit(
        output_throughput_tps=result.output_throughput_tps,
        ttft_p95_ms=result.ttft_p95_ms,
        tpot_p95_ms=result.tpot_p95_ms,
        slo_met=result.slo_met,
        invalid=cell.run.get("invalid_cause") is not None,
    )


def _said(arm: Arm, cell: MeasuredCell) -> str:
    result, invalid = cell.result, cell.run.get("invalid_cause")
    if result.failure_cause:
        return f"{arm}: failed, {result.failure_cause}"
    slo = "SLO met" if result.slo_met else "SLO violated"
    note = f", invalid: {invalid}" if invalid else ""
    return f"{arm}: {result.output_throughput_tps:,.0f} tok/s, p95 TTFT {result.ttft_p95_ms:,.0f} ms, {slo}{note}"


def _outcome(verification: Verification, sides: dict[Arm, Side], *, took_s: float) -> dict[str, Any]:
    """The content of the outcome file; each member of `sides` is one report of what ran and what was measured."""
    ours, theirs = sides["recommended"].visits, sides["engine_default"].visits
    plan, answer = verification.plan, verification.recommendation.answer
    found, reason = verdict(ours, theirs, precision=verification.precision, least_pairs=LEAST_PAIRS)
    engine_args = {"recommended": plan.candidates[0].engine_args(), "engine_default": plan.candidates[-1].engine_args()}
    key = verification.key("recommended")
    return {
        "schema_version": OUTCOME_SCHEMA_VERSION,
        "recommendation_id": answer["recommendation_id"] if answer else None,
        "policy": answer["policy"] if answer else None,
        "verdict": found,
        "reason": reason,
        "evidence": provenance_of(verification.machine, plan).evidence,
        "gpu": plan.gpu,
        "engine_version": plan.engine_version,
        "model": str(plan.models[0].name),
        "workload": asdict(plan.workload(key)),
        "slo": asdict(plan.slo),
        "precision": verification.precision,
        "took_s": took_s,
        "throughput_ratio": _interval_json(throughput_ratio(ours, theirs)),
        "arms": {
            arm: {
                "arm": arm,
                "engine_args": engine_args[arm],
                "measured": _measured(side.visits),
                "visits": side.records,
            }
            for arm, side in sides.items()
        },
        "machine": verification.machine.to_json(),
    }


def _measured(visits: list[Visit]) -> dict[str, Any]:
    """Means over visits with their 95 % intervals; slo_met is the share of visits that met the SLO."""
    values = {
        name: [value for visit in visits if (value := getattr(visit, name)) is not None]
        for name in ("output_throughput_tps", "ttft_p95_ms", "tpot_p95_ms")
    }
    return {
        **{name: _interval_json(mean_interval(numbers)) for name, numbers in values.items()},
        "slo_met": sum(visit.slo_met for visit in visits) / len(visits) if visits else None,
        "visits": len(visits),
    }


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)
