"""Prompts: exactly as long as asked for, alike only in their shared prefix, and never sent twice."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench_runner.load import LoadSpec
from bench_runner.prompts import RequestWriter
from tests.bench_runner.scripted_load import Server, load, serving, spec

Prompts = dict[str, list[int]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("prompts"), log_prompts=True) as server:
        yield server


def prompts_of(server: Server, prompt_seed: int, **changes: Any) -> list[list[int]]:
    """Every prompt of a run, as the server has read it."""
    load(server, prompt_seed=prompt_seed, **changes)
    return [r["prompt"] for r in server.log() if r["request_id"].startswith(f"{prompt_seed}-")]


def test_two_runs_share_the_prefix_and_nothing_else(server: Server) -> None:
    first, second = prompts_of(server, 91_001), prompts_of(server, 91_002)
    prompts = first + second
    assert len(first) >= 4
    assert len(second) >= 4
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 1
    # Of 30,000 ids, 24 drawn alike are not chance.
    assert len({tuple(prompt[16:]) for prompt in prompts}) == len(prompts)
    assert all(1000 <= token < 31_000 for prompt in prompts for token in prompt)


def test_another_prefix_seed_gives_another_prefix(server: Server) -> None:
    first, second = prompts_of(server, 91_003, prefix_seed=5), prompts_of(server, 91_004, prefix_seed=6)
    assert first[0][:16] != second[0][:16]


def test_several_processes_send_no_prompt_twice(server: Server) -> None:
    prompts = prompts_of(server, 91_005, processes=3, shared_prefix_tokens=0)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts) >= 4


def body(load_spec: LoadSpec, number: int = 0) -> dict[str, Any]:
    writer = RequestWriter(load_spec.prompts())
    head, _, content = writer.request(writer.generator(3), client=3, number=number).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    assert f"X-Request-Id: {load_spec.prompt_seed}-3-{number}".encode() in head
    parsed: dict[str, Any] = json.loads(content)
    return parsed


@pytest.mark.parametrize(("length", "shared"), [(1, 0), (1, 1), (2, 1), (17, 16), (6000, 4200)])
def test_a_prompt_has_exactly_its_length(length: int, shared: int) -> None:
    prompt = body(spec("http://127.0.0.1:1", prompt_tokens=length, shared_prefix_tokens=shared))["prompt"]
    assert len(prompt) == length
    assert all(isinstance(token, int) for token in prompt)


def test_ids_stay_inside_their_range_also_where_their_widths_differ() -> None:
    prompt = body(spec("http://127.0.0.1:1", prompt_tokens=3000, token_ids=(8, 102)))["prompt"]
    assert set(prompt) == set(range(8, 102))


def test_a_request_asks_for_exactly_so_many_tokens_streamed_with_their_ids() -> None:
    content = body(spec("http://127.0.0.1:1", served_model='a "name"', max_new_tokens=7))
    content.pop("prompt")
    assert content == {
        "model": 'a "name"',
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
