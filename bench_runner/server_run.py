"""What is written down about a server that cells are measured on: provenance of the rows, and everything behind it."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from bench_runner.engine_command import EngineCommand
from bench_runner.engine_metrics import cache_config, read_text
from bench_runner.machine import Machine
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.server import EngineServer
from service.domain.cell import Evidence, Provenance
from service.domain.errors import ArtefactError

SCHEDULER = "a real vllm serve"
STEP_TIMES = "wall clock"


def provenance_of(machine: Machine, plan: Plan) -> Provenance:
    """The same for every row that this machine measures of a plan."""
    evidence: Evidence = "measured" if machine.device == "gpu" else "measured-cpu"
    return Provenance(
        evidence=evidence,
        gpu=plan.gpu,
        engine_version=plan.engine_version,
        scheduler=SCHEDULER,
        step_times=STEP_TIMES,
    )


def run_content(
    server: EngineServer,
    *,
    plan: Plan,
    protocol: Protocol,
    machine: Machine,
    command: EngineCommand,
    start_s: float,
) -> dict[str, Any]:
    """Machine, command, and the configuration that the server itself reports. ArtefactError for another version."""
    version = (server.get_json("/version") or {}).get("version")
    check_engine_version(version, plan.engine_version)
    return {
        "server_run": server.log.stem,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "start_s": start_s,
        "plan_sha256": plan.sha256,
        "protocol": asdict(protocol),
        "machine": machine.to_json(),
        "command": server.command,
        "environment": command.environment(memory_gib=plan.memory_gib),
        "engine_version": version,
        "engine_config": server.engine_config(),
        "cache_config": cache_config(read_text(server.base_url) or ""),
    }


def check_engine_version(found: str | None, planned: str) -> None:
    """A build suffix such as +cpu is the same version. ArtefactError otherwise; None: the server does not say."""
    if found is not None and found.partition("+")[0] != planned:
        raise ArtefactError(
            f"the plan is for vLLM {planned}, this server is {found}; install vllm=={planned} or write another plan"
        )
