"""Results of a plan on disk: append-only JSON lines per shard while it runs, one Parquet file when it is merged."""

import contextlib
import fcntl
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench_runner.files import read_json, write_atomically
from bench_runner.plan import Plan, save_plan
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError

PLAN_FILE = "plan.json"

CELL_SCHEMA = pa.schema(
    [
        ("schema_version", pa.int32()),
        ("cell_id", pa.string()),
        ("plan_sha256", pa.string()),
        ("evidence", pa.string()),
        ("gpu", pa.string()),
        ("engine_version", pa.string()),
        ("scheduler", pa.string()),
        ("step_times", pa.string()),
        ("model", pa.string()),
        ("workload", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("max_new_tokens", pa.int64()),
        ("shared_prefix_ratio", pa.float64()),
        ("concurrency", pa.int64()),
        ("config_id", pa.string()),
        ("status", pa.string()),
        ("failure_cause", pa.string()),
        ("completed", pa.int64()),
        ("waiting_at_end", pa.int64()),
        ("running_at_end", pa.int64()),
        ("error_rate", pa.float64()),
        ("output_throughput_tps", pa.float64()),
        ("ttft_p50_ms", pa.float64()),
        ("ttft_p95_ms", pa.float64()),
        ("tpot_p50_ms", pa.float64()),
        ("tpot_p95_ms", pa.float64()),
        ("kv_usage_peak", pa.float64()),
        ("preemptions", pa.int64()),
        ("cached_token_ratio", pa.float64()),
        ("slo_met", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of `count` parts of a plan: every `count`-th cell, or server, from `index` on."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ArtefactError(f"shard {self.index} of {self.count}: the index goes from 0 to count - 1")

    @property
    def file_name(self) -> str:
        """The shard's file in a results folder."""
        return f"cells-{self.index:05d}-of-{self.count:05d}.jsonl"

    def cells(self, plan: Plan) -> list[CellKey]:
        """The cells of this shard, in plan order."""
        return list(plan.cells())[self.index :: self.count]

    def servers(self, plan: Plan) -> list[list[CellKey]]:
        """The cells of this shard by server: every `count`-th (model, configuration), each with all its cells."""
        by_server: dict[tuple[str, str], list[CellKey]] = {}
        for key in plan.cells():
            by_server.setdefault((key.model, key.config_id), []).append(key)
        return list(by_server.values())[self.index :: self.count]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsFolder:
    """A folder that holds the results of one plan and no other."""

    path: Path
    plan: Plan

    @classmethod
    def open(cls, path: Path, plan: Plan) -> "ResultsFolder":
        """The folder for this plan, made if it is new; ArtefactError if it belongs to another plan."""
        plan_file = path / PLAN_FILE
        if plan_file.exists():
            digest = read_json(plan_file).get("plan_sha256")
            if digest != plan.sha256:
                raise ArtefactError(
                    f"{path} holds results of plan {digest}, this is plan {plan.sha256}; give another folder"
                )
        else:
            if path.exists() and any(path.glob("*.jsonl")):
                raise ArtefactError(f"{path} holds results but no {PLAN_FILE}; give another folder")
            save_plan(plan, plan_file)
        return cls(path=path, plan=plan)

    @classmethod
    def look(cls, path: Path, plan: Plan) -> "ResultsFolder":
        """The same for who only reads: nothing is made or written. A folder without a plan has not been begun."""
        if not path.is_dir():
            raise ArtefactError(f"{path} is no folder; give the one that simulate or sweep was given")
        plan_file = path / PLAN_FILE
        return cls.open(path, plan) if plan_file.exists() else cls(path=path, plan=plan)

    def rows(self) -> Iterator[CellResult]:
        """Every finished row of every shard; a line that a kill tore is not one of them."""
        return (result for result, _ in self.measured_rows())

    def measured_rows(self) -> Iterator[tuple[CellResult, dict[str, Any]]]:
        """Every finished row and how it was measured; that is empty for a simulated one."""
        for file in sorted(self.path.glob("cells-*.jsonl")):
            yield from _read_lines(file)

    def appender(self, shard: Shard) -> "Appender":
        """Opens a shard's file for further rows, cutting off a line that a kill tore."""
        return Appender(self.path / shard.file_name)


class JsonLines:
    """A file of JSON lines that survive a kill: each is on disk before the next is begun.

    One process at a time: a second that opens the file is refused while the first has it open.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab+")
        except OSError as error:
            raise ArtefactError(f"{path} cannot be written ({error.strerror}); give another folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ArtefactError(f"{path} is being written by another run; wait for it or give another shard") from error
        size = self._file.tell()
        self._file.seek(0)
        whole = self._file.read().rfind(b"\n") + 1
        if whole < size:
            self._file.truncate(whole)

    def append(self, content: Mapping[str, Any]) -> None:
        """Writes one line and waits until it is on disk."""
        line = json.dumps(content, separators=(",", ":"), allow_nan=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ArtefactError(
                f"{self._file.name} cannot be written ({error.strerror}); free space, run again"
            ) from error

    def close(self) -> None:
        """Closes the file."""
        # What could not be written is not written here either, and its error has been raised already.
        with contextlib.suppress(OSError):
            self._file.close()


class Appender:
    """Appends rows to a shard's file."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def append(self, result: CellResult, *, run: Mapping[str, Any] | None = None) -> None:
        """Writes one row; `run` is how it was measured."""
        self._lines.append(result.to_row() if run is None else {**result.to_row(), "run": run})

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def failed_row(key: CellKey, *, plan: Plan, provenance: Provenance, cause: str) -> CellResult:
    """A cell from which nothing came, and of which nothing else is known."""
    return CellResult(
        key=key,
        workload=plan.workload(key),
        plan_sha256=plan.sha256,
        provenance=provenance,
        status="failed",
        failure_cause=cause,
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


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that may still grow; none if there is no such file."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])


def _read_lines(path: Path) -> Iterator[tuple[CellResult, dict[str, Any]]]:
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            run = row.pop("run", {})
            yield CellResult.from_row(row), run
        except (ValueError, AttributeError, ArtefactError) as error:
            raise ArtefactError(f"{path.name} line {number} is damaged: {error}; delete the line, run again") from error


def check_rows(plan: Plan, results: Iterable[CellResult]) -> list[CellResult]:
    """The rows in plan order; ArtefactError if one is missing, doubled, foreign, or of another plan or provenance."""
    by_id: dict[str, CellResult] = {}
    doubled: Counter[str] = Counter()
    for result in results:
        if result.plan_sha256 != plan.sha256:
            raise ArtefactError(f"{result.key.cell_id} belongs to plan {result.plan_sha256}, not to {plan.sha256}")
        doubled[result.key.cell_id] += 1
        by_id[result.key.cell_id] = result
    expected = [key.cell_id for key in plan.cells()]
    _refuse(
        "missing", [cell for cell in expected if cell not in by_id], remedy="run the same command again: it resumes"
    )
    _refuse("doubled", [cell for cell, times in doubled.items() if times > 1], remedy="delete one of each")
    _refuse("not in the plan", sorted(set(by_id) - set(expected)), remedy="delete them")
    provenances = {result.provenance for result in by_id.values()}
    if len(provenances) > 1:
        raise ArtefactError(f"rows of different provenance: {provenances}; keep each in a folder of its own")
    return [by_id[cell] for cell in expected]


def check_valid(invalid: Mapping[str, str]) -> None:
    """ArtefactError if there are rows that are no labels; invalid: cause by cell_id."""
    _refuse(
        f"invalid ({', '.join(sorted(set(invalid.values())))})",
        sorted(invalid),
        remedy="measure again in a new folder, with more --client-processes if the client was saturated, "
        "or merge --without-invalid",
    )


def _refuse(what: str, cells: list[str], *, remedy: str) -> None:
    if cells:
        more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
        raise ArtefactError(f"{len(cells)} cells {what}: {', '.join(cells[:3])}{more}; {remedy}")


def write_parquet(results: Iterable[CellResult], path: Path) -> None:
    """One file of rows in the order given; equal rows give equal bytes."""
    rows: list[dict[str, Any]] = [result.to_row() for result in results]
    table = pa.Table.from_pylist(rows, schema=CELL_SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())
