"""Tokens are counted alike wherever TCP cuts a stream, and what cannot be counted is called so."""

import json
from typing import Any

import pytest

from bench_runner.token_stream import TokenStream


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def tokens(*ids: int, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": "a]b", "prompt_token_ids": None, "token_ids": list(ids)}], **more})


USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 2}},
    }
)
STREAM = tokens() + tokens(1) + tokens(2, 3) + b": a comment\n\n" + tokens(4, 5, 6) + USAGE + b"data: [DONE]\n\n"


def fed(*pieces: bytes) -> TokenStream:
    stream = TokenStream()
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return stream


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
def test_pieces_of_any_size_give_the_same_count(size: int) -> None:
    stream = TokenStream()
    counts = [stream.feed(STREAM[start : start + size]) for start in range(0, len(STREAM), size)]
    stream.finish()
    assert sum(counts) == stream.tokens == 6
    assert stream.done
    assert stream.cached_tokens == 2
    assert stream.usage_tokens == 6
    assert stream.problem is None


def test_a_token_counts_only_when_its_event_is_complete() -> None:
    stream = TokenStream()
    whole = tokens(1, 2)
    assert stream.feed(whole[:-1]) == 0
    assert stream.feed(whole[-1:]) == 2


def test_the_prompt_that_the_first_event_repeats_is_not_counted() -> None:
    first = {"index": 0, "text": "", "prompt_token_ids": [1, 2, 3, 4], "token_ids": [9]}
    assert fed(event({"choices": [first]})).tokens == 1


def test_json_with_spaces_counts_alike() -> None:
    assert fed(b'data: {"choices": [{"text": "", "token_ids": [1, 2, 3]}]}\n\n').tokens == 3


def test_continuous_usage_counts_where_there_are_no_ids() -> None:
    role = event({"choices": [{"text": ""}], "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
    four = event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    six = event({"choices": [{"text": "b"}], "usage": {"prompt_tokens": 3, "completion_tokens": 6}})
    stream = TokenStream()
    assert [stream.feed(piece) for piece in (role, four, six, USAGE)] == [0, 4, 2, 0]
    stream.finish()
    assert stream.problem is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (event({"choices": [{"text": "a"}]}), "neither token_ids nor usage"),
        (event({"choices": [{"text": ""}]}) + USAGE, "neither token_ids nor usage"),
        (tokens(1, 2) + USAGE, "the server counts 6 tokens, its events 2"),
        (b"<html></html>\n\n", "not a completion event"),
        (b"data: {nonsense\n\n", "not a completion event"),
        (event([1, 2]), "not a completion event"),
        (event({"choices": [5]}), "not a completion event"),
        (tokens(1) + b"data: {", "ends inside an event"),
    ],
)
def test_what_cannot_be_counted_is_a_problem(data: bytes, problem: str) -> None:
    assert problem in (fed(data).problem or "")


def test_an_error_in_the_stream_is_the_servers_word() -> None:
    stream = fed(event({"error": {"message": "the engine is dead"}}), b"data: [DONE]\n\n")
    assert "the engine is dead" in (stream.error or "")
    assert stream.problem is None
