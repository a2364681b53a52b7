"""Reads a file of cells and refuses it unless it is exactly one complete sweep of the reference experiment."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offline.artefacts import sha256_bytes
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError, MemoryPolicyError
from service.domain.reference import REFERENCE_CONCURRENCIES, REFERENCE_MODELS, REFERENCE_WORKLOADS
from service.domain.slo import REFERENCE_SLO

_NAMED_IN_MESSAGE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """All cells of one file, each once. cells: by cell_id; sha256: of the file's bytes."""

    path: Path
    sha256: str
    plan_sha256: str
    provenance: Provenance
    cells: dict[str, CellResult]


def expected_keys(config_ids: Sequence[str]) -> tuple[CellKey, ...]:
    """Every cell of the reference experiment under these configurations: model, workload, concurrency, config."""
    return tuple(
        CellKey(model=model, workload=workload.name, concurrency=concurrency, config_id=config_id)
        for model in REFERENCE_MODELS
        for workload in REFERENCE_WORKLOADS
        for concurrency in REFERENCE_CONCURRENCIES
        for config_id in config_ids
    )


def read_cells(path: Path, *, config_ids: Sequence[str]) -> CellTable:
    """The cells of a Parquet file whose rows are CellResult.to_row().

    Refuses, with the first few ids and the remedy: rows that are doubled, unknown or missing, of more than one
    provenance or plan, with impossible numbers, or whose slo_met contradicts their own measurements.
    """
    digest, cells = _read(path)
    ids = [cell.key.cell_id for cell in cells]
    expected = {key.cell_id for key in expected_keys(config_ids)}
    _refuse(
        path, "doubled", [cell_id for cell_id, times in Counter(ids).items() if times > 1], "merge the shards again"
    )
    _refuse(path, "of no known scenario or candidate", sorted(set(ids) - expected), "merge one plan's shards only")
    _refuse(path, "missing", sorted(expected - set(ids)), "simulate the rest and merge again")
    first = cells[0]
    strangers = [cell.key.cell_id for cell in cells if cell.provenance != first.provenance]
    _refuse(path, f"of another provenance than {first.key.cell_id}", strangers, "keep each provenance in its own file")
    strangers = [cell.key.cell_id for cell in cells if cell.plan_sha256 != first.plan_sha256]
    _refuse(path, f"of another plan than {first.plan_sha256}", strangers, "merge one plan's shards only")
    _refuse(
        path,
        "with numbers that cannot be measured",
        [cell.key.cell_id for cell in cells if not _possible(cell)],
        "simulate them again",
    )
    liars = [cell.key.cell_id for cell in cells if cell.slo_met != _meets_slo(cell)]
    _refuse(path, "with a slo_met that contradicts their percentiles", liars, "simulate them again")
    return CellTable(
        path=path,
        sha256=digest,
        plan_sha256=first.plan_sha256,
        provenance=first.provenance,
        cells=dict(zip(ids, cells, strict=True)),
    )


def _read(path: Path) -> tuple[str, list[CellResult]]:
    """Digest and rows of the same bytes."""
    try:
        content = path.read_bytes()
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ArtefactError(f"{path}: not a readable Parquet file ({error}); run `make simulate`") from error
    try:
        return sha256_bytes(content), [CellResult.from_row(row) for row in rows]
    except MemoryPolicyError as error:
        raise ArtefactError(f"{path}: {error}") from error


def _possible(cell: CellResult) -> bool:
    """Finite and not negative; a rate and a throughput always, and something completed leaves tokens."""
    always = (cell.error_rate, cell.output_throughput_tps)
    times = (cell.ttft_p50_ms, cell.ttft_p95_ms, cell.tpot_p50_ms, cell.tpot_p95_ms)
    numbers = (*always, *(time for time in times if time is not None))
    if not all(isinstance(number, float) and math.isfinite(number) and number >= 0 for number in numbers):
        return False
    return cell.status == "failed" or cell.output_throughput_tps > 0


def _meets_slo(cell: CellResult) -> bool:
    return cell.status == "ok" and REFERENCE_SLO.met(
        ttft_p95_ms=cell.ttft_p95_ms, tpot_p95_ms=cell.tpot_p95_ms, error_rate=cell.error_rate
    )


def _refuse(path: Path, what: str, cell_ids: Iterable[str], remedy: str) -> None:
    found = list(cell_ids)
    if found:
        named = ", ".join(found[:_NAMED_IN_MESSAGE]) + (", …" if len(found) > _NAMED_IN_MESSAGE else "")
        raise ArtefactError(f"{path}: {len(found)} cells {what}: {named}; {remedy}")
