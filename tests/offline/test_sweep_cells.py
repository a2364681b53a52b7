from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline.__main__ import main
from offline.sweep_cells import read_sweep
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload

MEASURED = Provenance(
    evidence="measured-cpu", gpu="CPU", engine_version="0.28.0", scheduler="a real vllm serve", step_times="wall clock"
)


def cell(config_id: str, *, clients: int = 4, throughput: float = 100.0, slo_met: bool = True) -> CellResult:
    return CellResult(
        key=CellKey(model="tiny", workload="short", concurrency=clients, config_id=config_id),
        workload=Workload(prompt_tokens=64, max_new_tokens=8, shared_prefix_ratio=0.0, concurrency=clients),
        plan_sha256="0" * 64,
        provenance=MEASURED,
        status="ok",
        failure_cause=None,
        completed=3,
        waiting_at_end=0,
        running_at_end=0,
        error_rate=0.0,
        output_throughput_tps=throughput,
        ttft_p50_ms=1.0,
        ttft_p95_ms=2.0,
        tpot_p50_ms=1.0,
        tpot_p95_ms=2.0,
        kv_usage_peak=None,
        preemptions=None,
        cached_token_ratio=None,
        slo_met=slo_met,
    )


def write(path: Path, *cells: CellResult) -> Path:
    pq.write_table(pa.Table.from_pylist([one.to_row() for one in cells]), path)
    return path


def test_lists_of_a_measured_sweep_are_read_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "cells.parquet",
        cell("a"),
        cell("b", throughput=200.0, slo_met=False),
        cell("a", clients=8, slo_met=False),
        cell("b", clients=8, slo_met=False),
    )
    described = read_sweep(path).describe()
    assert (described["evidence"], described["scenarios"], described["config_ids"]) == ("measured-cpu", 2, ["a", "b"])
    # The faster configuration violates the SLO; with 8 clients all do.
    assert described["best"] == {"tiny|short|c4": "a", "tiny|short|c8": None}
    assert main(["cells", str(path)]) == 0
    assert '"evidence": "measured-cpu"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([cell("a"), cell("a")], "doubled: tiny|short|c4|a"),
        ([cell("a"), cell("b"), cell("a", clients=8)], "lists are not complete: tiny|short|c8"),
        ([cell("a"), replace(cell("b"), provenance=replace(MEASURED, gpu="NVIDIA-B200"))], "of another provenance"),
        ([cell("a"), replace(cell("b"), plan_sha256="1" * 64)], "of another plan"),
    ],
)
def test_what_is_no_complete_set_of_lists_is_refused(tmp_path: Path, cells: list[CellResult], words: str) -> None:
    with pytest.raises(ArtefactError) as refused:
        read_sweep(write(tmp_path / "cells.parquet", *cells))
    assert words in str(refused.value)


def test_a_file_that_is_no_parquet_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cells.parquet").write_text("no")
    assert main(["cells", str(tmp_path / "cells.parquet")]) == 1
    assert "not a readable Parquet file" in capsys.readouterr().err
