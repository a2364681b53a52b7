"""Fills the cells of a plan on real servers: one server per (model, configuration), resumable after any end."""

import secrets
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_runner.attempts import Attempts
from bench_runner.engine_command import EngineCommand
from bench_runner.files import read_json, write_json
from bench_runner.machine import Machine
from bench_runner.measured_cell import MeasuredCell, failed_cell, measure_cell
from bench_runner.plan import Plan
from bench_runner.protocol import Protocol
from bench_runner.results import Appender, ResultsFolder, Shard
from bench_runner.server import EngineServer, free_port
from bench_runner.server_failure import ABORTING_CAUSES, ServerFailureError
from bench_runner.server_process import end_left_over
from bench_runner.server_run import provenance_of, run_content
from bench_runner.stop import Stop
from bench_runner.sweep_view import SweepView
from service.domain.cell import CellKey, Provenance
from service.domain.errors import ArtefactError

SETTINGS_FILE = "sweep.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep works with. ports: None lets the system choose."""

    folder: ResultsFolder
    shard: Shard
    protocol: Protocol
    command: EngineCommand
    machine: Machine
    ports: range | None

    @property
    def plan(self) -> Plan:
        """The plan whose cells it fills."""
        return self.folder.plan

    @property
    def provenance(self) -> Provenance:
        """The same for every row of the folder."""
        return provenance_of(self.machine, self.plan)

    @property
    def server_record(self) -> Path:
        """Who the running server of this shard is."""
        return self.folder.path / self.shard.file_name.replace("cells-", "server-").replace(".jsonl", ".json")

    @property
    def attempts_file(self) -> Path:
        """The shard's failed attempts."""
        return self.folder.path / self.shard.file_name.replace("cells-", "attempts-")


def run_sweep(sweep: Sweep, *, view: SweepView, stop: Stop) -> Counter[str]:
    """Measures what is missing of the shard; returns rows added by status. InterruptedRunError on a signal.

    A server that does not start gives failed rows for its cells; ArtefactError where no server of this command could
    start. Whatever happens, no process of a server is left.
    """
    _keep_settings(sweep)
    rows = sweep.folder.appender(sweep.shard)
    try:
        # Only now is it certain that no other run works on this shard.
        end_left_over(sweep.server_record, grace_s=sweep.protocol.stop_grace_s)
        attempts = Attempts(sweep.attempts_file, most=sweep.protocol.max_attempts)
        try:
            return _Run(sweep, rows=rows, attempts=attempts, view=view, stop=stop).fill_all()
        finally:
            attempts.close()
    finally:
        rows.close()


class _Run:
    """One call of run_sweep: what its steps share."""

    def __init__(self, sweep: Sweep, *, rows: Appender, attempts: Attempts, view: SweepView, stop: Stop) -> None:
        self.sweep, self.rows, self.attempts, self.view, self.stop = sweep, rows, attempts, view, stop
        self.done = {result.key.cell_id for result in sweep.folder.rows()}
        self.added: Counter[str] = Counter()

    def fill_all(self) -> Counter[str]:
        """Goes through the servers of the shard."""
        servers = [self._missing(cells) for cells in self.sweep.shard.servers(self.sweep.plan)]
        self.view.begin(servers=sum(map(bool, servers)), cells=sum(map(len, servers)))
        for cells in filter(None, servers):
            while left := self._to_try(cells):
                self.stop.check()
                self._fill_on_one_server(left)
            self.view.server_done()
        return self.added

    def _fill_on_one_server(self, cells: list[CellKey]) -> None:
        """Measures cells until all have their rows or the server is not to be used on."""
        server, name = self._new_server(cells[0]), _server_name(cells[0])
        try:
            with server:
                run = self._start(server, cells[0])
                for key in cells:
                    name = key.cell_id
                    self._measure(server, key, run=run)
        except ServerFailureError as failure:
            if failure.cause in ABORTING_CAUSES and not self._only_this_model(failure):
                raise ArtefactError(f"{failure}; change the command, log: {server.log}") from failure
            self.attempts.add(name, failure)
            self.view.failed(name, str(failure))
        self.sweep.server_record.unlink(missing_ok=True)

    def _only_this_model(self, failure: ServerFailureError) -> bool:
        """A model that cannot be had costs its own cells where the plan has others."""
        return failure.cause == "model_missing" and len(self.sweep.plan.models) > 1

    def _new_server(self, key: CellKey) -> EngineServer:
        plan, command = self.sweep.plan, self.sweep.command
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        return EngineServer(
            command.for_cell(plan, key),
            port=free_port(self.sweep.ports),
            environment=command.environment(memory_gib=plan.memory_gib),
            log=self.sweep.folder.path / "logs" / f"{run}.log",
            grace_s=self.sweep.protocol.stop_grace_s,
        )

    def _start(self, server: EngineServer, key: CellKey) -> str:
        """Returns the name of the run when the server is ready and everything about it is written down."""
        self.view.server_starting(_server_name(key))
        started_s = time.monotonic()
        server.start(self.sweep.server_record)
        server.wait_ready(deadline_s=self.sweep.protocol.start_deadline_s, check=self.stop.check)
        start_s = time.monotonic() - started_s
        self.view.server_ready(start_s)
        sweep = self.sweep
        content = run_content(
            server,
            plan=sweep.plan,
            protocol=sweep.protocol,
            machine=sweep.machine,
            command=sweep.command,
            candidate=sweep.plan.candidate(key),
            start_s=start_s,
            check=self.stop.check,
        )
        write_json(sweep.folder.path / "runs" / f"{server.log.stem}.json", content)
        return server.log.stem

    def _measure(self, server: EngineServer, key: CellKey, *, run: str) -> None:
        sweep = self.sweep
        self.view.cell(key)
        started_s = time.monotonic()
        cell = measure_cell(
            server,
            key,
            plan=sweep.plan,
            protocol=sweep.protocol,
            provenance=sweep.provenance,
            stop=self.stop,
            on_progress=self.view.progress,
        )
        took_s = time.monotonic() - started_s
        self._append(cell, server_run=run, took_s=took_s)

    def _to_try(self, cells: list[CellKey]) -> list[CellKey]:
        """The cells without a row; those with no attempt left get their failed rows first."""
        for key in self._missing(cells):
            for name in (_server_name(key), key.cell_id):
                failure = self.attempts.last_if_exhausted(name)
                if failure is not None and key.cell_id not in self.done:
                    cell = failed_cell(key, failure, plan=self.sweep.plan, provenance=self.sweep.provenance)
                    self._append(cell, server_run=None, took_s=None)
        return self._missing(cells)

    def _missing(self, cells: list[CellKey]) -> list[CellKey]:
        return [key for key in cells if key.cell_id not in self.done]

    def _append(self, cell: MeasuredCell, *, server_run: str | None, took_s: float | None) -> None:
        key = cell.result.key
        run = {
            "server_run": server_run,
            "took_s": took_s,
            "failed_attempts": self.attempts.count(key.cell_id) + self.attempts.count(_server_name(key)),
            "protocol": self.sweep.protocol.digest(),
            **cell.run,
        }
        self.rows.append(cell.result, run=run)
        self.done.add(key.cell_id)
        self.added[cell.result.status] += 1
        self.view.finished(cell, took_s=took_s)


def _server_name(key: CellKey) -> str:
    return f"{key.model}|{key.config_id}"


def _keep_settings(sweep: Sweep) -> None:
    """A folder holds rows of one protocol, one machine type and one command; written once, compared ever after."""
    path = sweep.folder.path / SETTINGS_FILE
    content: dict[str, Any] = {
        "protocol": asdict(sweep.protocol),
        "machine": list(sweep.machine.identity),
        "shards": sweep.shard.count,
        "server_program": list(sweep.command.program),
        "server_arguments": list(sweep.command.arguments),
    }
    if not path.exists():
        if any(sweep.folder.path.glob("cells-*.jsonl")):
            raise ArtefactError(f"{sweep.folder.path} holds rows that no sweep wrote; give another folder")
        write_json(path, content)
    kept = read_json(path)
    for name, value in content.items():
        if kept.get(name) != value:
            raise ArtefactError(
                f"{sweep.folder.path} was begun with {name} {kept.get(name)}, this is {value}; "
                "go on as it was begun, or give another folder"
            )
