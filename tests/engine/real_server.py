"""A sweep of the real engine on a CPU, small enough for a test: random weights, short windows."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_runner.files import read_json
from bench_runner.results import ResultsFolder
from service.domain.cell import CellResult

ROOT = Path(__file__).parents[2]
MODEL = "bench_runner/tiny_model"
FEW_SEQS, MANY_SEQS, NO_CACHE = "s4-b2048-g0.90-p1", "s64-b2048-g0.90-p1", "s64-b2048-g0.90-p0"
SERVER_ARGUMENTS = "--load-format=dummy --dtype=float32 --enforce-eager --block-size=16"
# Far above what anything here takes on two cores that others use, too.
LONGEST_S = 1800


def bench_runner(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does, from the checkout and without a network."""
    return subprocess.run(
        [sys.executable, "-m", "bench_runner", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=check,
    )


def write_plan(path: Path, *, configs: Sequence[str], workloads: Path | None = None) -> Path:
    """A plan for this machine's CPU: the committed workloads, windows of 5 s."""
    bench_runner(
        "plan", "--name=mini", f"--model={MODEL}", f"--workload={workloads or f'{MODEL}/workloads.json'}",
        "--config", *configs, "--gpu=CPU", "--memory-gib=1", "--warm-up-s=1", "--window-s=5", f"--output={path}",
    )  # fmt: skip
    return path


@dataclass(frozen=True, slots=True)
class MiniSweep:
    """The folder of a sweep that has ended."""

    folder: ResultsFolder

    def cell(self, config: str, workload: str, clients: int) -> tuple[CellResult, dict[str, Any]]:
        """A row and its record."""
        found = [
            (result, run)
            for result, run in self.folder.measured_rows()
            if result.key.config_id == config and result.key.workload == workload and result.key.concurrency == clients
        ]
        assert len(found) == 1
        return found[0]

    def runs(self) -> list[dict[str, Any]]:
        """What is written down about each server."""
        return [read_json(path) for path in sorted((self.folder.path / "runs").glob("*.json"))]


def write_workload(path: Path, **numbers: object) -> Path:
    """One workload as a user writes it."""
    path.write_text(json.dumps(numbers))
    return path
