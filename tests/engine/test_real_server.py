"""The real vLLM 0.28 on a CPU, through the command line. Only effects far above the noise of a busy machine count."""

import json
import socket
from pathlib import Path

import psutil
import pytest

from bench_runner.fidelity import ServerFacts, compare_cell
from bench_runner.files import read_json
from bench_runner.plan import Plan
from bench_runner.results import ResultsFolder, check_rows, write_parquet
from bench_runner.server_process import TOKEN_VARIABLE
from bench_runner.step_time import load_step_tables
from bench_runner.step_time_fit import measured_settings
from offline.sweep_cells import read_sweep
from tests.engine.real_server import (
    FEW_SEQS,
    MANY_SEQS,
    MODEL,
    NO_CACHE,
    ROOT,
    SERVER_ARGUMENTS,
    MiniSweep,
    bench_runner,
    write_plan,
    write_workload,
)

SERVER = ("--device=cpu", f"--server-args={SERVER_ARGUMENTS}")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> MiniSweep:
    """Three configurations × two workloads × two concurrencies, measured twice each."""
    path = tmp_path_factory.mktemp("mini")
    plan = write_plan(path / "plan.json", configs=(FEW_SEQS, MANY_SEQS, NO_CACHE))
    bench_runner("sweep", f"--plan={plan}", f"--results={path / 'results'}", "--repetitions=2", *SERVER)
    return MiniSweep(ResultsFolder.open(path / "results", Plan.from_json(read_json(plan))))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step tables of the same engine."""
    path = tmp_path_factory.mktemp("tables") / "cpu.json"
    bench_runner("probe", f"--model={MODEL}", f"--config={MANY_SEQS}", f"--output={path}", *SERVER)
    return path


def test_every_cell_has_a_measured_row(swept: MiniSweep) -> None:
    rows = check_rows(swept.folder.plan, swept.folder.rows())
    assert len(rows) == 3 * 2 * 2
    assert {row.provenance.evidence for row in rows} == {"measured-cpu"}
    assert {row.status for row in rows} == {"ok"}
    assert all(row.error_rate == 0 and row.completed > 0 for row in rows)


def test_the_offline_loader_reads_the_rows(swept: MiniSweep, tmp_path: Path) -> None:
    # `merge` refuses rows that a busy machine made invalid; here it is their form that counts.
    write_parquet(check_rows(swept.folder.plan, swept.folder.rows()), tmp_path / "cells.parquet")
    cells = read_sweep(tmp_path / "cells.parquet")
    assert cells.provenance.evidence == "measured-cpu"
    assert set(cells.config_ids) == {FEW_SEQS, MANY_SEQS, NO_CACHE}
    assert len(cells.lists) == 4


def test_few_sequences_make_clients_wait_and_tokens_quick(swept: MiniSweep) -> None:
    few, _ = swept.cell(FEW_SEQS, "shared", 32)
    many, _ = swept.cell(MANY_SEQS, "shared", 32)
    assert few.ttft_p50_ms is not None
    assert many.ttft_p50_ms is not None
    assert few.tpot_p50_ms is not None
    assert many.tpot_p50_ms is not None
    # 28 of 32 clients wait for one of 4 places, and a step has 4 rows instead of up to 32.
    assert few.ttft_p50_ms > 2 * many.ttft_p50_ms
    assert few.tpot_p50_ms < many.tpot_p50_ms
    assert few.output_throughput_tps < many.output_throughput_tps


def test_prefix_caching_spares_the_shared_part_and_nothing_else(swept: MiniSweep) -> None:
    cached, run = swept.cell(MANY_SEQS, "shared", 32)
    uncached, _ = swept.cell(NO_CACHE, "shared", 32)
    fresh, _ = swept.cell(MANY_SEQS, "fresh", 32)
    # 409 of 512 tokens are shared, of which whole blocks of 16 are cached: 400.
    assert run["cached_token_ratio_designed"] == pytest.approx(409 / 512)
    assert cached.cached_token_ratio == pytest.approx(400 / 512, abs=0.02)
    assert not uncached.cached_token_ratio
    assert fresh.cached_token_ratio == pytest.approx(0, abs=0.01)
    assert cached.output_throughput_tps > uncached.output_throughput_tps


def test_the_engine_says_that_it_runs_what_was_asked_for(swept: MiniSweep) -> None:
    found = {}
    for run in swept.runs():
        scheduler, cache = run["engine_config"]["scheduler_config"], run["engine_config"]["cache_config"]
        assert scheduler["max_num_batched_tokens"] == 2048
        assert run["cache_config"]["block_size"] == "16"
        found[scheduler["max_num_seqs"], cache["enable_prefix_caching"]] = run["engine_version"]
    assert found == dict.fromkeys([(4, True), (64, True), (64, False)], "0.28.0")


def test_no_process_is_left_and_every_port_is_free(swept: MiniSweep) -> None:
    for run in swept.runs():
        flags = dict(word.split("=", 1) for word in run["command"] if "=" in word)
        token = flags["--served-model-name"].removeprefix("memorypolicy-")
        assert not [process for process in psutil.process_iter() if _token_of(process) == token]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(flags["--port"])))
    assert not list(swept.folder.path.glob("server-*.json"))


def _token_of(process: psutil.Process) -> str | None:
    try:
        return str(process.environ().get(TOKEN_VARIABLE))
    except psutil.Error:
        return None


def test_a_finished_sweep_starts_no_server_again(swept: MiniSweep) -> None:
    plan = swept.folder.path / "plan.json"
    before = len(swept.runs())
    again = bench_runner("sweep", f"--plan={plan}", f"--results={swept.folder.path}", "--repetitions=2", *SERVER)
    assert "0 cells measured" in again.stderr
    assert len(swept.runs()) == before


def test_measured_steps_let_the_simulator_predict_the_same_effects(swept: MiniSweep, tables: Path) -> None:
    def predicted(config: str) -> tuple[float, float]:
        result, run = swept.cell(config, "shared", 32)
        compared = compare_cell(
            result,
            run,
            plan=swept.folder.plan,
            facts=ServerFacts.read(swept.folder.path / "runs" / f"{run['server_run']}.json"),
            table=load_step_tables(tables).of(MODEL),
            settings=lambda ramp_ms: measured_settings(tables, ramp_ms=ramp_ms),
        )
        return compared.metrics["output_throughput_tps"].predicted, compared.metrics["ttft_p50_ms"].predicted

    (few_tps, few_ttft), (many_tps, many_ttft), (uncached_tps, _) = map(predicted, (FEW_SEQS, MANY_SEQS, NO_CACHE))
    assert few_tps < many_tps
    assert uncached_tps < many_tps
    assert few_ttft > 2 * many_ttft


def test_the_comparison_is_a_page_with_every_cell(swept: MiniSweep, tables: Path, tmp_path: Path) -> None:
    page = tmp_path / "FIDELITY.md"
    bench_runner("fidelity", f"--results={swept.folder.path}", f"--tables={tables}", f"--output={page}")
    text = page.read_text()
    assert text.count("| shared |") == text.count("| fresh |") == 6
    assert str(swept.folder.path) not in text
    assert str(ROOT) not in text


def test_verify_contradicts_a_configuration_that_makes_most_clients_wait(tmp_path: Path) -> None:
    workload = write_workload(
        tmp_path / "workload.json",
        name="shared", prompt_tokens=512, max_new_tokens=32, shared_prefix_ratio=0.8, concurrency=32,
    )  # fmt: skip
    outcome = tmp_path / "outcome.json"
    bench_runner(
        "verify", f"--model={MODEL}", f"--workload={workload}", f"--config={FEW_SEQS}", "--gpu=CPU", "--memory-gib=1",
        "--warm-up-s=1", "--window-s=4", "--repetitions=1", "--minutes=3", f"--output={outcome}", *SERVER,
    )  # fmt: skip
    found = json.loads(outcome.read_text())
    assert found["evidence"] == "measured-cpu"
    assert found["verdict"] in ("contradicted", "too noisy"), found["reason"]
    few, default = (found["arms"][arm]["measured"]["output_throughput_tps"]["mean"] for arm in found["arms"])
    assert few < default
    assert {len(arm["visits"]) for arm in found["arms"].values()} != {0}


def test_a_cache_too_small_for_one_request_is_a_failed_row_with_its_cause(tmp_path: Path) -> None:
    workload = write_workload(
        tmp_path / "workload.json",
        name="one", prompt_tokens=64, max_new_tokens=8, shared_prefix_ratio=0.0, concurrency=1,
    )  # fmt: skip
    plan = write_plan(tmp_path / "plan.json", configs=(MANY_SEQS,), workloads=workload)
    results = tmp_path / "results"
    arguments = f"--server-args={SERVER_ARGUMENTS} --num-gpu-blocks-override=8"
    bench_runner("sweep", f"--plan={plan}", f"--results={results}", "--device=cpu", arguments)
    ((row, run),) = ResultsFolder.open(results, Plan.from_json(read_json(plan))).measured_rows()
    assert row.failure_cause == "kv_cache_too_small"
    assert run["log_tail"]


def test_a_flag_that_this_engine_does_not_know_ends_the_sweep_in_one_line(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", configs=(MANY_SEQS,))
    refused = bench_runner(
        "sweep", f"--plan={plan}", f"--results={tmp_path / 'results'}", "--device=cpu",
        f"--server-args={SERVER_ARGUMENTS} --no-such-flag=1", check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("error: unknown_flag")
    assert "--no-such-flag" in refused.stderr
