"""Requests as bytes: random token ids behind a shared prefix, without a tokeniser or a JSON encoder."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.request_log import request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What the prompts of a run are made of. Ids are drawn uniformly from token_ids[0] ≤ id < token_ids[1]."""

    served_model: str
    host: str
    prompt_tokens: int
    shared_prefix_tokens: int
    max_new_tokens: int
    token_ids: tuple[int, int]
    prefix_seed: int
    prompt_seed: int


class RequestWriter:
    """Writes requests. Every prompt of a prefix_seed begins alike; what follows is drawn anew for each request."""

    def __init__(self, settings: PromptSettings) -> None:
        self._settings = settings
        low, high = settings.token_ids
        # Fixed width, so that drawing ids and writing them are two array operations.
        self._written = np.array([b"%d," % token for token in range(low, high)])
        before = json.dumps({"model": settings.served_model}).removesuffix("}") + ', "prompt":['
        shared = self._ids(np.random.default_rng(settings.prefix_seed), settings.shared_prefix_tokens)
        self._before = before.encode() + shared
        after = {
            "max_tokens": settings.max_new_tokens,
            "min_tokens": settings.max_new_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        self._after = b"]," + json.dumps(after).removeprefix("{").encode()

    def generator(self, client: int) -> np.random.Generator:
        """The source of a client's fresh parts."""
        return np.random.default_rng([self._settings.prompt_seed, client])

    def request(self, generator: np.random.Generator, *, client: int, number: int) -> bytes:
        """The number-th request of a client, head and body."""
        settings = self._settings
        fresh = self._ids(generator, settings.prompt_tokens - settings.shared_prefix_tokens)
        body = (self._before + fresh).removesuffix(b",") + self._after
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {settings.host}\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {request_id(settings.prompt_seed, client, number)}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _ids(self, generator: np.random.Generator, count: int) -> bytes:
        drawn: NDArray[np.int64] = generator.integers(len(self._written), size=count)
        return self._written[drawn].tobytes().translate(None, b"\0")
