"""How far a choice hangs on what is assumed: the arithmetic by hand, and a run that is stopped and goes on."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_runner.sensitivity import (
    ASSUMED,
    DEV_SCENARIOS,
    VARIATIONS,
    Case,
    Outcomes,
    Variation,
    blocks_under,
    choices,
    compare,
    dev_cases,
    distribution,
    losses,
    reference_cases,
    run_case,
)
from bench_runner.sensitivity_command import FOLDER, PLOT, RESULT, SECTION, sensitivity
from bench_runner.sensitivity_section import draw, section
from bench_runner.simulator import SimulationSettings, Window
from service.domain.candidate import CANDIDATES
from service.domain.errors import ArtefactError
from service.domain.memory import kv_blocks

ROOT = Path(__file__).parents[2]
ONLY_ASSUMED = Variation(parameter=ASSUMED, value="")


def outcomes(tps: list[list[float]], met: list[list[int]]) -> Outcomes:
    return Outcomes(tps=np.array(tps, dtype=np.float64), met=np.array(met, dtype=np.bool_))


def quick_cases() -> list[Case]:
    """Two scenarios of the reference whose runs take a few milliseconds."""
    quick = Window(warm_up_ms=500.0, length_ms=3000.0)
    return [replace(case, window=quick) for case in reference_cases() if case.name.startswith("Qwen/Qwen3-0.6B|chat|")][
        :2
    ]


def test_the_choice_is_the_fastest_that_meets_the_slo_and_the_fastest_where_none_does() -> None:
    seen = outcomes([[5, 9, 7], [5, 9, 7], [4, 4, 0]], [[1, 0, 1], [0, 0, 0], [1, 1, 0]])
    assert choices(seen).tolist() == [2, 1, 0]


def test_a_choice_loses_its_distance_from_the_best_and_everything_where_it_violates() -> None:
    """9 instead of 10; a violation; a scenario in which nobody meets the SLO."""
    seen = outcomes([[10, 9], [10, 9], [10, 9]], [[1, 1], [1, 0], [0, 0]])
    loss = losses(np.array([1, 1, 1]), seen)
    assert loss[:2].tolist() == pytest.approx([0.1, 1.0])
    assert np.isnan(loss[2])


def test_a_change_among_near_ties_counts_as_changed_and_not_beyond() -> None:
    """Scenario 1 changes and costs 1 % either way; 2 changes and costs 20 %; 3 does not change."""
    assumed = outcomes([[100, 99], [100, 90], [5, 1]], [[1, 1], [1, 1], [1, 1]])
    varied = outcomes([[99, 100], [80, 100], [5, 1]], [[1, 1], [1, 1], [1, 1]])
    found = compare(assumed, varied)
    assert found["scenarios"] == 3
    assert found["changed"] == pytest.approx(2 / 3)
    assert found["changed_beyond_near_ties"] == pytest.approx(1 / 3)
    assert found["assumed_choice_loses"] == {
        "n": 3,
        "mean": 0.07,
        "median": 0.01,
        # 0.9 of the way from 1 % to 20 %.
        "p95": 0.181,
        "max": 0.2,
    }
    assert found["varied_choice_loses"]["max"] == pytest.approx(0.1)
    assert found["assumed_choice_loses_beyond_near_ties"]["median"] == pytest.approx(0.2)
    assert found["assumed_choice_newly_violates"] == 0


def test_a_choice_that_violates_under_the_other_values_is_counted() -> None:
    """In the second scenario nobody meets the SLO, so nothing is newly violated there."""
    assumed = outcomes([[10, 9], [10, 9]], [[1, 1], [1, 1]])
    varied = outcomes([[10, 9], [10, 9]], [[0, 1], [0, 0]])
    found = compare(assumed, varied)
    assert found["assumed_choice_newly_violates"] == 0.5
    assert found["assumed_choice_loses"] == {"n": 1, "mean": 1.0, "median": 1.0, "p95": 1.0, "max": 1.0}
    assert distribution(np.array([np.nan])) == {"n": 0, "mean": None, "median": None, "p95": None, "max": None}


def test_more_other_memory_is_taken_from_the_kv_cache() -> None:
    """3.5 GiB more are 3.5 · 2³⁰ ÷ (16 tokens · bytes of a token) blocks, whatever the utilisation."""
    case = reference_cases()[0]
    more = Variation(parameter="other memory", value="7 GiB", other_memory_gib=7.0)
    for candidate in CANDIDATES:
        lost = kv_blocks(case.model, candidate, memory_gib=178.0) - blocks_under(more, case.model, candidate)
        assert lost == pytest.approx(3.5 * 2**30 / (16 * case.model.kv_bytes_per_token), abs=1)


def test_kernel_factors_act_on_their_own_part_of_the_table() -> None:
    table = reference_cases()[0].table
    dense = Variation(parameter="dense kernels", value="+20 %", dense=1.2).table(table)
    assert np.allclose(dense.dense_ms, 1.2 * table.dense_ms)
    assert np.array_equal(dense.context_ms, table.context_ms)
    attention = Variation(parameter="attention kernels", value="-20 %", attention=0.8).table(table)
    assert np.allclose(attention.generation_ms, 0.8 * table.generation_ms)
    assert np.array_equal(attention.head_ms, table.head_ms)


def test_every_uncertain_parameter_is_moved_both_ways() -> None:
    assert len({one.name for one in VARIATIONS}) == len(VARIATIONS)
    assert VARIATIONS[0].parameter == ASSUMED
    moved = [one for one in VARIATIONS if one.settings]
    for name in ("host_step_ms", "host_sequence_ms", "request_ms", "prompt_token_ms", "output_token_ms"):
        values = [one.settings[name] for one in moved if name in one.settings]
        assumed = getattr(SimulationSettings(), name)
        assert {assumed / 2, assumed * 2} <= set(values)
    assert {one.dense for one in VARIATIONS} == {0.8, 1.0, 1.2} == {one.attention for one in VARIATIONS}
    assert {one.other_memory_gib for one in VARIATIONS} == {1.75, 2.5, 3.5, 4.5, 7.0}


def test_the_scenarios_are_the_references_96_and_a_spread_over_the_dev_set() -> None:
    assert len(reference_cases()) == 96
    dev = dev_cases()
    assert len({case.name for case in dev}) == DEV_SCENARIOS
    assert len({case.model.name for case in dev}) > 5


def test_a_set_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="restore the committed file"):
        dev_cases(tmp_path / "none.parquet")


def test_a_slower_host_slows_a_small_model_down() -> None:
    """Steps of 0.6B take less than the host's assumed 1.8 ms. With 5 ms, 4 clients get at most 200 tokens/s each."""
    case = quick_cases()[0]
    slow = Variation(parameter="host_step_ms", value="5", settings={"host_step_ms": 5.0})
    tps, _ = run_case(case, slow)
    assert 0 < max(tps) < 4 * 200 * 1.01
    assert max(run_case(case, ONLY_ASSUMED)[0]) > 2 * max(tps)


def test_what_is_on_disk_is_not_simulated_again(tmp_path: Path) -> None:
    """A number in the file that no run gives shows up in the result; a torn line is simulated again."""
    cases, some = {"reference": quick_cases()}, (ONLY_ASSUMED, VARIATIONS[1])
    first = sensitivity(cases, some, work=tmp_path)
    (path,) = tmp_path.glob("outcomes-*.jsonl")
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    changed = json.loads(lines[2])
    # Candidate 3 becomes by far the fastest under the other seed, and the only one that meets the SLO.
    changed["tps"], changed["met"] = [1.0] * 3 + [1e9] + [1.0] * 11, [False] * 3 + [True] + [False] * 11
    path.write_text("\n".join([*lines[:2], json.dumps(changed), lines[3][:20]]))
    second = sensitivity(cases, some, work=tmp_path)
    assert first["rows"][0]["assumed_choice_newly_violates"] == 0
    assert second["rows"][0]["assumed_choice_newly_violates"] == 0.5
    assert path.read_text().splitlines()[3] == lines[3]


def test_a_signal_ends_it_cleanly_and_it_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench_runner", "sensitivity", "--sets", "reference"]
    process = subprocess.Popen(
        [*command, "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out.json")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(
        path.stat().st_size for path in (tmp_path / "work").glob("outcomes-*.jsonl")
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "run the same command to go on" in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "out.json").exists()


def test_the_committed_section_says_what_the_committed_result_says() -> None:
    result = json.loads((FOLDER / RESULT).read_text())
    assert {row["set"] for row in result["rows"]} == {"reference", "dev"}
    assert len(result["rows"]) == 2 * (len(VARIATIONS) - 1)
    assert (FOLDER / SECTION).read_text() == section(result, plot=PLOT)
    assert draw(result).startswith(b"\x89PNG")


def test_a_result_of_something_else_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    command = [
        sys.executable,
        "-m",
        "bench_runner",
        "sensitivity",
        "--report",
        "--output",
        str(tmp_path / "other.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "run it without --report" in done.stderr
