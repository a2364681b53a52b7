"""The collector reads vLLM's metrics from a Prometheus, and a service has them afterwards; both are real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.__main__ import main
from service.api.token import token_entry
from tests.memory.server import Server
from tests.service.conftest import QUESTION

ROOT = Path(__file__).resolve().parents[2]
# Values by a part of the query that is in no other.
VALUES: dict[str, Any] = {
    "rate(vllm:generation_tokens_total": 5120.5,
    "sum(rate(vllm:request_success_total": 20.0,
    "sum(increase(vllm:request_success_total": 18000,
    "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket": 812.0,
    "histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket": 90.0,
    # The name of older versions, and no value under the newer one.
    "histogram_quantile(0.95, sum by (le) (rate(vllm:time_per_output_token_seconds_bucket": 9.5,
    "rate(vllm:e2e_request_latency_seconds_bucket": "NaN",
    "max_over_time(vllm:gpu_cache_usage_perc": 0.73,
    "vllm:num_preemptions_total": 0,
    "sum(increase(vllm:prefix_cache_hits_total": 0.25,
}


class Prometheus:
    """The fake one and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.values, self.queries = folder / "values.json", folder / "queries.txt"
        self.values.write_text(json.dumps(VALUES))
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["Prometheus"]:
        command = [sys.executable, "-m", "tests.service.fake_prometheus", str(self.values), str(self.queries)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            try:
                yield self
            finally:
                process.kill()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    with Prometheus(tmp_path).running() as running:
        yield running


def command(prometheus: Prometheus, *more: str) -> list[str]:
    return [
        *("outcomes", "collect", "--prometheus", prometheus.url, "--selector", 'model_name="qwen"', "--window", "15m"),
        *("--end", "1700000100", "--arm", "recommended", "--engine-args", '{"max_num_seqs": 128}', *more),
    ]


def test_what_prometheus_knows_is_measured_and_what_it_does_not_is_left_out(
    prometheus: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(prometheus, "--recommendation-id", "x", "--dry-run")) == 0
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert body["measured"] == {
        "window_s": 900.0,
        "window_end_unix": 1_700_000_100.0,
        "output_throughput_tps": 5120.5,
        "request_throughput_rps": 20.0,
        "completed": 18000.0,
        "ttft_p50_ms": 90.0,
        "ttft_p95_ms": 812.0,
        "tpot_p95_ms": 9.5,
        "kv_usage_peak": 0.73,
        "preemptions": 0.0,
        "cached_token_ratio": 0.25,
    }
    assert [line.split(": ")[1] for line in captured.err.splitlines()] == ["tpot_p50_ms", "e2el_p95_ms"]
    asked = prometheus.queries.read_text().splitlines()
    assert all(line.startswith("1700000100 ") for line in asked)
    # Milliseconds are asked for where the histogram has seconds, over the window and the server that were named.
    assert any(line.endswith('{model_name="qwen"}[900s])))') and "1000 * histogram_quantile" in line for line in asked)


def test_a_collected_window_is_posted_once(
    prometheus: Prometheus, bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server(tmp_path / "server", bundle_dir=bundle_dir) as server:
        url = f"http://127.0.0.1:{server.port}"
        headers = {"X-Project-ID": "search", "X-Endpoint-Name": "qwen"}
        assert httpx.post(f"{url}/v1/recommend", json=QUESTION, headers=headers).status_code == 200
        about = ("--project", "search", "--endpoint", "qwen", "--url", url)
        answers = []
        for _ in range(2):
            assert main(command(prometheus, *about)) == 0
            answers.append(json.loads(capsys.readouterr().out))
        assert [(answer["accepted"], answer["duplicates"]) for answer in answers] == [(1, 0), (0, 1)]
        assert answers[0]["matched"] is True
        assert main(["outcomes", "report", "--url", url]) == 0
        (group,) = json.loads(capsys.readouterr().out)["groups"]
        assert group["observed"]["recommended"]["output_throughput_tps"]["mean"] == 5120.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no vllm:generation_tokens_total for {model_name"),
        ({"vllm:": "refuse"}, "refuses"),
        ({"vllm:": "garbage"}, "cannot be asked"),
    ],
)
def test_a_prometheus_without_an_answer_is_one_reason(
    prometheus: Prometheus, capsys: pytest.CaptureFixture[str], values: dict[str, str], message: str
) -> None:
    prometheus.values.write_text(json.dumps(values))
    assert main(command(prometheus, "--recommendation-id", "x")) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_prometheus_or_a_service_that_is_not_there_is_one_line(
    prometheus: Prometheus, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    away = "http://127.0.0.1:1"
    assert main([*command(prometheus, "--recommendation-id", "x"), "--prometheus", away]) == 1
    assert "check --prometheus" in capsys.readouterr().err
    (tmp_path / "outcome.json").write_text("{}")
    assert main(["outcomes", "post", str(tmp_path / "outcome.json"), "--url", away]) == 1
    assert "check --url" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--window", "soon"), ("--engine-args", "[1]"), ("--arm", "best")])
def test_bad_flags_of_the_collector_exit_with_two(prometheus: Prometheus, wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command(prometheus), *wrong])
    assert caught.value.code == 2


def test_a_guarded_service_takes_the_token_from_a_file_or_the_environment(
    bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f"schema_version = 1\n{token_entry('reporter', 'mpt_planted', ['outcomes'])}")
    (tmp_path / "token").write_text("mpt_planted\n")
    with Server(tmp_path / "server", bundle_dir=bundle_dir, tokens_file=tokens) as server:
        report = ["outcomes", "report", "--url", f"http://127.0.0.1:{server.port}"]
        assert main(report) == 1
        assert "401, send 'Authorization: Bearer TOKEN'" in capsys.readouterr().err
        assert main([*report, "--token-file", str(tmp_path / "token")]) == 0
        monkeypatch.setenv("MEMORYPOLICY_TOKEN", "mpt_planted")
        assert main(report) == 0
        capsys.readouterr()
        monkeypatch.setenv("MEMORYPOLICY_TOKEN", "mpt planted")
        assert main(report) == 1
        assert "planted" not in capsys.readouterr().err
