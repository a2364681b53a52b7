"""The scripted server does what its script says, on a real port, and answers in vLLM's form."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench_runner.server_script import CommandLine
from service.domain.errors import InvalidInputError, UnknownNameError
from tests.bench_runner.scripted_load import PATIENCE_S, Server, serving


def complete(server: Server, prompt: list[int] | None = None, **changes: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt or [1, 2, 3], "max_tokens": 4, "return_token_ids": True, **changes}
    return httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=10)


def events(answer: httpx.Response) -> list[Any]:
    payloads = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def metrics(server: Server) -> dict[str, float]:
    text = httpx.get(f"{server.base_url}/metrics", timeout=10).text
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_an_answer_has_vllms_form(tmp_path: Path) -> None:
    with serving(tmp_path, "--enable-prompt-tokens-details") as server:
        *chunks, usage = events(complete(server))
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[1000]] * 4
    assert [chunk["choices"][0]["prompt_token_ids"] for chunk in chunks] == [[1, 2, 3], None, None, None]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_log_says_when_tokens_left(tmp_path: Path) -> None:
    with serving(tmp_path, first_token_s=0.1, token_interval_s=0.05) as server:
        before_ns = time.monotonic_ns()
        complete(server)
        (record,) = server.log()
    assert before_ns < record["arrived_ns"]
    assert (record["first_ns"] - record["arrived_ns"]) / 1e9 >= 0.1
    assert (record["last_ns"] - record["first_ns"]) / 1e9 >= 0.149
    assert record["last_ns"] < time.monotonic_ns()
    assert (record["tokens"], record["ended"]) == (4, True)


def test_a_repeated_prompt_is_found_in_the_cache_in_whole_blocks_until_it_is_reset(tmp_path: Path) -> None:
    prompt = list(range(40))

    def cached(tokens: list[int]) -> int:
        details = events(complete(server, tokens))[-1]["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"])

    with serving(tmp_path, "--enable-prompt-tokens-details") as server:
        assert [cached(prompt), cached(prompt), cached([*prompt[:20], 99, *prompt[21:]])] == [0, 32, 16]
        # One token is always computed.
        assert cached(prompt[:32]) == 16
        assert httpx.post(f"{server.base_url}/reset_prefix_cache").json() == {"success": True}
        assert cached(prompt) == 0
        found = metrics(server)
    assert found["vllm:prefix_cache_queries_total"] == 40 * 4 + 32
    assert found["vllm:prefix_cache_hits_total"] == 32 + 16 + 16
    with serving(tmp_path, "--enable-prompt-tokens-details", "--no-enable-prefix-caching") as server:
        assert [cached(prompt), cached(prompt)] == [0, 0]


def test_it_speaks_of_itself_as_vllm_does(tmp_path: Path) -> None:
    with serving(tmp_path, "--served-model-name", "mine", "--max-model-len=64", "--max-num-seqs", "3") as server:
        (model,) = httpx.get(f"{server.base_url}/v1/models").json()["data"]
        info = httpx.get(f"{server.base_url}/server_info?config_format=json").json()
        state = httpx.get(f"{server.base_url}/script/state").json()
        assert complete(server, model="other").status_code == 404
        assert complete(server, model="mine", max_tokens=62).status_code == 400
        found = metrics(server)
    assert (model["id"], model["root"], model["max_model_len"]) == ("mine", "tiny", 64)
    assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 3
    assert "--served-model-name" in state["arguments"]
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert "vllm:cache_config_info" in found


def test_metrics_can_be_missing_or_renamed(tmp_path: Path) -> None:
    renamed = {"vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"}
    with serving(tmp_path, metrics_missing=["vllm:num_preemptions_total"], metrics_renamed=renamed) as server:
        found = metrics(server)
    assert "vllm:num_preemptions_total" not in found
    assert "vllm:kv_cache_usage_perc" not in found
    assert found["vllm:gpu_cache_usage_perc"] == 0


def test_more_requests_than_places_wait(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-num-seqs=1", first_token_s=30.0) as server, httpx.Client() as client:
        bodies = [{"model": "tiny", "prompt": [1] * 32, "max_tokens": 1}] * 2
        streams = [client.stream("POST", f"{server.base_url}/v1/completions", json=body) for body in bodies]
        with streams[0], streams[1]:
            found = metrics(server)
        assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (1, 1)
        assert found["vllm:kv_cache_usage_perc"] == 2 / 65_536
        # Clients that have gone hold no place.
        client.close()
        deadline = time.monotonic() + PATIENCE_S
        while metrics(server)["vllm:num_requests_running"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert metrics(server)["vllm:num_requests_waiting"] == 0


def test_sigterm_ends_it_with_exit_code_0(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0


def test_a_stubborn_server_and_its_child_outlive_sigterm(tmp_path: Path) -> None:
    with serving(tmp_path, ignore_sigterm=True, leave_child=True) as server:
        child = psutil.Process(httpx.get(f"{server.base_url}/script/state").json()["child_pid"])
        try:
            server.process.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGTERM)
            assert httpx.get(f"{server.base_url}/health").status_code == 200
            assert os.getsid(child.pid) != os.getsid(server.process.pid)
            server.process.kill()
            server.process.wait(PATIENCE_S)
            assert child.is_running()
        finally:
            child.kill()


def test_a_scripted_failure_at_startup_prints_its_line_and_exits(tmp_path: Path) -> None:
    with serving(tmp_path, wait=False, exit_at_startup=3, startup_log="ValueError: no memory") as server:
        _, errors = server.process.communicate(timeout=PATIENCE_S)
    assert server.process.returncode == 3
    assert errors == "ValueError: no memory\n"


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        port = first.base_url.rpartition(":")[2]
        with serving(tmp_path, f"--port={port}", wait=False) as second:
            _, errors = second.process.communicate(timeout=PATIENCE_S)
    assert second.process.returncode == 2
    assert errors.count("\n") == 1
    assert "address already in use" in errors


def parsed(folder: Path, script: dict[str, Any], *tokens: str) -> CommandLine:
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return CommandLine.parse([f"--script={path}", "serve", *tokens])


@pytest.mark.parametrize("flags", [("--max-num-seqs=32",), ("--max-num-seqs", "32"), ("--max_num_seqs", "32", "-x")])
def test_overrides_hold_where_their_flag_is_given(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = {"fail_flags": {"--max-num-seqs=32": {"never_ready": True}}}
    assert parsed(tmp_path, script, "tiny", *flags).script.never_ready
    assert not parsed(tmp_path, script, "tiny", "--max-num-seqs=128").script.never_ready


def test_the_last_of_two_equal_flags_wins_and_unknown_ones_are_kept(tmp_path: Path) -> None:
    line = parsed(tmp_path, {}, "tiny", "--port", "1", "--enforce-eager", "--port=2", "--odd", "--load-format", "dummy")
    assert line.flags == {"--port": "2", "--enforce-eager": None, "--odd": None, "--load-format": "dummy"}
    assert (line.model, line.served_model) == ("tiny", "tiny")


def test_a_misspelt_script_or_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="first_tokens_s"):
        parsed(tmp_path, {"first_tokens_s": 1}, "tiny")
    with pytest.raises(InvalidInputError, match="model"):
        parsed(tmp_path, {}, "--port=1")
