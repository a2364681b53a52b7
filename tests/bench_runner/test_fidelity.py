import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner.fidelity import Compared, ComparedCell, ServerFacts, cell_lines, ordered_alike, summary_lines
from bench_runner.files import write_json
from bench_runner.step_time_fit import write_tables
from service.domain.cell import CellKey
from service.domain.errors import ArtefactError
from tests.bench_runner.sweeping import run_runner, small_plan, sweep_arguments
from tests.bench_runner.test_step_time_fit import CPU, POINTS

TINY_MODEL = Path(__file__).resolve().parents[2] / "bench_runner" / "tiny_model"
TPS = "output_throughput_tps"


def cell(config: str, metric: Compared, *, workload: str = "chat") -> ComparedCell:
    key = CellKey(model="tiny", workload=workload, concurrency=8, config_id=config)
    return ComparedCell(key=key, metrics={TPS: metric}, invalid_cause=None)


def throughput(low: float, measured: float, high: float, predicted: float) -> Compared:
    return Compared(measured=measured, low=low, high=high, predicted=predicted)


def test_an_error_is_a_share_of_what_was_measured_and_noise_half_the_range() -> None:
    metric = throughput(90, 100, 130, 125)
    assert metric.error == pytest.approx(0.25)
    assert metric.noise == pytest.approx(0.2)
    assert metric.within_range is True


def test_one_repetition_says_nothing_about_noise() -> None:
    metric = Compared(measured=100, low=None, high=None, predicted=110)
    assert metric.noise is None
    assert metric.within_range is None
    assert "100 | 110 (+10%)" in cell_lines([cell("a", metric)])[2]
    assert summary_lines([cell("a", metric)])[3] == "| noise of the measurement, median (largest) | – | – | – |"


def test_only_pairs_beyond_the_noise_are_asked_for_their_order() -> None:
    slow, fast = throughput(90, 100, 110, 100), throughput(190, 200, 210, 90)
    between = throughput(105, 150, 195, 95)
    # In `chat` only slow and fast lie apart, and they are predicted the other way round; in `rag` they are not.
    cells = [cell("a", slow), cell("b", fast), cell("c", between)]
    assert ordered_alike(cells) == (0, 1)
    right = replace(fast, predicted=180)
    assert ordered_alike([*cells, cell("a", slow, workload="rag"), cell("b", right, workload="rag")]) == (1, 2)


def test_the_summary_is_over_cells() -> None:
    cells = [cell("a", throughput(95, 100, 105, 104)), cell("b", throughput(90, 100, 110, 150))]
    error, noise, inside = (line.split("|")[2].strip() for line in summary_lines(cells)[2:])
    assert error == "27% (50%)"
    assert noise == "8% (10%)"
    assert inside == "1 of 2"


def test_a_server_with_other_blocks_than_the_simulator_cannot_be_compared(tmp_path: Path) -> None:
    run = {"cache_config": {"block_size": "128", "num_gpu_blocks": "10"}, "protocol": {"ramp_s": 1.0}}
    write_json(tmp_path / "run.json", run)
    with pytest.raises(ArtefactError, match="--block-size=16"):
        ServerFacts.read(tmp_path / "run.json")


def test_a_sweep_and_tables_become_a_page(tmp_path: Path) -> None:
    plan = small_plan()
    swept = run_runner(sweep_arguments(tmp_path, plan, options=["--repetitions=2"]))
    assert swept.returncode == 0, swept.stderr
    write_tables(tmp_path / "cpu.json", model=str(plan.models[0].name), steps=POINTS, cpu=CPU)
    arguments = ["fidelity", f"--results={tmp_path / 'results'}", f"--tables={tmp_path / 'cpu.json'}"]
    written = run_runner([*arguments, f"--output={tmp_path / 'FIDELITY.md'}"])
    assert written.returncode == 0, written.stderr
    page = (tmp_path / "FIDELITY.md").read_text()
    assert "2 windows of 0.4 s per cell" in page
    assert page.count("| short | 2 |") == 2
    again = run_runner([*arguments, f"--output={tmp_path / 'again.md'}"])
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.md").read_text() == page


def test_a_folder_that_is_no_sweep_is_refused_in_one_line(tmp_path: Path) -> None:
    arguments = ["fidelity", f"--results={tmp_path}", "--tables=none.json", f"--output={tmp_path / 'FIDELITY.md'}"]
    refused = run_runner(arguments)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"error: {tmp_path} has no plan.json; give the folder of a sweep"


def test_a_probe_of_what_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    refused = run_runner(
        [
            "probe",
            f"--model={tmp_path / 'none'}",
            "--device=cpu",
            "--server-command=true",
            f"--output={tmp_path / 'o.json'}",
        ]
    )
    assert refused.returncode == 1
    assert "no config.json in that folder" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_two_probes_of_one_file_do_not_end_each_other_s_server(tmp_path: Path) -> None:
    arguments = ["probe", f"--model={TINY_MODEL}", "--device=cpu", "--server-command=true"]
    with (tmp_path / "o.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = run_runner([*arguments, f"--output={tmp_path / 'o.json'}"])
    assert refused.returncode == 1
    assert "is being written by another probe" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["o.lock"]
