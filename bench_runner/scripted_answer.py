"""The bytes of a scripted answer and their times, in the form of vLLM 0.28's /v1/completions stream."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from bench_runner.server_script import Script

TEAR_S = 0.002
NEVER_S = 1e6
CREATED = 1_767_225_600
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: scripted\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
# In place of bytes: the connection ends.
CUT = b""


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = http_chunk(b"data: [DONE]\n\n")
BODY_END = b"0\r\n\r\n"


@dataclass(slots=True)
class RequestRecord:
    """What the server did with a request. Times are ns of the monotonic clock, taken just before the write."""

    number: int
    request_id: str
    connection: int
    arrived_ns: int
    prompt_tokens: int
    asked_tokens: int
    cached_tokens: int | None
    first_ns: int | None = None
    last_ns: int | None = None
    tokens: int = 0
    ended: bool = False
    prompt: list[Any] | str | None = None

    def line(self) -> str:
        """A line of /script/log."""
        return json.dumps(asdict(self))


class Write(NamedTuple):
    """Bytes of an answer. `tokens`: those that are complete once these bytes have left."""

    after_s: float
    data: bytes
    tokens: int


class Told(NamedTuple):
    """What events carry beside text: as the request asked for it and the script allows."""

    token_ids: bool
    usage: bool


class AnswerWriter:
    """Plans answers. What answers of one length have in common is built once."""

    def __init__(self, script: Script, *, model: str) -> None:
        self._script = script
        self._model = model
        self._events = lru_cache(maxsize=64)(self._new_events)

    def writes(self, record: RequestRecord, *, prompt: Sequence[Any], told: Told) -> list[Write]:
        """Every write of an answer but the head, in order; ends early where the script says so."""
        script = self._script
        if script.hang_all or record.number == script.hang_on_request:
            return [Write(NEVER_S, CUT, 0)]
        if script.no_tokens or script.garbage or script.error_event:
            return [Write(script.first_token_s, self._tokenless_body(), 0)]
        total, ends = self._length(record.asked_tokens)
        writes = list(self._events(total, record.prompt_tokens if told.usage else 0, told))
        if told.token_ids and writes:
            # vLLM sends the prompt's ids back with the first event.
            tokens = writes[0].tokens
            first = self._event(tokens, prompt_tokens=record.prompt_tokens, sent=tokens, told=told, prompt=list(prompt))
            writes[0] = writes[0]._replace(data=first)
        writes = self._on_the_wire(writes)
        if script.empty_first_event_s is not None:
            empty = self._event(0, prompt_tokens=record.prompt_tokens, sent=0, told=told)
            writes.insert(0, Write(script.empty_first_event_s, http_chunk(empty), 0))
        end_s = writes[-1].after_s if writes else script.first_token_s
        if not ends:
            cut = script.cut_after_tokens is not None
            return [*writes, Write(end_s if cut else NEVER_S, CUT, 0)]
        usage = b"" if script.no_counts else http_chunk(self._usage_event(record, total=total))
        return [*writes, Write(end_s, usage + DONE + BODY_END, 0)]

    @property
    def _first_tokens(self) -> int:
        return self._script.first_event_tokens or self._script.tokens_per_event

    def _length(self, asked_tokens: int) -> tuple[int, bool]:
        """Tokens that leave, and whether the answer then ends as it should."""
        script = self._script
        total = max(0, asked_tokens - script.short_by)
        for limit in (script.cut_after_tokens, script.hang_after_tokens):
            if limit is not None and limit <= total:
                return limit, False
        return total, True

    def _tokenless_body(self) -> bytes:
        if self._script.garbage:
            return http_chunk(b"\x00\xffnot an event\n\n") + BODY_END
        error = http_chunk(b'data: {"error":{"message":"scripted error","type":"InternalServerError","code":500}}\n\n')
        return (error if self._script.error_event else b"") + DONE + BODY_END

    def _new_events(self, total: int, prompt_tokens: int, told: Told) -> list[Write]:
        """One Write an event, not yet framed."""
        script, sent = self._script, 0
        events: list[Write] = []
        while sent < total:
            tokens = min(script.tokens_per_event if sent else self._first_tokens, total - sent)
            sent += tokens
            after_s = script.first_token_s + script.token_interval_s * max(0, sent - self._first_tokens)
            data = self._event(tokens, prompt_tokens=prompt_tokens, sent=sent, told=told)
            events.append(Write(after_s, data, tokens))
        return events

    def _on_the_wire(self, events: list[Write]) -> list[Write]:
        writes: list[Write] = []
        for start in range(0, len(events), self._script.events_per_write):
            group = events[start : start + self._script.events_per_write]
            data = b"".join([http_chunk(event.data) for event in group])
            after_s, tokens = group[-1].after_s, sum(event.tokens for event in group)
            if self._script.torn:
                writes.append(Write(after_s, data[: len(data) // 2], 0))
                after_s, data = after_s + TEAR_S, data[len(data) // 2 :]
            writes.append(Write(after_s, data, tokens))
        return writes

    def _event(
        self, tokens: int, *, prompt_tokens: int, sent: int, told: Told, prompt: Sequence[Any] | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "text": " a" * tokens, "logprobs": None, "finish_reason": None}
        if told.token_ids:
            choice |= {"prompt_token_ids": prompt, "token_ids": list(range(1000, 1000 + tokens))}
        content = self._head() | {"choices": [choice]}
        if told.usage:
            content["usage"] = _usage(prompt_tokens, sent)
        return _data(content)

    def _usage_event(self, record: RequestRecord, *, total: int) -> bytes:
        usage = _usage(record.prompt_tokens, total)
        if record.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": record.cached_tokens}
        return _data(self._head() | {"choices": [], "usage": usage})

    def _head(self) -> dict[str, Any]:
        return {"id": "cmpl-scripted", "object": "text_completion", "created": CREATED, "model": self._model}


def _usage(prompt_tokens: int, sent: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + sent, "completion_tokens": sent}


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
