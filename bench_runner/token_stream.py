"""Counts the tokens of a stream of server-sent events, however TCP has cut or merged them."""

import json
from typing import Any

EVENT_END = b"\n\n"
TOKEN_IDS = b'"token_ids":['
# The first event repeats the prompt; no model's context makes it longer than this.
LONGEST_EVENT = 64 * 2**20


class TokenStream:
    """One answer of /v1/completions.

    `tokens` so far. `done`: [DONE] has come. `usage_tokens`: the server's own count, None if it gave none.
    `cached_tokens` of the prompt, None if not said. `problem`: why the stream cannot be read. `error`: what the server
    says went wrong.
    """

    __slots__ = ("_rest", "_uncounted", "cached_tokens", "done", "error", "problem", "tokens", "usage_tokens")

    def __init__(self) -> None:
        self._rest = b""
        self._uncounted = False
        self.tokens = 0
        self.done = False
        self.usage_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.problem: str | None = None
        self.error: str | None = None

    def feed(self, data: bytes) -> int:
        """How many tokens are complete with these bytes that were not before."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        end = data.rfind(EVENT_END)
        if end < 0:
            return self._keep(data)
        if end + len(EVENT_END) < len(data):
            self._keep(data[end + len(EVENT_END) :])
        before = self.tokens
        for event in data[:end].split(EVENT_END):
            # An unusual event costs a JSON parser; one with token ids, which is nearly every one, does not.
            start = event.find(TOKEN_IDS)
            stop = event.find(b"]", start) if start >= 0 else -1
            if stop >= 0:
                start += len(TOKEN_IDS)
                self.tokens += event.count(b",", start, stop) + 1 if stop > start else 0
            else:
                self._read(event)
        return self.tokens - before

    def finish(self) -> None:
        """The body has ended: what is left over can be no event, and the counts must agree."""
        if self.problem is not None:
            return
        if self._rest.strip():
            self.problem = f"the stream ends inside an event: {self._rest[:60]!r}"
        elif self.tokens == 0 and (self._uncounted or self.usage_tokens):
            self.problem = "tokens cannot be counted: the server sends neither token_ids nor usage with each event"
        elif self.usage_tokens is not None and self.usage_tokens != self.tokens:
            self.problem = f"the server counts {self.usage_tokens} tokens, its events {self.tokens}"

    def _keep(self, rest: bytes) -> int:
        self._rest = rest
        if len(rest) > LONGEST_EVENT:
            self.problem = f"no end of an event within {LONGEST_EVENT} bytes"
        return 0

    def _read(self, event: bytes) -> None:
        lines = [line for line in event.split(b"\n") if line and not line.startswith((b":", b"event:", b"id:"))]
        if not lines:
            return
        payload = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            if not all(line.startswith(b"data:") for line in lines):
                raise ValueError("a line without data:")
            self._read_content(json.loads(payload))
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            self.problem = self.problem or f"not a completion event: {event[:60]!r} ({error})"

    def _read_content(self, content: dict[str, Any]) -> None:
        if content.get("error"):
            self.error = str(content["error"])[:200]
            return
        usage, choices = content.get("usage"), content["choices"]
        if usage:
            self.usage_tokens = int(usage["completion_tokens"])
            details = usage.get("prompt_tokens_details")
            if details and details.get("cached_tokens") is not None:
                self.cached_tokens = int(details["cached_tokens"])
        if choices and choices[0].get("token_ids") is not None:
            self.tokens += len(choices[0]["token_ids"])
        elif choices and usage:
            self.tokens = max(self.tokens, int(usage["completion_tokens"]))
        elif choices and choices[0].get("text"):
            self._uncounted = True
