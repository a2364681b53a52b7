from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner.files import write_atomically
from bench_runner.plan import Plan, reference_plan
from bench_runner.results import ResultsFolder, Shard, check_rows, write_parquet
from bench_runner.simulate import CellSimulator
from bench_runner.simulator import SimulationSettings
from bench_runner.step_time import load_step_tables
from service.domain.candidate import CANDIDATES
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two quick cells."""
    whole = reference_plan()
    return replace(
        whole,
        name="small",
        models=whole.models[:1],
        workloads=whole.workloads[:1],
        concurrencies=(4,),
        candidates=CANDIDATES[:2],
        warm_up_s=0.5,
        window_s=2.0,
    )


@pytest.fixture(scope="module")
def rows(plan: Plan) -> list[CellResult]:
    simulator = CellSimulator(plan=plan, settings=SimulationSettings(), tables=load_step_tables())
    return [simulator.fill(key) for key in plan.cells()]


def test_rows_read_back_equal_what_was_appended(tmp_path: Path, plan: Plan, rows: list[CellResult]) -> None:
    folder = ResultsFolder.open(tmp_path, plan)
    appender = folder.appender(Shard(index=0, count=1))
    for row in rows:
        appender.append(row)
    appender.close()
    assert list(ResultsFolder.open(tmp_path, plan).rows()) == rows


def test_a_torn_last_line_is_no_row_and_the_next_row_does_not_join_it(
    tmp_path: Path, plan: Plan, rows: list[CellResult]
) -> None:
    folder, shard = ResultsFolder.open(tmp_path, plan), Shard(index=0, count=1)
    appender = folder.appender(shard)
    appender.append(rows[0])
    appender.close()
    with (tmp_path / shard.file_name).open("ab") as file:
        file.write(b'{"schema_version": 1, "cell_')
    assert list(folder.rows()) == rows[:1]
    appender = folder.appender(shard)
    appender.append(rows[1])
    appender.close()
    assert list(folder.rows()) == rows


def test_a_folder_of_another_plan_is_refused_with_both_hashes(tmp_path: Path, plan: Plan) -> None:
    ResultsFolder.open(tmp_path, plan)
    other = replace(plan, seed=9)
    with pytest.raises(ArtefactError, match=f"{plan.sha256}.*{other.sha256}"):
        ResultsFolder.open(tmp_path, other)


def test_merging_refuses_missing_doubled_foreign_and_mixed_rows(plan: Plan, rows: list[CellResult]) -> None:
    assert check_rows(plan, rows[::-1]) == rows
    with pytest.raises(ArtefactError, match="1 cells missing"):
        check_rows(plan, rows[:1])
    with pytest.raises(ArtefactError, match="1 cells doubled"):
        check_rows(plan, [*rows, rows[0]])
    with pytest.raises(ArtefactError, match="belongs to plan"):
        check_rows(plan, [rows[0], replace(rows[1], plan_sha256="0" * 64)])
    foreign = replace(
        rows[1], key=replace(rows[1].key, concurrency=8), workload=replace(rows[1].workload, concurrency=8)
    )
    with pytest.raises(ArtefactError, match="not in the plan"):
        check_rows(plan, [*rows, foreign])
    mixed = replace(rows[1], provenance=replace(rows[1].provenance, evidence="measured"))
    with pytest.raises(ArtefactError, match="different provenance"):
        check_rows(plan, [rows[0], mixed])


def test_equal_rows_give_equal_parquet_bytes(tmp_path: Path, rows: list[CellResult]) -> None:
    write_parquet(rows, tmp_path / "a.parquet")
    write_parquet(rows, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_shards_partition_the_plan() -> None:
    plan = reference_plan()
    parts = [Shard(index=i, count=7).cells(plan) for i in range(7)]
    assert sorted(k.cell_id for part in parts for k in part) == sorted(k.cell_id for k in plan.cells())
    with pytest.raises(ArtefactError, match="0 to count"):
        Shard(index=7, count=7)


def test_a_cell_whose_server_would_not_start_is_a_row_with_a_cause(plan: Plan) -> None:
    tiny = replace(plan, memory_gib=6.0)
    simulator = CellSimulator(plan=tiny, settings=SimulationSettings(), tables=load_step_tables())
    row = simulator.fill(next(iter(tiny.cells())))
    assert (row.status, row.failure_cause, row.output_throughput_tps) == ("failed", "kv_cache_too_small", 0.0)
    assert row.ttft_p95_ms is None
    assert not row.slo_met


def test_a_window_in_which_nothing_completes_is_a_failed_row_and_not_a_division_by_zero(plan: Plan) -> None:
    short = replace(plan, warm_up_s=0.0, window_s=0.01)
    simulator = CellSimulator(plan=short, settings=SimulationSettings(), tables=load_step_tables())
    row = simulator.fill(next(iter(short.cells())))
    assert (row.status, row.failure_cause) == ("failed", "no_request_completed")


def test_a_file_that_cannot_be_written_is_one_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "below.json", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
