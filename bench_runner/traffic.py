"""Kinds of traffic, each as a RequestStream: closed loops, conversations, open loops, and traces replayed.

Every function draws from the generator it is given; equal generators, equal streams.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench_runner.kv_cache import BLOCK
from bench_runner.lengths import Lengths
from bench_runner.request_stream import RequestStream, SharedContents, closed_stream, nothing_shared, open_stream
from bench_runner.traces import RequestTrace
from service.domain.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Prefixes that requests begin with, [prefixes] each: their tokens, and the share of requests that have them.

    They come on top of a request's own prompt. Only whole blocks can be shared, as in the engine.
    """

    tokens: NDArray[np.int64]
    share: NDArray[np.float64]

    @classmethod
    def zipf(cls, *, count: int, tokens: int, exponent: float) -> Self:
        """`count` prefixes of equal length; the k-th most popular has a share proportional to k to the −exponent."""
        if count < 1 or tokens < 0:
            raise InvalidInputError(path="prefixes", value=(count, tokens), remedy="at least one, of at least 0 tokens")
        weight = np.arange(1, count + 1, dtype=np.float64) ** -exponent
        return cls(tokens=np.full(count, tokens, dtype=np.int64), share=weight / weight.sum())

    @property
    def block_start(self) -> NDArray[np.int64]:
        """[prefixes + 1] where each one's content numbers start; the last entry is how many there are."""
        return np.concatenate(([0], np.cumsum(self.tokens // BLOCK)))

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Which prefix each of `count` requests has."""
        return rng.choice(len(self.share), size=count, p=self.share)


def closed_loop(
    rng: np.random.Generator,
    *,
    clients: int,
    requests_per_client: int,
    lengths: Lengths,
    mean_think_ms: float = 0.0,
    prefixes: Prefixes | None = None,
) -> RequestStream:
    """Clients that each send so many unrelated requests, after exponential think times. New lengths every time."""
    count = clients * requests_per_client
    prompt, output = lengths.draw(rng, count)
    prompt, shared = prefixed(rng, prompt, prefixes)
    return closed_stream(
        prompt=prompt,
        output=output,
        shared=shared,
        think_ms=rng.exponential(mean_think_ms, count),
        queue_start=np.arange(clients + 1, dtype=np.int64) * requests_per_client,
    )


def open_loop(
    rng: np.random.Generator,
    *,
    arrival_ms: NDArray[np.float64],
    slots: int,
    lengths: Lengths,
    prefixes: Prefixes | None = None,
) -> RequestStream:
    """A request at every arrival, whatever the engine does; at most `slots` in the system."""
    prompt, output = lengths.draw(rng, len(arrival_ms))
    prompt, shared = prefixed(rng, prompt, prefixes)
    return open_stream(prompt=prompt, output=output, shared=shared, arrival_ms=arrival_ms, slots=slots)


def prefixed(
    rng: np.random.Generator, prompt: NDArray[np.int64], prefixes: Prefixes | None
) -> tuple[NDArray[np.int64], SharedContents]:
    """Prompts [requests] with a prefix drawn for each in front, and what they share by it."""
    if prefixes is None:
        return prompt, nothing_shared(len(prompt))
    which = prefixes.draw(rng, len(prompt))
    start = prefixes.block_start
    shared = SharedContents(
        shared_blocks=prefixes.tokens[which] // BLOCK,
        content_start=start[which],
        contents=np.arange(start[-1], dtype=np.int64),
    )
    return prompt + prefixes.tokens[which], shared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversation:
    """[turns] prompt and output tokens of one conversation."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """[turns] blocks of each turn when it ends. The next turn holds the same ones, and more."""
        return -(-(self.prompt + self.output) // BLOCK)


def conversations(
    rng: np.random.Generator,
    *,
    clients: int,
    per_client: int,
    mean_turns: float,
    lengths: Lengths,
    most_tokens: int,
    mean_think_ms: float = 0.0,
    prefixes: Prefixes | None = None,
) -> RequestStream:
    """Clients that each hold so many conversations, one after the other. Think times are exponential, before each turn.

    A turn's prompt is the one before it, its answer, and new tokens of the user; `lengths` gives those and the answer.
    Turns are geometric; a conversation also ends before a turn that would need more than most_tokens.
    """
    if mean_turns < 1:
        raise InvalidInputError(path="mean_turns", value=mean_turns, remedy="a conversation has at least one turn")
    known = prefixes or Prefixes.zipf(count=1, tokens=0, exponent=0.0)
    which = known.draw(rng, clients * per_client)
    held = [
        _conversation(rng, int(known.tokens[prefix]), 1 / mean_turns, lengths=lengths, most_tokens=most_tokens)
        for prefix in which
    ]
    turns = np.array([len(one.prompt) for one in held], dtype=np.int64)
    return closed_stream(
        prompt=np.concatenate([one.prompt for one in held]),
        output=np.concatenate([one.output for one in held]),
        shared=_shared_by_turns(held, which, known),
        think_ms=rng.exponential(mean_think_ms, int(turns.sum())),
        queue_start=np.concatenate(([0], np.cumsum(turns.reshape(clients, per_client).sum(axis=1)))),
    )


def _conversation(
    rng: np.random.Generator, prefix_tokens: int, ends_with: float, *, lengths: Lengths, most_tokens: int
) -> _Conversation:
    """One conversation that ends after each turn with this probability."""
    user, output = lengths.draw(rng, int(rng.geometric(ends_with)))
    before = np.concatenate(([0], np.cumsum(user + output)[:-1]))
    prompt = prefix_tokens + before + user
    fits = prompt + output <= most_tokens
    if not fits[0]:
        raise InvalidInputError(
            path="most_tokens", value=most_tokens, remedy=f"a first turn has {prompt[0] + output[0]} tokens"
        )
    return _Conversation(prompt=prompt[fits], output=output[fits])


def _shared_by_turns(held: list[_Conversation], which: NDArray[np.int64], prefixes: Prefixes) -> SharedContents:
    """A conversation's contents are its prefix's, then its own; each turn points at the start of them."""
    start = prefixes.block_start
    blocks, content_start, contents = [], [], []
    unused, written = int(start[-1]), 0
    for one, prefix in zip(held, which, strict=True):
        shared = np.arange(start[prefix], start[prefix + 1], dtype=np.int64)
        new = int(one.blocks[-1]) - len(shared)
        contents += [shared, np.arange(unused, unused + new, dtype=np.int64)]
        blocks.append(one.blocks)
        content_start.append(np.full(len(one.prompt), written, dtype=np.int64))
        unused, written = unused + new, written + len(shared) + new
    return SharedContents(np.concatenate(blocks), np.concatenate(content_start), np.concatenate(contents))


def replay(trace: RequestTrace, *, slots: int, speed: float = 1.0) -> RequestStream:
    """A trace at its own times, or `speed` times as fast. Requests share the whole blocks that its hashes name.

    What a prompt's last, partly filled block holds is completed by the answer, so it is the request's own.
    """
    if not 0 < speed < np.inf:
        raise InvalidInputError(path="speed", value=speed, remedy="a positive number")
    if trace.hashes is None:
        shared = nothing_shared(len(trace.prompt))
    else:
        per_hash = trace.hashes.block_tokens // BLOCK
        # Hash ids may be any integers; content numbers start at 0 without gaps.
        number = np.unique(trace.hashes.ids, return_inverse=True)[1].astype(np.int64)
        shared = SharedContents(
            shared_blocks=np.minimum(trace.prompt // BLOCK, np.diff(trace.hashes.start) * per_hash),
            content_start=trace.hashes.start[:-1] * per_hash,
            contents=(number[:, None] * per_hash + np.arange(per_hash)).reshape(-1),
        )
    return open_stream(
        prompt=trace.prompt,
        output=trace.output,
        shared=shared,
        arrival_ms=trace.arrival_ms / speed,
        slots=slots,
    )
