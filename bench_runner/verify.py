"""Measures a recommended configuration and the engine's default alternately until the answer is clear or time is up."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_runner.engine_command import EngineCommand
from bench_runner.load import LoadProgress
from bench_runner.machine import Machine
from bench_runner.measured_cell import failed_cell, measure_cell
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.recommendation import Recommendation
from bench_runner.server import EngineServer, free_port
from bench_runner.server_failure import ABORTING_CAUSES, ServerFailureError
from bench_runner.server_run import provenance_of, run_content
from bench_runner.stop import Stop
from bench_runner.verdict import Visit, is_narrow, throughput_ratio, verdict
from bench_runner.visits import ARMS, Arm, Visits, as_visit
from service.domain.cell import CellKey
from service.domain.errors import ArtefactError
from service.domain.interval import Interval, mean_interval

OUTCOME_SCHEMA_VERSION = 1
# Two pairs, the second in reverse order: a drift that is linear in time cancels.
ORDER: tuple[Arm, ...] = ("recommended", "engine_default", "engine_default", "recommended")
# An interval needs two; from so few it is wide, and says so itself.
LEAST_PAIRS = 2
# Also with the time used up a server gets so long, or a slow start would pass for a failed one.
LEAST_START_S = 60.0


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

    @property
    def server_record(self) -> Path:
        """Who the running server is."""
        return self.folder / "server.json"

    def settings(self) -> dict[str, Any]:
        """What must be equal for visits to belong together."""
        settings = {
            "plan_sha256": self.plan.sha256,
            "protocol": asdict(self.protocol),
            "machine": self.machine.identity,
            "server_program": self.command.program,
            "server_arguments": self.command.arguments,
        }
        # As JSON gives it back.
        content: dict[str, Any] = json.loads(json.dumps(settings))
        return content

    def server_command(self, arm: Arm) -> list[str]:
        """The default's server gets no flag at all: it is what a user has who sets nothing."""
        candidate = self.plan.candidates[0] if arm == "recommended" else None
        return self.command.for_candidate(str(self.plan.models[0].name), candidate)


def run_verification(
    verification: Verification,
    visits: Visits,
    *,
    stop: Stop,
    say: Callable[[str], None],
    on_progress: Callable[[LoadProgress], None],
) -> dict[str, Any]:
    """The outcome. InterruptedRunError on a signal; ArtefactError where neither side answers."""
    while len(visits.all) % 2 or not _over(verification, visits):
        arm = ORDER[len(visits.all) % len(ORDER)]
        visit = _visit(verification, arm, left_s=_left_s(verification, visits), stop=stop, say=say, show=on_progress)
        visits.add(visit)
        say(_said(visit))
        if len(visits.all) == len(ARMS) and all(as_visit(visit).failed for visit in visits.all):
            reason = visit["run"].get("detail", visit["failure_cause"])
            raise ArtefactError(f"neither side answers: {reason}")
    return _outcome(verification, visits)


def _left_s(verification: Verification, visits: Visits) -> float:
    return verification.time_limit_s - visits.took_s


def _over(verification: Verification, visits: Visits) -> bool:
    """Asked between pairs: narrow enough, a side that fails in every visit, or no time for another pair."""
    pairs = visits.pairs()
    if len(pairs) >= LEAST_PAIRS:
        never = any(all(pair[side].failed for pair in pairs) for side in (0, 1))
        if never or is_narrow(throughput_ratio(pairs), precision=verification.precision):
            return True
    if not visits.all:
        return False
    # Like the last pair: the first server of a model also compiles and reads what the others find on disk.
    next_s = sum(visit["took_s"] for visit in visits.all[-len(ARMS) :])
    return bool(next_s > _left_s(verification, visits))


def _visit(
    verification: Verification,
    arm: Arm,
    *,
    left_s: float,
    stop: Stop,
    say: Callable[[str], None],
    show: Callable[[LoadProgress], None],
) -> dict[str, Any]:
    """One server, started, measured and ended; a failure is a visit without throughput."""
    stop.check()
    plan, key = verification.plan, verification.key(arm)
    begun_s = time.monotonic()
    server = EngineServer(
        verification.server_command(arm),
        port=free_port(verification.ports),
        environment=verification.command.environment(memory_gib=plan.memory_gib),
        log=verification.folder / "logs" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.log",
        grace_s=verification.protocol.stop_grace_s,
    )
    say(f"starting {arm}")
    run: dict[str, Any] | None = None
    try:
        with server:
            run = _start(verification, server, arm, left_s=left_s, stop=stop)
            cell = measure_cell(
                server,
                key,
                plan=plan,
                protocol=verification.protocol,
                provenance=provenance_of(verification.machine, plan),
                stop=stop,
                on_progress=show,
            )
    except ServerFailureError as failure:
        if failure.cause in ABORTING_CAUSES:
            raise ArtefactError(f"{failure}; change the command, log: {server.log}") from failure
        cell = failed_cell(key, failure, plan=plan, provenance=provenance_of(verification.machine, plan))
    finally:
        verification.server_record.unlink(missing_ok=True)
    took_s = time.monotonic() - begun_s
    return {"arm": arm, **cell.result.to_row(), "run": cell.run, "server": run, "took_s": took_s}


def _start(verification: Verification, server: EngineServer, arm: Arm, *, left_s: float, stop: Stop) -> dict[str, Any]:
    """Waits until the server is ready, no longer than there is time; what is known of it then."""
    begun_s = time.monotonic()
    server.start(verification.server_record)
    deadline_s = max(LEAST_START_S, min(verification.protocol.start_deadline_s, left_s))
    server.wait_ready(deadline_s=deadline_s, check=stop.check)
    return run_content(
        server,
        plan=verification.plan,
        protocol=verification.protocol,
        machine=verification.machine,
        command=verification.command,
        candidate=verification.plan.candidates[0] if arm == "recommended" else None,
        start_s=time.monotonic() - begun_s,
        check=stop.check,
    )


def _said(visit: dict[str, Any]) -> str:
    arm, invalid = visit["arm"], visit["run"].get("invalid_cause")
    if visit["failure_cause"]:
        return f"{arm}: failed, {visit['failure_cause']}"
    slo = "SLO met" if visit["slo_met"] else "SLO violated"
    note = f", invalid: {invalid}" if invalid else ""
    tps, ttft_ms = visit["output_throughput_tps"], visit["ttft_p95_ms"]
    return f"{arm}: {tps:,.0f} tok/s, p95 TTFT {ttft_ms:,.0f} ms, {slo}{note}"


def _outcome(verification: Verification, visits: Visits) -> dict[str, Any]:
    """The content of the outcome file; each member of `arms` says what ran and what was measured."""
    plan, answer = verification.plan, verification.recommendation.answer
    pairs = visits.pairs()
    found, reason = verdict(pairs, precision=verification.precision, least_pairs=LEAST_PAIRS)
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
        "workload": asdict(plan.workload(verification.key("recommended"))),
        "slo": asdict(plan.slo),
        "precision": verification.precision,
        "took_s": visits.took_s,
        "invalid_pairs": len(visits.all) // len(ARMS) - len(pairs),
        "throughput_ratio": _interval_json(throughput_ratio(pairs)),
        "arms": {arm: _side(verification, arm, visits.of(arm)) for arm in ARMS},
        "machine": verification.machine.to_json(),
    }


def _side(verification: Verification, arm: Arm, visits: list[dict[str, Any]]) -> dict[str, Any]:
    """engine_args as the engine itself resolved them; where it does not say, as planned."""
    planned = verification.plan.candidates[0 if arm == "recommended" else -1].engine_args()
    told: dict[str, Any] = next((visit["server"]["engine_args"] for visit in visits if visit["server"]), {})
    return {
        "arm": arm,
        "engine_args": {**planned, **told},
        "measured": _measured([as_visit(visit) for visit in visits]),
        "visits": visits,
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
