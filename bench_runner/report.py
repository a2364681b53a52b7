"""What the cells of one model show, as a Markdown table: the best candidate, FIXED and the engine's default."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.domain.candidate import CANDIDATES, FIXED_INDEX, INDEX_BY_CONFIG_ID
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError, UnknownNameError
from service.domain.reference import REFERENCE_MODELS, split_of

HEADER = (
    "| workload | clients | configuration | tok/s | p95 TTFT ms | p95 TPOT ms | SLO |",
    "| --- | ---: | --- | ---: | ---: | ---: | --- |",
)


def read_cells(path: Path) -> list[CellResult]:
    """The rows of a merged file."""
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ArtefactError(f"{path} cannot be read as Parquet: {error}; simulate and merge again") from error
    return [CellResult.from_row(row) for row in rows]


def report(
    *, model: str, reference: list[CellResult], engine_default: list[CellResult], config_ids: Sequence[str] = ()
) -> Iterator[str]:
    """Lines of the table; config_ids: further candidates to show in every scenario.

    Scenarios of the test split are left out: they are looked at only by their evaluation.
    """
    for config_id in config_ids:
        if config_id not in INDEX_BY_CONFIG_ID:
            raise UnknownNameError(path="config", value=config_id, known=INDEX_BY_CONFIG_ID)
    if model not in REFERENCE_MODELS:
        raise UnknownNameError(path="model", value=model, known=REFERENCE_MODELS)
    defaults = {cell.key.scenario_id: cell for cell in engine_default}
    by_scenario: dict[str, list[CellResult]] = {}
    for cell in reference:
        if cell.key.model == model and split_of(model=model, workload=cell.key.workload) != "test":
            by_scenario.setdefault(cell.key.scenario_id, []).append(cell)
    yield from HEADER
    for scenario_id, cells in by_scenario.items():
        fixed = next(cell for cell in cells if cell.key.config_id == CANDIDATES[FIXED_INDEX].config_id)
        best = max(cells, key=lambda cell: (cell.slo_met, cell.output_throughput_tps))
        yield _line(f"best: {best.key.config_id}", best)
        yield from (_line(cell.key.config_id, cell) for cell in cells if cell.key.config_id in config_ids)
        yield _line("FIXED", fixed)
        yield _line("ENGINE_DEFAULT", defaults[scenario_id])


def _line(label: str, cell: CellResult) -> str:
    if cell.status == "failed":
        return f"| {cell.key.workload} | {cell.key.concurrency} | {label} | {cell.failure_cause} | | | violated |"
    tpot = "" if cell.tpot_p95_ms is None else f"{cell.tpot_p95_ms:.1f}"
    return (
        f"| {cell.key.workload} | {cell.key.concurrency} | {label} | {cell.output_throughput_tps:,.0f} "
        f"| {cell.ttft_p95_ms:,.0f} | {tpot} | {'met' if cell.slo_met else 'violated'} |"
    )
