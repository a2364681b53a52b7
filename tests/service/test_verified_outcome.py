"""The file that `bench_runner verify` writes is what POST /v1/outcomes takes: a real run against a scripted server."""

import json
from pathlib import Path

import pytest

from service.__main__ import main
from tests.bench_runner.sweeping import run_runner
from tests.bench_runner.test_verify import verify_arguments
from tests.memory.server import Server


def test_a_written_outcome_file_is_posted_as_it_is(
    bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_runner(verify_arguments(tmp_path))
    assert done.returncode == 0, done.stderr
    file = tmp_path / "outcome.json"
    outcome = json.loads(file.read_text())
    visits = sum(len(arm["visits"]) for arm in outcome["arms"].values())
    # On a busy machine the client may have been saturated in some.
    valid_pairs = visits // 2 - outcome["invalid_pairs"]
    with Server(tmp_path / "server", bundle_dir=bundle_dir) as server:
        url = f"http://127.0.0.1:{server.port}"
        answers = []
        for _ in range(2):
            assert main(["outcomes", "post", str(file), "--url", url]) == 0
            answers.append(json.loads(capsys.readouterr().out))
        assert [(answer["accepted"], answer["duplicates"]) for answer in answers] == [(visits, 0), (0, visits)]
        (group,) = json.loads(server.get("/v1/outcomes/report"))["groups"]
    assert group["comparison"]["pairs"] == valid_pairs
    assert group["comparison"]["status"] == ("compared" if valid_pairs >= 3 else "not enough data")
    assert group["gpu"] == "CPU"
