"""Reads the cells of any finished plan, measured or simulated, and refuses what cannot become ranking lists."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.domain.cell import CellResult, Provenance
from service.domain.errors import ArtefactError, MemoryPolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCells:
    """Cells of one plan and one provenance. lists: per scenario_id its cells, every one under the same config_ids."""

    plan_sha256: str
    provenance: Provenance
    config_ids: tuple[str, ...]
    lists: dict[str, tuple[CellResult, ...]]

    def describe(self) -> dict[str, Any]:
        """What there is, for a person or a program."""
        cells = [cell for cells in self.lists.values() for cell in cells]
        return {
            "plan_sha256": self.plan_sha256,
            "evidence": self.provenance.evidence,
            "gpu": self.provenance.gpu,
            "engine_version": self.provenance.engine_version,
            "scenarios": len(self.lists),
            "config_ids": list(self.config_ids),
            "failed": sum(cell.status == "failed" for cell in cells),
            "slo_met": sum(cell.slo_met for cell in cells),
            "best": {scenario: _best(cells) for scenario, cells in self.lists.items()},
        }


def read_sweep(path: Path) -> SweepCells:
    """The rows of a merged file. ArtefactError names the first cells that are doubled, foreign or missing."""
    try:
        rows = pq.read_table(path).to_pylist()
        cells = [CellResult.from_row(row) for row in rows]
    except (OSError, pa.ArrowException) as error:
        raise ArtefactError(f"{path}: not a readable Parquet file ({error}); run `bench_runner merge`") from error
    except MemoryPolicyError as error:
        raise ArtefactError(f"{path}: {error}") from error
    if not cells:
        raise ArtefactError(f"{path} holds no cells; merge a finished plan")
    first = cells[0]
    _refuse(path, "doubled", [name for name, n in Counter(cell.key.cell_id for cell in cells).items() if n > 1])
    _refuse(path, "of another provenance", [c.key.cell_id for c in cells if c.provenance != first.provenance])
    _refuse(path, "of another plan", [c.key.cell_id for c in cells if c.plan_sha256 != first.plan_sha256])
    lists: dict[str, list[CellResult]] = {}
    for cell in cells:
        lists.setdefault(cell.key.scenario_id, []).append(cell)
    config_ids = tuple(cell.key.config_id for cell in next(iter(lists.values())))
    incomplete = [name for name, found in lists.items() if sorted(_ids(found)) != sorted(config_ids)]
    _refuse(path, "in scenarios whose lists are not complete", incomplete)
    return SweepCells(
        plan_sha256=first.plan_sha256,
        provenance=first.provenance,
        config_ids=config_ids,
        lists={name: tuple(found) for name, found in lists.items()},
    )


def _ids(cells: Sequence[CellResult]) -> list[str]:
    return [cell.key.config_id for cell in cells]


def _best(cells: Sequence[CellResult]) -> str | None:
    """The configuration with the highest throughput among those that meet the SLO; None if there is none."""
    able = [cell for cell in cells if cell.slo_met]
    return max(able, key=lambda cell: cell.output_throughput_tps).key.config_id if able else None


def _refuse(path: Path, what: str, names: list[str]) -> None:
    if names:
        more = ", …" if len(names) > 3 else ""
        raise ArtefactError(f"{path}: {len(names)} {what}: {', '.join(names[:3])}{more}; merge one finished plan again")
