"""Sets of lists are simulated deterministically, resume where they were stopped, and test sets need a registration."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench_runner.list_files import ListsFolder, read_columns
from bench_runner.list_run import NOT_STARTED, Machine, configurations, machine_of, run_list
from bench_runner.list_sets import ANCHOR_SET, H100, H200, SETS, ScenarioSource, anchors_of, definition_sha256
from bench_runner.lists import check_registered, run_portion, simulate_set
from bench_runner.simulator import SimulationSettings
from service.domain.errors import ArtefactError
from service.domain.gpu import B200, gpu_by_name

ROOT = Path(__file__).parents[2]
SMALL = "train-base"


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "bench_runner", "lists", SMALL, "--results", str(folder), "--jobs", "1", *more]


def test_a_list_has_one_outcome_per_configuration_and_is_the_same_every_time() -> None:
    source = ScenarioSource.of(SETS[SMALL], ())
    first, again = (run_portion(source, [(5, 0)])[0] for _ in range(2))
    assert repr(first) == repr(again)
    assert len(first["status"]) == len(configurations(B200.name)) == 16
    assert 1 <= first["runs"] <= 16


def test_a_configuration_that_does_not_start_is_a_row_with_a_cause() -> None:
    source = ScenarioSource.of(SETS[SMALL], ())
    # Weights of 66 GB leave 0.45 of 178 GiB no room for one request of the model's context.
    index = next(i for i in range(500) if source.scenario(i).architecture.name == "01-ai/Yi-34B")
    row = run_list(source.list_set, source.scenario(index), index, 0)
    for configuration, status, throughput in zip(
        configurations(B200.name), row["status"], row["throughput_tps"], strict=True
    ):
        if status == NOT_STARTED:
            assert configuration.gpu_memory_utilization == 0.45
            assert throughput == 0


def test_the_moved_machine_is_within_half_of_the_assumed_one_and_the_same_for_all_draws() -> None:
    moved = machine_of(SETS["T5"], 4)
    assert moved == machine_of(SETS["T5"], 4)
    assert moved != machine_of(SETS["T5"], 5)
    assert all(0.5 <= value <= 1.5 for value in (moved.host, moved.front_end, moved.dense, moved.kv_cache))
    assert machine_of(SETS["T2"], 4) == Machine()
    assert Machine().settings() == SimulationSettings()


def test_a_run_that_is_stopped_resumes_and_a_killed_one_loses_no_finished_chunk(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    chunks = tmp_path / SMALL
    deadline = time.monotonic() + 300
    while not list(chunks.glob("chunk-*.parquet")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 75
    assert "run the same command to go on" in said
    kept = {path.name: path.read_bytes() for path in chunks.glob("chunk-*.parquet")}
    second = subprocess.Popen(command(tmp_path), cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list(chunks.glob("chunk-*.parquet"))) == len(kept):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(second.pid, signal.SIGKILL)
    second.wait(timeout=60)
    assert {name: (chunks / name).read_bytes() for name in kept} == kept
    folder = ListsFolder(root=tmp_path, list_set=SETS[SMALL])
    assert len(folder.missing()) < len(folder.portions())


def test_chunks_of_another_definition_are_refused(tmp_path: Path) -> None:
    folder = ListsFolder(root=tmp_path, list_set=SETS[SMALL])
    folder.prepare()
    (tmp_path / SMALL / "definition.json").write_text(json.dumps({"definition_sha256": "0" * 64}))
    with pytest.raises(ArtefactError, match="another definition"):
        folder.prepare()


def test_a_test_set_is_not_simulated_without_a_registration_of_its_definition(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="under a registration only"):
        simulate_set(tmp_path, "T2", jobs=1, registration=None)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"split_sha256": "0" * 64}))
    with pytest.raises(ArtefactError, match="fresh test seeds"):
        simulate_set(tmp_path, "T2", jobs=1, registration=other)
    assert not (tmp_path / "T2").exists()
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"split_sha256": definition_sha256()}))
    check_registered(good)


def test_rows_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    source = ScenarioSource.of(SETS[SMALL], ())
    rows = run_portion(source, [(0, 0), (1, 0)])
    folder = ListsFolder(root=tmp_path, list_set=SETS[SMALL])
    folder.write_chunk(0, rows)
    columns = read_columns(folder.chunk(0))
    assert columns["throughput_tps"].shape == (2, 16)
    np.testing.assert_array_equal(columns["status"], [row["status"] for row in rows])
    np.testing.assert_array_equal(columns["prompt_tokens"], [row["prompt_tokens"] for row in rows])


@pytest.mark.parametrize(
    "name",
    [
        "train-base",
        "train-focus",
        "train-nominal",
        "dev",
        "train-rough",
        "h100-train",
        "train-more",
        "nominal-more",
        "rough-more",
        "h200-more",
        "h100-more",
    ],
)
def test_committed_lists_are_drawn_again_row_by_row(name: str) -> None:
    # Whichever definition a file was simulated under: what it holds is what this program draws.
    samples = ROOT / "bench_runner" / "list_samples"
    source = ScenarioSource.of(SETS[name], anchors_of(read_columns(samples / f"{ANCHOR_SET}.parquet")))
    columns, items = read_columns(samples / f"{name}.parquet"), SETS[name].items()
    assert len(columns["scenario"]) == len(items)
    for position in (0, len(items) // 2, len(items) - 1):
        row = run_portion(source, [items[position]])[0]
        assert row["prompt_tokens"] == columns["prompt_tokens"][position]
        for measured in ("throughput_tps", "ttft_p95_ms", "tpot_p95_ms"):
            np.testing.assert_array_equal(np.float32(row[measured]), columns[measured][position])


@pytest.mark.parametrize("gpu", [H200, H100])
def test_lists_of_another_gpu_have_its_default_its_memory_and_its_step_times(gpu: str, tmp_path: Path) -> None:
    assert configurations(gpu)[-1].config_id == "s1024-b8192-g0.92-p1"
    name = next(name for name, one in SETS.items() if one.gpu == gpu)
    source = ScenarioSource.of(SETS[name], ())
    on_b200 = {one.name: one for one in ScenarioSource.of(SETS[SMALL], ()).models}
    for model in source.models:
        assert model.table.dense_ms[8192] > on_b200[model.name].table.dense_ms[8192]
    assert ListsFolder(root=tmp_path, list_set=SETS[name]).metadata()["gpu"] == gpu
    # A 34B model of 66 GiB of weights leaves an H100 of 79 GiB no room at 0.45, and an H200 hardly any.
    index = next(i for i in range(500) if source.scenario(i).architecture.name == "01-ai/Yi-34B")
    row = run_list(SETS[name], source.scenario(index), index, 0)
    low = [one.gpu_memory_utilization * gpu_by_name(gpu).memory_gib < 67.5 for one in configurations(gpu)]
    assert all(status == NOT_STARTED for status, short in zip(row["status"], low, strict=True) if short)
