"""Reads a file of cells and refuses it unless it is exactly one complete sweep of the reference experiment."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offline.artefacts import sha256_file
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError
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
    provenance or plan, or whose slo_met contradicts their own measurements.
    """
    digest = sha256_file(path)
    cells = [CellResult.from_row(row) for row in _rows(path)]
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
    liars = [cell.key.cell_id for cell in cells if cell.slo_met != _meets_slo(cell)]
    _refuse(path, "with a slo_met that contradicts their percentiles", liars, "simulate them again")
    return CellTable(
        path=path,
        sha256=digest,
        plan_sha256=first.plan_sha256,
        provenance=first.provenance,
        cells=dict(zip(ids, cells, strict=True)),
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ArtefactError(f"{path}: not a readable Parquet file ({error}); run `make simulate`") from error
    return rows


def _meets_slo(cell: CellResult) -> bool:
    return cell.status == "ok" and REFERENCE_SLO.met(
        ttft_p95_ms=cell.ttft_p95_ms, tpot_p95_ms=cell.tpot_p95_ms, error_rate=cell.error_rate
    )


def _refuse(path: Path, what: str, cell_ids: Iterable[str], remedy: str) -> None:
    found = list(cell_ids)
    if found:
        named = ", ".join(found[:_NAMED_IN_MESSAGE]) + (", …" if len(found) > _NAMED_IN_MESSAGE else "")
        raise ArtefactError(f"{path}: {len(found)} cells {what}: {named}; {remedy}")
