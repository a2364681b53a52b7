"""What is written down about a server that cells are measured on: provenance of the rows, and everything behind it."""

from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from bench_runner.engine_command import EngineCommand
from bench_runner.engine_metrics import cache_config, read_text
from bench_runner.machine import Machine
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.server import EngineServer
from service.domain.candidate import Candidate
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
    candidate: Candidate | None,
    start_s: float,
    check: Callable[[], None],
) -> dict[str, Any]:
    """Machine, command, and the configuration that the server itself reports.

    ArtefactError for another engine version, or if the server resolved another configuration than the candidate; None:
    no flag was given. check may raise to stop.
    """
    version = (server.get_json("/version") or {}).get("version")
    check_engine_version(version, plan.engine_version)
    check()
    engine_config = server.engine_config()
    resolved = resolved_args(engine_config)
    if candidate is not None:
        check_resolved(resolved, candidate)
    check()
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
        "engine_config": engine_config,
        "engine_args": resolved,
        "cache_config": cache_config(read_text(server.base_url) or ""),
    }


def resolved_args(engine_config: dict[str, Any] | None) -> dict[str, Any]:
    """The four arguments as the engine resolved them; those that it does not report are left out."""
    config = engine_config or {}
    found = {**(config.get("cache_config") or {}), **(config.get("scheduler_config") or {})}
    return {field.name: found[field.name] for field in fields(Candidate) if field.name in found}


def check_resolved(resolved: dict[str, Any], candidate: Candidate) -> None:
    """ArtefactError if the server runs with another value than it was started for."""
    for name, value in candidate.engine_args().items():
        if name in resolved and resolved[name] != value:
            raise ArtefactError(
                f"the server resolved {name} to {resolved[name]}, {candidate.config_id} asks for {value}; "
                "look for what overrides it in --server-args or the environment"
            )


def check_engine_version(found: str | None, planned: str) -> None:
    """A build suffix such as +cpu is the same version. ArtefactError otherwise; None: the server does not say."""
    if found is not None and found.partition("+")[0] != planned:
        raise ArtefactError(
            f"the plan is for vLLM {planned}, this server is {found}; install vllm=={planned} or write another plan"
        )
