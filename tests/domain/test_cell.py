import json
from dataclasses import replace
from typing import Any

import pytest

from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload

PROVENANCE = Provenance(
    evidence="simulated", gpu="NVIDIA-B200", engine_version="0.28.0", scheduler="own-1", step_times="b200_sxm"
)
OK = CellResult(
    key=CellKey(model="Qwen/Qwen3-8B", workload="chat", concurrency=64, config_id="s256-b8192-g0.90-p1"),
    workload=Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=64),
    plan_sha256="a" * 64,
    provenance=PROVENANCE,
    status="ok",
    failure_cause=None,
    completed=321,
    waiting_at_end=0,
    running_at_end=64,
    error_rate=0.0,
    output_throughput_tps=5000.5,
    ttft_p50_ms=100.0,
    ttft_p95_ms=250.0,
    tpot_p50_ms=6.0,
    tpot_p95_ms=7.5,
    kv_usage_peak=0.25,
    preemptions=3,
    cached_token_ratio=0.0,
    slo_met=True,
)
FAILED = replace(
    OK,
    status="failed",
    failure_cause="kv_cache_too_small",
    completed=0,
    waiting_at_end=None,
    running_at_end=None,
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
COLUMNS = [
    "schema_version",
    "cell_id",
    "evidence",
    "gpu",
    "engine_version",
    "scheduler",
    "step_times",
    "model",
    "workload",
    "concurrency",
    "config_id",
    "prompt_tokens",
    "max_new_tokens",
    "shared_prefix_ratio",
    "plan_sha256",
    "status",
    "failure_cause",
    "completed",
    "waiting_at_end",
    "running_at_end",
    "error_rate",
    "output_throughput_tps",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "kv_usage_peak",
    "preemptions",
    "cached_token_ratio",
    "slo_met",
]


def test_a_key_reads_as_its_cell_and_its_scenario() -> None:
    assert OK.key.cell_id == "Qwen/Qwen3-8B|chat|c64|s256-b8192-g0.90-p1"
    assert OK.key.scenario_id == "Qwen/Qwen3-8B|chat|c64"


def test_a_row_is_flat_and_has_every_column_once() -> None:
    row = OK.to_row()
    assert sorted(row) == sorted(COLUMNS)
    assert (row["workload"], row["concurrency"], row["prompt_tokens"]) == ("chat", 64, 512)
    assert (row["schema_version"], row["evidence"], row["slo_met"]) == (1, "simulated", True)


@pytest.mark.parametrize("cell", [OK, FAILED, replace(OK, tpot_p50_ms=None, tpot_p95_ms=None)])
def test_a_row_read_back_is_the_cell_also_after_json(cell: CellResult) -> None:
    assert CellResult.from_row(cell.to_row()) == cell
    assert CellResult.from_row(json.loads(json.dumps(cell.to_row(), allow_nan=False))) == cell


def test_reading_leaves_the_row_as_it_was() -> None:
    row = OK.to_row()
    CellResult.from_row(row)
    assert row == OK.to_row()


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_refused(column: str) -> None:
    row = OK.to_row()
    del row[column]
    with pytest.raises(ArtefactError):
        CellResult.from_row(row)


def test_a_foreign_column_is_refused_by_name() -> None:
    with pytest.raises(ArtefactError, match="goodput"):
        CellResult.from_row({**OK.to_row(), "goodput": 1.0})


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_version_is_refused_with_both(version: object) -> None:
    with pytest.raises(ArtefactError, match=r"schema_version .* reads 1; simulate again"):
        CellResult.from_row({**OK.to_row(), "schema_version": version})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("cell_id", "Qwen/Qwen3-8B|chat|c64|s32-b2048-g0.45-p1"),
        ("cell_id", None),
        ("config_id", "s32-b2048-g0.45-p1"),
        ("workload", "rag"),
        ("model", "Qwen/Qwen3-4B"),
        ("concurrency", 16),
    ],
)
def test_a_cell_id_that_contradicts_its_columns_is_refused(column: str, value: object) -> None:
    with pytest.raises(ArtefactError, match="does not belong to"):
        CellResult.from_row({**OK.to_row(), column: value})


@pytest.mark.parametrize("evidence", ["guessed", "", "Measured", None])
def test_evidence_is_one_of_three_classes(evidence: Any) -> None:
    with pytest.raises(ArtefactError, match="measured, measured-cpu, simulated"):
        replace(PROVENANCE, evidence=evidence)
    with pytest.raises(ArtefactError, match="measured, measured-cpu, simulated"):
        CellResult.from_row({**OK.to_row(), "evidence": evidence})


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"failure_cause": "server_did_not_start"},
    ],
)
def test_a_cause_belongs_to_a_failed_cell_and_to_no_other(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="failure_cause"):
        replace(OK, **changes)


@pytest.mark.parametrize("changes", [{"slo_met": True}, {"output_throughput_tps": 1.0}, {"completed": 1}])
def test_a_failed_cell_has_no_throughput_and_meets_no_slo(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="a failed cell has no throughput and meets no SLO"):
        replace(FAILED, **changes)


@pytest.mark.parametrize("changes", [{"completed": 0}, {"ttft_p95_ms": None}])
def test_a_cell_that_is_ok_completed_something(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="status ok with nothing completed"):
        replace(OK, **changes)


@pytest.mark.parametrize("status", ["banana", "OK", "", None])
def test_a_status_is_ok_or_failed(status: Any) -> None:
    with pytest.raises(ArtefactError):
        replace(OK, status=status)


@pytest.mark.parametrize(
    "changes",
    [
        {"output_throughput_tps": float("nan")},
        {"output_throughput_tps": float("inf")},
        {"output_throughput_tps": -1.0},
        {"ttft_p95_ms": float("nan")},
        {"completed": -1},
        {"error_rate": 1.5},
        {"error_rate": float("nan")},
        {"slo_met": None},
    ],
    ids=repr,
)
def test_a_number_that_no_run_can_give_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError):
        replace(OK, **changes)


def test_a_workload_of_another_concurrency_than_the_key_is_refused() -> None:
    # Its row would say 64 and read back as another cell.
    with pytest.raises(ArtefactError):
        replace(OK, workload=replace(OK.workload, concurrency=16))


@pytest.mark.parametrize(
    ("column", "value"), [("prompt_tokens", 0), ("max_new_tokens", "256"), ("shared_prefix_ratio", 2.0)]
)
def test_a_row_with_an_impossible_workload_is_a_damaged_file_and_not_a_users_mistake(
    column: str, value: object
) -> None:
    with pytest.raises(ArtefactError, match=column):
        CellResult.from_row({**OK.to_row(), column: value})
