"""`bench_runner simulate --cell`: one cell as a row, and as a picture over time."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_runner.cell_drawing import draw_view
from bench_runner.cell_view import CellView, key_of, view_cell
from bench_runner.plan import Plan, reference_plan
from bench_runner.report import read_cells
from bench_runner.simulate import CellSimulator, simulator_of
from bench_runner.simulator import SimulationSettings
from service.domain.candidate import Candidate
from service.domain.errors import InvalidInputError, UnknownNameError

ROOT = Path(__file__).parents[2]
CELL = "Qwen/Qwen3-8B|summarize|c64|s32-b2048-g0.45-p1"
# Answers are complete within a second, so that a short window sees some.
QUICK = "Qwen/Qwen3-0.6B|chat|c64|s32-b2048-g0.45-p1"


def short_plan(*, candidate: Candidate | None = None) -> Plan:
    """The reference with two seconds of window and, if given, another only candidate."""
    plan = replace(reference_plan(), name="short", warm_up_s=1.0, window_s=2.0)
    return plan if candidate is None else replace(plan, candidates=(candidate,))


def simulator(plan: Plan) -> CellSimulator:
    return simulator_of(plan, settings=SimulationSettings())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench_runner", "simulate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def view() -> CellView:
    plan = short_plan()
    return view_cell(simulator(plan), key_of(plan, QUICK))


def test_what_is_seen_is_the_run_that_the_row_is_of(view: CellView) -> None:
    plan = short_plan()
    row = simulator(plan).fill(key_of(plan, QUICK))
    assert view.tokens_in_window / plan.window_s == row.output_throughput_tps
    assert row.ttft_p95_ms is not None
    assert view.ttft_ms.max() >= row.ttft_p95_ms >= view.ttft_ms.min()
    inside = view.kv_usage[view.end_ms > view.window.warm_up_ms]
    assert inside.max() == row.kv_usage_peak


def test_no_step_exceeds_what_the_configuration_allows(view: CellView) -> None:
    """Prompts of 6,000 tokens come in chunks that fill every step of 2,048 while there is a prompt."""
    assert view.running.max() == 32
    plan = short_plan()
    chunked = view_cell(simulator(plan), key_of(plan, QUICK.replace("chat", "rag")))
    assert (chunked.prefill_tokens + chunked.decode_tokens).max() == 2048
    assert 0 < chunked.kv_usage.max() <= 1
    assert (np.diff(chunked.end_ms) > 0).all()


def test_clients_that_the_limit_keeps_out_are_seen_waiting(view: CellView) -> None:
    """64 clients, 32 sequences: when all have sent, nobody is done yet, and 32 run, the other 32 wait."""
    assert view.waiting[view.running == 32].max() == 32


def test_a_lone_request_is_one_prefill_and_then_a_decode_per_token() -> None:
    """chat: 512 prompt tokens in one step of 8192, the first token from it, 255 further steps of one token each."""
    plan = replace(short_plan(), concurrencies=(1,))
    found = view_cell(simulator(plan), key_of(plan, "Qwen/Qwen3-8B|chat|c1|s256-b8192-g0.90-p0"))
    assert found.prefill_tokens[0] == 512
    assert found.decode_tokens[:256].tolist() == [0] + [1] * 255
    assert found.prefill_tokens[1:256].tolist() == [0] * 255
    assert found.running.max() == 1
    assert found.waiting.max() == 0
    assert found.first_token_ms[0] > found.end_ms[0]


def test_a_picture_is_the_same_whenever_it_is_drawn(view: CellView) -> None:
    plan = short_plan()
    key = key_of(plan, QUICK)

    def picture(name: str) -> bytes:
        return draw_view(view, key=key, candidate=plan.candidate(key), slo=plan.slo, format_name=name)

    assert picture("svg") == picture("svg")
    assert picture("png").startswith(b"\x89PNG")
    with pytest.raises(InvalidInputError, match=r"plot: 'jpg' .* \.png or \.svg"):
        picture("jpg")


def test_a_cell_whose_server_would_not_start_has_nothing_to_plot() -> None:
    small = Candidate(
        max_num_seqs=32, max_num_batched_tokens=2048, gpu_memory_utilization=0.1, enable_prefix_caching=True
    )
    plan = short_plan(candidate=small)
    with pytest.raises(InvalidInputError, match="would not start"):
        view_cell(simulator(plan), key_of(plan, f"Qwen/Qwen3-8B|chat|c4|{small.config_id}"))


def test_an_unknown_id_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as refused:
        key_of(reference_plan(), "Qwen/Qwen3-8B|summarise|c64|s32-b2048-g0.45-p1")
    assert refused.value.known[0] == CELL
    assert "of 1440 known names" in str(refused.value)


def test_the_command_prints_the_committed_row_and_draws_it(tmp_path: Path) -> None:
    done = run("--cell", CELL, "--json", "--plot", str(tmp_path / "cell.png"))
    assert done.returncode == 0, done.stderr
    committed = next(
        row for row in read_cells(ROOT / "bench_runner" / "cells" / "reference.parquet") if row.key.cell_id == CELL
    )
    assert json.loads(done.stdout) == committed.to_row()
    assert (tmp_path / "cell.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["cell.png"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--cell", "nothing"), 1, "those that resemble it most"),
        (("--cell", CELL, "--results", "x"), 2, "leave --results out"),
        (("--plot", "x.png"), 2, "--cell ID"),
        (("--cell", CELL, "--plot", "{folder}/x.gif"), 1, ".png or .svg"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = run(*(part.format(folder=tmp_path) for part in arguments))
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
