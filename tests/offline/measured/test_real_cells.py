"""The committed cells of a real vLLM on a CPU, trained on and served."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offline.__main__ import main
from offline.export import read_bundle
from service.domain.manifest import NEVER_MARGIN
from service.policies import load_policy

CELLS = Path(__file__).resolve().parents[3] / "bench_runner" / "measured" / "cpu_sweep"


def test_they_are_measured_on_a_cpu_and_none_of_them_failed() -> None:
    rows = pq.read_table(CELLS / "cells.parquet").to_pylist()
    assert len(rows) == 36
    assert {(row["evidence"], row["gpu"], row["failure_cause"]) for row in rows} == {("measured-cpu", "CPU", None)}


def test_a_bundle_of_them_keeps_their_evidence_and_promises_nothing_from_so_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bundle"
    cells, plan = str(CELLS / "cells.parquet"), str(CELLS / "plan.json")
    assert main(["train", "--cells", cells, "--plan", plan, "--work", str(tmp_path), "--bundle", str(folder)]) == 0
    assert "it never sets flags" in capsys.readouterr().out
    manifest = load_policy(folder).manifest
    assert manifest == read_bundle(folder)
    assert (manifest.evidence, manifest.gpu) == ("measured-cpu", "CPU")
    assert manifest.abstention is not None
    assert manifest.abstention.margin >= NEVER_MARGIN
    assert manifest.held_out is not None
    assert (manifest.held_out.scenarios, manifest.held_out.groups) == (12, 6)
