import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from bench_runner.recommendation import Recommendation, ask
from service.domain.catalogue import model_by_name
from service.domain.errors import ArtefactError
from service.domain.scenario import Workload
from service.domain.slo import REFERENCE_SLO
from tests.bench_runner.scripted import server_command, servers_running, until
from tests.bench_runner.sweeping import run_runner, start_runner

TINY = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": 32000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
WORKLOAD = {"name": "mine", "prompt_tokens": 64, "max_new_tokens": 8, "shared_prefix_ratio": 0.5, "concurrency": 2}


def verify_arguments(folder: Path, *, options: tuple[str, ...] = (), **script: Any) -> list[str]:
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(TINY))
    (folder / "w.json").write_text(json.dumps(WORKLOAD))
    return [
        "verify",
        f"--model={folder / 'tiny'}",
        f"--workload={folder / 'w.json'}",
        "--device=cpu",
        "--memory-gib=1",
        "--config=s4-b2048-g0.90-p1",
        f"--server-command={shlex.join(server_command(folder, **script))}",
        f"--output={folder / 'outcome.json'}",
        "--warm-up-s=0.2",
        "--window-s=1",
        "--repetitions=1",
        "--precision=0.5",
        *options,
    ]


def test_a_slower_recommendation_is_contradicted_with_both_sides_and_their_intervals(tmp_path: Path) -> None:
    slow = {"--max-num-seqs=4": {"token_interval_s": 0.05}}
    done = run_runner(verify_arguments(tmp_path, options=("--dummy-weights",), fail_flags=slow))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("contradicted: throughput is 0.") or "too noisy" in done.stdout, done.stdout
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["evidence"] == "measured-cpu"
    ours, theirs = outcome["arms"]["recommended"], outcome["arms"]["engine_default"]
    assert ours["engine_args"]["max_num_seqs"] == 4
    assert theirs["engine_args"]["max_num_seqs"] == 128
    for side in (ours, theirs):
        measured = side["measured"]
        assert measured["visits"] == len(side["visits"]) >= 2
        for name in ("output_throughput_tps", "ttft_p95_ms", "tpot_p95_ms"):
            assert measured[name]["low"] <= measured[name]["mean"] <= measured[name]["high"]
    # 8 tokens: 20 ms to the first, then 50 ms or 2 ms each
    assert ours["measured"]["tpot_p95_ms"]["mean"] > 45
    assert ours["measured"]["output_throughput_tps"]["mean"] < theirs["measured"]["output_throughput_tps"]["mean"]
    # The default's server got no flag of the four, the recommended one all of them.
    commands = [visit["server"]["command"] for visit in ours["visits"] + theirs["visits"]]
    half = len(commands) // 2
    assert ["--max-num-seqs=4" in command for command in commands] == [True] * half + [False] * half
    assert not (tmp_path / "outcome.visits.jsonl").exists()
    assert all("--load-format=dummy" in command for command in commands)
    assert not servers_running(tmp_path)


def test_a_recommendation_that_does_not_start_is_contradicted(tmp_path: Path) -> None:
    broken = {"--max-num-seqs=4": {"exit_at_startup": 1, "startup_log": "torch.OutOfMemoryError: CUDA out of memory"}}
    done = run_runner(verify_arguments(tmp_path, fail_flags=broken))
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    causes = [visit["failure_cause"] for visit in outcome["arms"]["recommended"]["visits"]]
    assert set(causes) == {"out_of_memory"}
    assert outcome["throughput_ratio"] is None
    if outcome["invalid_pairs"] == 0:
        assert done.stdout.startswith("contradicted: the engine's default serves in every visit, it in none")


def test_time_is_up_before_the_interval_is_narrow(tmp_path: Path) -> None:
    done = run_runner(verify_arguments(tmp_path, options=("--minutes=0.02", "--precision=0.0001")))
    assert done.returncode == 0
    assert "valid pairs of visits in the time given; 2 are needed" in done.stdout


def test_where_neither_side_answers_nothing_is_said(tmp_path: Path) -> None:
    done = run_runner(verify_arguments(tmp_path, exit_at_startup=1, startup_log="RuntimeError: no device"))
    assert done.returncode == 1
    assert "neither side answers: exit code 1, RuntimeError: no device" in done.stderr
    assert not (tmp_path / "outcome.json").exists()


def test_an_interrupted_verification_goes_on_with_the_visits_it_has(tmp_path: Path) -> None:
    arguments = verify_arguments(tmp_path)
    kept = tmp_path / "outcome.visits.jsonl"
    with start_runner(arguments) as process:
        # The settings, and two visits.
        until(lambda: kept.exists() and kept.read_text().count("\n") >= 3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 75
    first = [json.loads(line) for line in kept.read_text().splitlines()][1]
    assert run_runner(arguments).returncode == 0
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["arms"]["recommended"]["visits"][0] == first


def test_two_verifications_of_one_outcome_file_do_not_end_each_others_servers(tmp_path: Path) -> None:
    arguments = verify_arguments(tmp_path, startup_s=60)
    with start_runner(arguments) as process:
        until(lambda: bool(servers_running(tmp_path)))
        refused = run_runner(arguments)
        assert refused.returncode == 1
        assert "is being written by another run" in refused.stderr
        assert servers_running(tmp_path)
        process.terminate()
        process.communicate(timeout=20)


def test_sigterm_ends_it_without_an_outcome_or_an_orphan(tmp_path: Path) -> None:
    with start_runner(verify_arguments(tmp_path, startup_s=60)) as process:
        until(lambda: bool(servers_running(tmp_path)))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 75
    assert not servers_running(tmp_path)
    assert not (tmp_path / "outcome.json").exists()


def test_the_engines_default_is_not_compared_with_itself(tmp_path: Path) -> None:
    done = run_runner(verify_arguments(tmp_path, options=("--config=engine-default",)))
    assert done.returncode == 1
    assert "that is the engine's default: there is nothing to compare" in done.stderr


def test_the_services_own_answer_is_what_is_verified() -> None:
    workload = Workload(prompt_tokens=4000, max_new_tokens=300, shared_prefix_ratio=0.0, concurrency=48)
    found = ask(model_by_name("Qwen/Qwen3-14B"), workload, gpu="NVIDIA-B200", slo=REFERENCE_SLO)
    assert found.answer is not None
    assert found.candidate.engine_args() == found.answer["set"]


def test_an_answer_that_sets_nothing_cannot_be_verified() -> None:
    with pytest.raises(ArtefactError, match=r"keep_engine_default \(out_of_support\).* give --config"):
        Recommendation.of_answer(
            {
                "decision": "keep_engine_default",
                "reason": "out_of_support",
                "set": {},
                "ranked": [{"engine_args": {}}],
            }
        )


def test_a_file_that_is_no_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text('{"decision": "recommended"}')
    with pytest.raises(ArtefactError, match="not an answer of /v1/recommend"):
        Recommendation.read(path)
