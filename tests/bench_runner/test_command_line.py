"""The program as a process: what a person or a job sees."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq
import pytest

from bench_runner.plan import load_plan, reference_plan, save_plan
from service.domain.candidate import CANDIDATES

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "bench_runner" / "cells"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench_runner", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("name", ["reference", "engine_default"])
def test_simulating_again_gives_the_committed_cells_bit_for_bit(tmp_path: Path, name: str) -> None:
    results, merged = tmp_path / "results", tmp_path / "cells.parquet"
    assert run("simulate", "--plan", name, "--results", str(results)).returncode == 0
    assert run("merge", "--plan", name, "--results", str(results), "--output", str(merged)).returncode == 0
    assert merged.read_bytes() == (CELLS / f"{name}.parquet").read_bytes()


@pytest.mark.parametrize("name", ["reference", "engine_default"])
def test_the_committed_cells_are_small_simulated_and_of_the_plan(name: str) -> None:
    path = CELLS / f"{name}.parquet"
    assert path.stat().st_size < 2_000_000
    table = pq.read_table(path, columns=["evidence", "plan_sha256"])
    assert set(table["evidence"].to_pylist()) == {"simulated"}
    assert set(table["plan_sha256"].to_pylist()) == {load_plan(name).sha256}


def test_plan_lists_every_cell_and_names_its_hash() -> None:
    done = run("plan")
    assert len(done.stdout.splitlines()) == 1440
    estimate, last = done.stderr.splitlines()
    assert estimate.endswith("= 10.4 GPU hours")
    assert last == f"plan reference: 1440 cells, sha256 {reference_plan().sha256}"


def test_a_plan_of_the_users_own_is_written_and_its_cells_can_be_counted(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(
        '{"name": "mail", "prompt_tokens": 9000, "max_new_tokens": 9, "shared_prefix_ratio": 0, "concurrency": [2, 8]}'
    )
    plan = str(tmp_path / "plan.json")
    wishes = ["--gpu", "h100", "--model", "allenai/OLMo-2-7B", "Qwen/Qwen3-8B", "--workload", str(tmp_path / "w.json")]
    done = run("plan", *wishes, "--config", "s64-b4096-g0.90-p1", "--engine-default", "--output", plan)
    assert done.returncode == 0
    warning, _, last = done.stderr.splitlines()
    assert warning.startswith("warning: allenai/OLMo-2-7B|mail is left out")
    assert last == f"plan own: 4 cells, sha256 {load_plan(plan).sha256}"
    (tmp_path / "results").mkdir()
    status = run("status", "--plan", plan, "--results", str(tmp_path / "results"))
    assert "cells 4 " in status.stdout
    simulate = run("simulate", "--plan", plan, "--results", str(tmp_path / "results"))
    assert simulate.returncode == 1
    assert "step times are of a NVIDIA-B200" in simulate.stderr


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """120 cells that take a few milliseconds each."""
    whole = reference_plan()
    small = replace(
        whole,
        name="short",
        models=whole.models[:2],
        workloads=whole.workloads[:2],
        concurrencies=(4, 16),
        candidates=CANDIDATES,
        warm_up_s=0.5,
        window_s=1.0,
    )
    save_plan(small, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_twenty_kills_at_random_moments_lose_no_row_and_double_none(tmp_path: Path, plan_file: Path) -> None:
    results, rng = tmp_path / "results", random.Random()
    simulate = command("simulate", "--plan", str(plan_file), "--results", str(results), "--jobs", "1")
    for _ in range(20):
        process = subprocess.Popen(simulate, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Starting takes about a second; the rest of the time rows are written.
        time.sleep(rng.uniform(0.1, 2.0))
        process.kill()
        process.wait()
    assert run(*simulate[3:]).returncode == 0
    status = json.loads(run("status", "--plan", str(plan_file), "--results", str(results), "--json").stdout)
    assert (status["ok"] + status["failed"], status["left"]) == (120, 0)
    merge = run("merge", "--plan", str(plan_file), "--results", str(results), "--output", str(tmp_path / "a.parquet"))
    assert merge.returncode == 0
    fresh = tmp_path / "fresh"
    assert run("simulate", "--plan", str(plan_file), "--results", str(fresh)).returncode == 0
    run("merge", "--plan", str(plan_file), "--results", str(fresh), "--output", str(tmp_path / "b.parquet"))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_killed_run_leaves_no_worker_behind(tmp_path: Path) -> None:
    simulate = command("simulate", "--results", str(tmp_path / "results"), "--jobs", "2")
    process = subprocess.Popen(simulate, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers = wait_for(lambda: [pid for pid in children(process.pid) if "spawn_main" in command_of(pid)])
    process.kill()
    process.wait()
    assert workers
    assert wait_for(lambda: not any("spawn_main" in command_of(pid) for pid in workers))


def children(pid: int) -> list[int]:
    """Processes that `pid` started, from any of its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_for(condition: Callable[[], T], *, seconds: float = 60) -> T:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_it_says_how_to_go_on(
    tmp_path: Path, plan_file: Path, number: signal.Signals
) -> None:
    results = tmp_path / "results"
    process = subprocess.Popen(
        command("simulate", "--results", str(results), "--jobs", "1"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert wait_for(lambda: list(results.glob("*.jsonl")))
    time.sleep(1.0)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "run the same command to go on" in stderr
    assert "Traceback" not in stderr


def test_two_shards_merge_to_what_one_run_gives(tmp_path: Path, plan_file: Path) -> None:
    results = tmp_path / "results"
    for index in ("1", "0"):
        done = run(
            "simulate",
            "--plan",
            str(plan_file),
            "--results",
            str(results),
            "--shard-index",
            index,
            "--shard-count",
            "2",
        )
        assert done.returncode == 0
    assert "left 0" in run("status", "--plan", str(plan_file), "--results", str(results)).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "COMMAND"),
        (("simulate",), 2, "--results"),
        (("simulate", "--results", "x", "--plan", "nowhere.json"), 1, "neither a file nor one of"),
        (("simulate", "--results", "{file}/below"), 1, "cannot be written"),
        (("simulate", "--results", "{folder}", "--shard-index", "3", "--shard-count", "2"), 1, "count - 1"),
        (("simulate", "--results", "{folder}", "--jobs", "0"), 2, "--jobs"),
        (("plan", "--gpu", "CPU"), 1, "--memory-gib"),
        (("plan", "--config", "s1-b2"), 1, "s64-b4096-g0.90-p1"),
        (("plan", "--workload", "{file}"), 1, "cannot be read as JSON"),
        (("plan", "--concurrency", "0"), 1, "concurrency: 0"),
        (("plan", "--window-s", "nan"), 1, "window_s: nan"),
        (("plan", "--concurrency", "many"), 2, "--concurrency"),
        (("merge", "--results", "{folder}", "--output", "{folder}/out.parquet"), 1, "is no folder; give the one"),
    ],
)
def test_bad_usage_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "file").write_text("")
    filled = [a.format(file=tmp_path / "file", folder=tmp_path / "results") for a in arguments]
    done = run(*filled)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1
