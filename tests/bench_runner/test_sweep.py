import json
import random
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench_runner.server import free_port
from service.domain.cell import CellResult
from service.domain.reference import NamedWorkload
from tests.bench_runner.scripted import servers_running, until
from tests.bench_runner.sweeping import rows_of, run_runner, small_plan, start_runner, sweep_arguments

Row = dict[str, Any]


def cell_ids(rows: list[Row]) -> list[str]:
    return [row["cell_id"] for row in rows]


def test_every_cell_gets_a_measured_row_and_a_second_run_adds_none(tmp_path: Path) -> None:
    plan = small_plan(configs=2, concurrencies=(1, 2))
    arguments = sweep_arguments(tmp_path, plan)
    first = run_runner(arguments)
    assert first.returncode == 0, first.stderr
    rows = rows_of(tmp_path)
    assert cell_ids(rows) == [
        key.cell_id for key in sorted(plan.cells(), key=lambda key: key.config_id != "s4-b2048-g0.90-p1")
    ]
    for row in rows:
        assert (row["evidence"], row["status"], row["plan_sha256"]) == ("measured-cpu", "ok", plan.sha256)
        assert row["completed"] > 0
        # 8 tokens: the first after 20 ms, the others 2 ms apart
        assert row["ttft_p50_ms"] >= 20
        assert row["run"]["invalid_cause"] in (None, "client_saturated")
        assert row["run"]["loop"] == "closed"
    second = run_runner(arguments)
    assert second.returncode == 0
    assert rows_of(tmp_path) == rows
    assert not servers_running(tmp_path)


def test_the_cells_of_one_configuration_share_a_server_and_no_other_does(tmp_path: Path) -> None:
    run_runner(sweep_arguments(tmp_path, small_plan(configs=2, concurrencies=(1, 2))))
    servers: dict[str, set[str]] = {}
    for row in rows_of(tmp_path):
        servers.setdefault(row["config_id"], set()).add(row["run"]["server_run"])
    assert [len(names) for names in servers.values()] == [1, 1]
    assert len(set.union(*servers.values())) == 2


def test_the_provenance_of_a_run_is_written_down(tmp_path: Path) -> None:
    plan = small_plan(configs=1)
    run_runner(sweep_arguments(tmp_path, plan, options=["--server-args=--dtype float32"]))
    run = json.loads((tmp_path / "results" / "runs" / f"{rows_of(tmp_path)[0]['run']['server_run']}.json").read_text())
    assert run["plan_sha256"] == plan.sha256
    assert run["engine_version"] == "0.28.0"
    assert "--max-num-seqs=4" in run["command"]
    assert run["command"].count("--dtype") == 1
    assert run["machine"]["host_cpu"]
    assert run["machine"]["gpu"] == "CPU"
    assert run["cache_config"]["block_size"]
    assert run["engine_config"]
    assert run["protocol"]["window_s"] == plan.window_s


def test_the_prefix_cache_holds_what_was_designed_and_no_repeated_prompt(tmp_path: Path) -> None:
    """B1: three windows of one cell on one server; half of each prompt is shared, and no more is ever found."""
    run_runner(sweep_arguments(tmp_path, small_plan(configs=1), options=["--repetitions=3"]))
    (row,) = rows_of(tmp_path)
    assert len(row["run"]["each"]) == 3
    assert row["run"]["cached_token_ratio_designed"] == 0.5
    assert 0 < row["cached_token_ratio"] <= 0.5
    assert len({each["seeds"]["prompt"] for each in row["run"]["each"]}) == 3
    assert len({each["seeds"]["prefix"] for each in row["run"]["each"]}) == 3
    assert row["run"]["spread"]["output_throughput_tps"] > 0


def test_more_cached_tokens_than_designed_make_a_row_invalid_and_keep_it_out_of_a_merged_file(tmp_path: Path) -> None:
    plan = small_plan(configs=1)
    run_runner(sweep_arguments(tmp_path, plan, cached_share=0.9))
    (row,) = rows_of(tmp_path)
    assert row["run"]["invalid_cause"] == "cached_tokens_above_design"
    merge = ["merge", f"--plan={tmp_path / 'plan.json'}", f"--results={tmp_path / 'results'}"]
    refused = run_runner([*merge, f"--output={tmp_path / 'cells.parquet'}"])
    assert refused.returncode == 1
    assert "1 cells invalid (cached_tokens_above_design)" in refused.stderr
    assert not (tmp_path / "cells.parquet").exists()
    left_out = run_runner([*merge, f"--output={tmp_path / 'cells.parquet'}", "--without-invalid"])
    assert left_out.returncode == 0
    assert "left out 1 scenarios with 1 invalid cells" in left_out.stderr


def test_the_servers_own_numbers_are_in_the_row_under_any_known_name(tmp_path: Path) -> None:
    script: Row = {
        "preemptions_per_request": 1,
        "metrics_renamed": {"vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"},
        "metrics_missing": ["vllm:num_requests_waiting"],
    }
    plan = small_plan(configs=1, window_s=1.5)
    run_runner(sweep_arguments(tmp_path, plan, **script))
    (row,) = rows_of(tmp_path)
    assert row["preemptions"] > 0
    assert row["kv_usage_peak"] > 0
    assert row["run"]["each"][0]["engine"]["waiting_mean"] is None
    assert "/metrics has no waiting" in row["run"]["warnings"]


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ({"refuse_all": True}, "http_error"),
        ({"status": 503}, "http_error"),
        ({"no_tokens": True}, "no_tokens"),
        ({"garbage": True}, "garbage_answer"),
        ({"cut_after_tokens": 3}, "answer_cut"),
        ({"short_by": 2}, "wrong_length"),
        ({"hang_all": True}, "server_hung"),
        ({"hang_after_tokens": 3}, "server_hung"),
        ({"die_on_request": 3}, "server_died"),
        ({"never_ready": True}, "server_not_ready"),
        ({"exit_at_startup": 1, "startup_log": "No available memory for the cache blocks"}, "kv_cache_too_small"),
        ({"wrong_model": True}, "foreign_server"),
        ({"leave_child": True, "hang_all": True}, "server_hung"),
    ],
)  # fmt: skip
def test_a_faulty_server_costs_its_own_cells_a_typed_failure_and_the_sweep_goes_on(
    tmp_path: Path, script: Row, cause: str
) -> None:
    """B6 and B7: the configuration with 4 places has the fault, the one with 8 has none."""
    plan = small_plan(configs=2)
    options = ["--max-attempts=2", "--start-deadline-s=5"]
    done = run_runner(sweep_arguments(tmp_path, plan, options=options, fail_flags={"--max-num-seqs=4": script}))
    assert done.returncode == 0, done.stderr
    failed, healthy = rows_of(tmp_path)
    assert (failed["status"], failed["failure_cause"]) == ("failed", cause)
    assert failed["ttft_p95_ms"] is None
    assert failed["output_throughput_tps"] == 0
    assert failed["run"]["detail"]
    assert healthy["status"] == "ok"
    CellResult.from_row({name: value for name, value in failed.items() if name != "run"})
    attempts = (tmp_path / "results" / "attempts-00000-of-00001.jsonl").read_text().splitlines()
    assert len(attempts) == (1 if cause == "kv_cache_too_small" else 2)
    assert not servers_running(tmp_path)


def test_a_row_of_a_saturated_client_says_so_and_is_no_label(tmp_path: Path) -> None:
    """B11: the process that sends the load is stopped for a second of its window."""
    plan = small_plan(configs=1, window_s=3.0)
    with start_runner(sweep_arguments(tmp_path, plan)) as process:
        until(lambda: any((tmp_path / "results" / "runs").glob("*.json")))
        workers: list[psutil.Process] = []

        def under_load() -> bool:
            found = psutil.Process(process.pid).children()
            workers[:] = [child for child in found if "bench_runner.load_worker" in child.cmdline()]
            return bool(workers)

        until(under_load)
        time.sleep(1.5)
        workers[0].send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        workers[0].send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    (row,) = rows_of(tmp_path)
    assert row["run"]["invalid_cause"] == "client_saturated"
    assert row["run"]["each"][0]["client_loop_lag_p95_ms"] > 4
    merge = ["merge", f"--plan={tmp_path / 'plan.json'}", f"--results={tmp_path / 'results'}"]
    refused = run_runner([*merge, f"--output={tmp_path / 'cells.parquet'}"])
    assert "1 cells invalid (client_saturated)" in refused.stderr
    assert "more --client-processes" in refused.stderr


def test_clients_that_move_as_one_are_named_in_their_row(tmp_path: Path) -> None:
    """B12: with no warm-up there is no ramp; all start together and a server of constant times keeps them together."""
    plan = replace(small_plan(configs=1, concurrencies=(4,), window_s=2.0), warm_up_s=0.0)
    run_runner(sweep_arguments(tmp_path, plan, first_token_s=0.4))
    (row,) = rows_of(tmp_path)
    assert row["run"]["each"][0]["lockstep"] > 0.9


def test_a_port_is_used_again_at_once_after_a_server_that_died(tmp_path: Path) -> None:
    port = free_port()
    options = [f"--ports={port}-{port}", "--max-attempts=2"]
    faults = {"--max-num-seqs=4": {"die_on_request": 3}}
    done = run_runner(sweep_arguments(tmp_path, small_plan(configs=2), options=options, fail_flags=faults))
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in rows_of(tmp_path)] == ["failed", "ok"]


def test_refused_requests_count_as_errors(tmp_path: Path) -> None:
    run_runner(sweep_arguments(tmp_path, small_plan(configs=1, window_s=1.5), status=503, status_every=2))
    (row,) = rows_of(tmp_path)
    assert row["status"] == "ok"
    assert row["error_rate"] > 0.2
    assert row["slo_met"] is False


def test_the_log_of_a_server_that_died_is_in_its_row(tmp_path: Path) -> None:
    script: Row = {"exit_at_startup": 1, "startup_log": "RuntimeError: no kernel image is available"}
    run_runner(sweep_arguments(tmp_path, small_plan(configs=1), options=["--max-attempts=1"], **script))
    assert rows_of(tmp_path)[0]["run"]["log_tail"][-1] == "RuntimeError: no kernel image is available"


def test_a_finished_failure_is_not_tried_again(tmp_path: Path) -> None:
    arguments = sweep_arguments(tmp_path, small_plan(configs=1), options=["--max-attempts=2"], exit_at_startup=1)
    run_runner(arguments)
    rows, attempts = rows_of(tmp_path), (tmp_path / "results" / "attempts-00000-of-00001.jsonl").read_text()
    assert run_runner(arguments).returncode == 0
    assert rows_of(tmp_path) == rows
    assert (tmp_path / "results" / "attempts-00000-of-00001.jsonl").read_text() == attempts


def test_after_a_kill_in_the_third_cell_nothing_finished_is_repeated_and_retries_stay_bounded(tmp_path: Path) -> None:
    """B10: the second cell always fails; the third is killed once and is done by the next run."""
    plan = small_plan(configs=3, window_s=2.0)
    arguments = sweep_arguments(
        tmp_path, plan, options=["--max-attempts=2"], fail_flags={"--max-num-seqs=8": {"refuse_all": True}}
    )
    with start_runner(arguments) as process:
        until(lambda: (tmp_path / "results").exists() and len(rows_of(tmp_path)) == 2)
        process.kill()
        process.communicate(timeout=30)
    before = rows_of(tmp_path)
    assert run_runner(arguments).returncode == 0
    rows = rows_of(tmp_path)
    assert rows[:2] == before
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert len((tmp_path / "results" / "attempts-00000-of-00001.jsonl").read_text().splitlines()) == 2
    assert not servers_running(tmp_path)


def test_twenty_kills_at_random_moments_leave_one_whole_row_per_cell(tmp_path: Path) -> None:
    plan = small_plan(configs=4, concurrencies=(1, 2, 3))
    arguments = sweep_arguments(tmp_path, plan)
    moments = random.Random(5)
    kept: list[Row] = []
    kills = 0
    while kills < 20:
        with start_runner(arguments) as process:
            try:
                process.communicate(timeout=moments.uniform(0.3, 3.5))
            except subprocess.TimeoutExpired:
                kills += 1
                process.kill()
                process.communicate(timeout=30)
            else:
                # All cells are done: the kills that are left hit runs that find nothing to do.
                assert process.returncode == 0
                kills += 1
        # A line that the kill tore is cut off by the next run and is no row.
        text = "".join(file.read_text() for file in (tmp_path / "results").glob("cells-*.jsonl"))
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
        assert rows[: len(kept)] == kept
        kept = rows
    assert run_runner(arguments).returncode == 0
    rows = rows_of(tmp_path)
    assert Counter(cell_ids(rows)) == Counter(key.cell_id for key in plan.cells())
    assert all(row["status"] == "ok" for row in rows)
    assert not servers_running(tmp_path)


@pytest.mark.parametrize("moment", ["starting", "under load"])
def test_sigterm_stops_within_twenty_seconds_with_the_code_that_says_resumable(tmp_path: Path, moment: str) -> None:
    script: Row = {"ignore_sigterm": True, "leave_child": True}
    script |= {"startup_s": 60} if moment == "starting" else {}
    arguments = sweep_arguments(tmp_path, small_plan(configs=1, window_s=60), **script)
    with start_runner(arguments) as process:
        runs = tmp_path / "results" / "runs"
        until(lambda: bool(servers_running(tmp_path)) if moment == "starting" else any(runs.glob("*.json")))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "stopped by SIGTERM; what is finished is kept, run the same command to go on" in err
    assert not servers_running(tmp_path)


def test_status_shows_what_is_done_failed_and_left_and_how_long_it_takes(tmp_path: Path) -> None:
    plan = small_plan(configs=3, window_s=2.0)
    arguments = sweep_arguments(
        tmp_path, plan, options=["--max-attempts=1"], fail_flags={"--max-num-seqs=8": {"exit_at_startup": 1}}
    )
    with start_runner(arguments) as process:
        until(lambda: (tmp_path / "results").exists() and len(rows_of(tmp_path)) == 2)
        process.kill()
        process.communicate(timeout=30)
    status = run_runner(["status", f"--plan={tmp_path / 'plan.json'}", f"--results={tmp_path / 'results'}", "--json"])
    counts = json.loads(status.stdout)
    assert (counts["ok"], counts["failed"], counts["left"], counts["invalid"]) == (1, 1, 1, 0)
    assert re.fullmatch(r"0:00:\d\d", counts["eta"])
    run_runner(arguments)


def test_a_dry_run_prints_every_command_and_cell_and_starts_nothing(tmp_path: Path) -> None:
    plan = small_plan(configs=2, concurrencies=(1, 2))
    dry = run_runner(sweep_arguments(tmp_path, plan, options=["--dry-run"]))
    assert dry.returncode == 0
    for key in plan.cells():
        assert f"  {key.cell_id}\n" in dry.stdout
    assert dry.stdout.count("--enable-prompt-tokens-details") == 2
    assert dry.stdout.count("--max-num-seqs=4 ") == 1
    assert "2 servers, 4 cells, about" in dry.stderr
    assert not (tmp_path / "results").exists()


class TestBadInput:
    """One line that says what and what to do, a non-zero exit, nothing lost."""

    def refused(self, arguments: list[str], *, with_words: str) -> None:
        done = run_runner(arguments)
        assert done.returncode in (1, 2), done.stderr
        assert with_words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr

    def test_a_model_folder_that_is_not_there(self, tmp_path: Path) -> None:
        plan = small_plan()
        plan = replace(plan, models=(replace(plan.models[0], name=f"{tmp_path}/missing"),))
        self.refused(sweep_arguments(tmp_path, plan), with_words="no config.json in that folder; give a model folder")

    def test_a_flag_that_this_version_does_not_know_ends_the_sweep_at_once(self, tmp_path: Path) -> None:
        script: Row = {"exit_at_startup": 2, "startup_log": "vllm: error: unrecognized arguments: --no-such-flag"}
        arguments = sweep_arguments(tmp_path, small_plan(), **script)
        self.refused(arguments, with_words="unrecognized arguments: --no-such-flag; change the command")
        assert rows_of(tmp_path) == []

    def test_no_gpu(self, tmp_path: Path) -> None:
        arguments = [word.replace("--device=cpu", "--device=gpu") for word in sweep_arguments(tmp_path, small_plan())]
        if "nvidia-smi is not on PATH" not in run_runner(arguments).stderr:
            pytest.skip("this machine has nvidia-smi")
        self.refused(arguments, with_words="run on a GPU machine, or measure with --device cpu")

    def test_a_plan_for_another_device(self, tmp_path: Path) -> None:
        plan = replace(small_plan(), gpu="NVIDIA-B200")
        self.refused(sweep_arguments(tmp_path, plan), with_words="the plan is for NVIDIA-B200, this machine has CPU")

    def test_ports_exhausted(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            arguments = sweep_arguments(tmp_path, small_plan(), options=[f"--ports={port}-{port}"])
            self.refused(arguments, with_words=f"ports {port} to {port} are all taken")

    def test_a_full_disk_loses_nothing_that_was_written(self, tmp_path: Path) -> None:
        """Files may have 16 KiB: some rows fit, the others do not; with more room the sweep goes on."""
        plan = small_plan(configs=1, concurrencies=tuple(range(1, 13)), window_s=0.3)
        arguments = sweep_arguments(tmp_path, plan)
        with start_runner(arguments, largest_file_bytes=16_384) as process:
            _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "File too large); free space, run again" in err
        assert not servers_running(tmp_path)
        (file,) = (tmp_path / "results").glob("cells-*.jsonl")
        whole = file.read_text().split("\n")[:-1]
        assert 0 < len(whole) < 12
        assert run_runner(arguments).returncode == 0
        rows = rows_of(tmp_path)
        assert rows[: len(whole)] == [json.loads(line) for line in whole]
        assert Counter(cell_ids(rows)) == Counter(key.cell_id for key in plan.cells())

    def test_an_unreadable_plan(self, tmp_path: Path) -> None:
        arguments = sweep_arguments(tmp_path, small_plan())
        (tmp_path / "plan.json").write_text("{")
        self.refused(arguments, with_words="plan.json cannot be read as JSON")

    def test_results_of_another_plan(self, tmp_path: Path) -> None:
        run_runner(sweep_arguments(tmp_path, small_plan(configs=1)))
        rows = rows_of(tmp_path)
        self.refused(sweep_arguments(tmp_path, small_plan(configs=2)), with_words="give another folder")
        assert rows_of(tmp_path) == rows

    def test_results_that_were_begun_with_another_protocol(self, tmp_path: Path) -> None:
        run_runner(sweep_arguments(tmp_path, small_plan(configs=1)))
        again = sweep_arguments(tmp_path, small_plan(configs=1), options=["--repetitions=2"])
        self.refused(again, with_words="was begun with protocol")

    def test_another_number_of_shards_than_the_folder_was_begun_with(self, tmp_path: Path) -> None:
        run_runner(sweep_arguments(tmp_path, small_plan(configs=1)))
        again = sweep_arguments(tmp_path, small_plan(configs=1), options=["--shard-count=2"])
        self.refused(again, with_words="was begun with shards 1, this is 2")

    @pytest.mark.parametrize("flag", ["--max-num-seqs 64", "--max_num_seqs=64", "--gpu-mem=0.5", "--port=1"])
    def test_a_server_argument_that_would_override_the_plan(self, tmp_path: Path, flag: str) -> None:
        arguments = sweep_arguments(tmp_path, small_plan(configs=1), options=[f"--server-args={flag}"])
        self.refused(arguments, with_words="configurations, host and port are the plan's; leave it out")

    def test_a_status_of_a_folder_that_is_not_there_makes_none(self, tmp_path: Path) -> None:
        self.refused(["status", f"--results={tmp_path / 'typo'}"], with_words="is no folder; give the one that")
        assert not (tmp_path / "typo").exists()

    def test_a_server_command_that_is_not_there(self, tmp_path: Path) -> None:
        arguments = sweep_arguments(tmp_path, small_plan())
        changed = [a if not a.startswith("--server-command") else "--server-command=no-such-thing" for a in arguments]
        self.refused(changed, with_words="no-such-thing cannot be run; install vllm==0.28.0 or give --server-command")

    def test_a_request_that_exceeds_the_context(self, tmp_path: Path) -> None:
        """B2: refused before anything starts."""
        options = ["--server-args=--max-model-len 64"]
        arguments = sweep_arguments(tmp_path, small_plan(), options=options)
        self.refused(arguments, with_words="prompt and answer exceed the 64 tokens")

    def test_a_prompt_of_no_tokens(self) -> None:
        with pytest.raises(Exception, match="prompt_tokens"):
            NamedWorkload(name="none", prompt_tokens=0, max_new_tokens=8, shared_prefix_ratio=0.0, split="train").at(1)

    def test_two_sweeps_of_one_shard(self, tmp_path: Path) -> None:
        arguments = sweep_arguments(tmp_path, small_plan(configs=1, window_s=20))
        with start_runner(arguments) as process:
            until(lambda: bool(servers_running(tmp_path)))
            self.refused(arguments, with_words="is being written by another run")
            assert servers_running(tmp_path)
            process.terminate()
            process.communicate(timeout=20)


def test_a_server_of_another_version_is_refused(tmp_path: Path) -> None:
    plan = replace(small_plan(configs=1), engine_version="0.29.0")
    done = run_runner(sweep_arguments(tmp_path, plan))
    assert done.returncode == 1
    assert "the plan is for vLLM 0.29.0, this server is 0.28.0" in done.stderr
    assert not servers_running(tmp_path)
