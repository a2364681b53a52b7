"""Which files of cells are refused, and what the refusal says."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline.cells import expected_keys
from offline.dataset import CellFiles, load_development
from service.domain.candidate import CANDIDATES
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError
from tests.offline.synthetic import CellWriter, judged

FIRST = "Qwen/Qwen3-0.6B|chat|c4|s256-b8192-g0.90-p1"


def test_the_expected_cells_are_96_scenarios_times_15_candidates() -> None:
    ids = {key.cell_id for key in expected_keys([candidate.config_id for candidate in CANDIDATES])}
    assert len(ids) == 1440
    assert FIRST in ids


def test_missing_cells_are_refused_by_name(cell_writer: CellWriter) -> None:
    with pytest.raises(ArtefactError, match=r"2 cells missing: .*c4\|s256-b8192-g0.90-p1.*simulate the rest"):
        load_development(cell_writer.write(lambda cells: cells[2:]))


def test_a_doubled_cell_is_refused_by_name(cell_writer: CellWriter) -> None:
    with pytest.raises(ArtefactError, match=r"1 cells doubled: Qwen/Qwen3-0.6B\|chat\|c4\|s256-b8192-g0.90-p1; merge"):
        load_development(cell_writer.write(lambda cells: [*cells, cells[0]]))


def test_only_the_first_few_of_many_ids_are_named(cell_writer: CellWriter) -> None:
    with pytest.raises(ArtefactError, match=r"1440 cells doubled: [^,]+, [^,]+, [^,]+, …; merge"):
        load_development(cell_writer.write(lambda cells: cells + cells))


def test_a_cell_of_an_unknown_scenario_is_refused(cell_writer: CellWriter) -> None:
    def stranger(cells: list[CellResult]) -> list[CellResult]:
        return [*cells, replace(cells[0], key=replace(cells[0].key, model="acme/other"))]

    with pytest.raises(ArtefactError, match="of no known scenario or candidate: acme/other"):
        load_development(cell_writer.write(stranger))


def test_mixed_provenance_is_refused(cell_writer: CellWriter) -> None:
    def mixed(cells: list[CellResult]) -> list[CellResult]:
        return [*cells[:-1], replace(cells[-1], provenance=replace(cells[-1].provenance, evidence="measured"))]

    with pytest.raises(ArtefactError, match=r"1 cells of another provenance than .*keep each provenance"):
        load_development(cell_writer.write(mixed))


def test_two_files_of_different_provenance_are_refused(cell_writer: CellWriter) -> None:
    def measured(cells: list[CellResult]) -> list[CellResult]:
        return [replace(cell, provenance=replace(cell.provenance, evidence="measured")) for cell in cells]

    with pytest.raises(ArtefactError, match="fill both plans from one source"):
        load_development(cell_writer.write(change_default=measured))


def test_rows_of_another_plan_are_refused(cell_writer: CellWriter) -> None:
    def other_plan(cells: list[CellResult]) -> list[CellResult]:
        return [*cells[:-1], replace(cells[-1], plan_sha256="b" * 64)]

    with pytest.raises(ArtefactError, match=rf"1 cells of another plan than {'a' * 64}: Qwen/Qwen3-8B"):
        load_development(cell_writer.write(other_plan))


def test_a_scenario_that_ran_other_lengths_than_the_reference_is_refused(cell_writer: CellWriter) -> None:
    def longer(cells: list[CellResult]) -> list[CellResult]:
        return [
            replace(cell, workload=replace(cell.workload, prompt_tokens=513)) if cell.key.workload == "chat" else cell
            for cell in cells
        ]

    with pytest.raises(ArtefactError, match=r"prompt_tokens=513.*the reference has.*prompt_tokens=512"):
        load_development(cell_writer.write(longer))


def test_slo_met_must_follow_from_the_percentiles(cell_writer: CellWriter) -> None:
    def liar(cells: list[CellResult]) -> list[CellResult]:
        return [replace(judged(cells[0]), slo_met=not judged(cells[0]).slo_met), *cells[1:]]

    with pytest.raises(ArtefactError, match=r"1 cells with a slo_met that contradicts their percentiles"):
        load_development(cell_writer.write(liar))


@pytest.mark.parametrize(
    "numbers",
    [
        {"output_throughput_tps": math.nan},
        {"output_throughput_tps": math.inf},
        {"output_throughput_tps": -1.0},
        {"output_throughput_tps": 0.0},
        {"ttft_p95_ms": math.nan},
        {"tpot_p95_ms": -1.0},
        {"error_rate": None},
    ],
)
def test_numbers_that_cannot_be_measured_are_refused(cell_writer: CellWriter, numbers: dict[str, Any]) -> None:
    # NaN passes every comparison with a limit, and regret would leave the scenario out as if it had no best. A cell
    # refuses most of these itself, so they are written into the file.
    files = cell_writer.write()
    table = pq.read_table(files.reference)
    for name, number in numbers.items():
        changed = [number, *table[name].to_pylist()[1:]]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(changed))
    pq.write_table(table, files.reference)
    with pytest.raises(ArtefactError, match=r"no run can give that|cannot be measured|not a cell row"):
        load_development(files)


def test_a_row_that_is_no_cell_is_refused_with_its_file(cell_writer: CellWriter) -> None:
    files = cell_writer.write()
    table = pq.read_table(files.reference)
    pq.write_table(table.rename_columns({"slo_met": "slo_meet"}), files.reference)
    with pytest.raises(ArtefactError, match=r"reference\.parquet: not a cell row"):
        load_development(files)


def test_a_file_that_is_no_parquet_is_refused_with_the_remedy(synthetic_files: CellFiles, tmp_path: Path) -> None:
    broken = tmp_path / "cells.parquet"
    broken.write_bytes(b"not parquet")
    with pytest.raises(ArtefactError, match=r"not a readable Parquet file.*make simulate"):
        load_development(replace(synthetic_files, reference=broken))


def test_an_absent_file_is_refused(synthetic_files: CellFiles, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"absent\.parquet: .*No such file.*make simulate"):
        load_development(replace(synthetic_files, reference=tmp_path / "absent.parquet"))
