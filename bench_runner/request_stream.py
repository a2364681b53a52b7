"""What clients send, request by request: closed loops, open loops and traces in one form.

Requests are rows, grouped into queues. A client takes the next row of its queue when its last request has ended. In a
closed loop every client has a queue of its own; in an open loop all clients, its slots, share one queue of arrivals.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from bench_runner.kv_cache import BLOCK
from bench_runner.scheduler import Requests, own_content
from service.domain.errors import InvalidInputError


class RequestStream(NamedTuple):
    """[requests] arrays, in the order of their queues: tokens, blocks and milliseconds.

    The first shared_blocks[r] blocks of request r hold contents[content_start[r] + index]: equal numbers, equal tokens
    up to the end of that block, and later requests may ask for them again. They lie in 0 … shared_numbers − 1, so
    requests can point at the same stretch of contents. All further blocks are the request's own.

    queue_start: [queues + 1], queue q holds rows queue_start[q] … queue_start[q + 1] − 1. queue_of: [clients].
    A request of an open loop is due at arrival_ms, one of a closed loop think_ms after the client became free.
    repeats: a queue that has come to its end starts again, without think times. Requests are then sent in the order in
    which clients took them, so that nobody sends a second one before all have started.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    shared_blocks: NDArray[np.int64]
    content_start: NDArray[np.int64]
    contents: NDArray[np.int64]
    shared_numbers: int
    think_ms: NDArray[np.float64]
    arrival_ms: NDArray[np.float64]
    queue_start: NDArray[np.int64]
    queue_of: NDArray[np.int64]
    open_loop: bool
    repeats: bool


class SharedContents(NamedTuple):
    """What requests have in common, [requests] each but contents: the fields of the same names in RequestStream."""

    shared_blocks: NDArray[np.int64]
    content_start: NDArray[np.int64]
    contents: NDArray[np.int64]


def nothing_shared(requests: int) -> SharedContents:
    """Contents of requests that have no block in common."""
    zeros = np.zeros(requests, dtype=np.int64)
    return SharedContents(zeros, zeros, np.zeros(0, dtype=np.int64))


def closed_stream(
    *,
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    shared: SharedContents,
    think_ms: NDArray[np.float64],
    queue_start: NDArray[np.int64],
    repeats: bool = False,
) -> RequestStream:
    """A closed loop: client c sends rows queue_start[c] … queue_start[c + 1] − 1, then stops (or starts again)."""
    return _checked(
        RequestStream(
            prompt=prompt,
            output=output,
            shared_blocks=shared.shared_blocks,
            content_start=shared.content_start,
            contents=shared.contents,
            shared_numbers=int(shared.contents.max(initial=-1)) + 1,
            think_ms=think_ms,
            arrival_ms=np.zeros(len(prompt)),
            queue_start=queue_start,
            queue_of=np.arange(len(queue_start) - 1, dtype=np.int64),
            open_loop=False,
            repeats=repeats,
        )
    )


def open_stream(
    *,
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    shared: SharedContents,
    arrival_ms: NDArray[np.float64],
    slots: int,
) -> RequestStream:
    """An open loop: rows arrive at arrival_ms, ascending, and at most `slots` requests are in the system at a time."""
    return _checked(
        RequestStream(
            prompt=prompt,
            output=output,
            shared_blocks=shared.shared_blocks,
            content_start=shared.content_start,
            contents=shared.contents,
            shared_numbers=int(shared.contents.max(initial=-1)) + 1,
            think_ms=np.zeros(len(prompt)),
            arrival_ms=arrival_ms,
            queue_start=np.array([0, len(prompt)], dtype=np.int64),
            queue_of=np.zeros(slots, dtype=np.int64),
            open_loop=True,
            repeats=False,
        )
    )


def _checked(stream: RequestStream) -> RequestStream:
    """The stream; InvalidInputError with the first request that cannot be."""
    if not len(stream.prompt) or not len(stream.queue_of):
        value = f"{len(stream.prompt)} requests, {len(stream.queue_of)} clients"
        raise InvalidInputError(path="stream", value=value, remedy="give it at least one of each")
    ends = stream.content_start + stream.shared_blocks
    whole = -(-(stream.prompt + stream.output) // BLOCK)
    for path, values, wrong, remedy in (
        ("prompt", stream.prompt, stream.prompt < 1, "a request has at least one token"),
        ("output", stream.output, stream.output < 1, "a request asks for at least one token"),
        ("think_ms", stream.think_ms, ~(stream.think_ms >= 0), "time does not run backwards"),
        ("think_ms", stream.think_ms, (stream.think_ms > 0) & stream.repeats, "a repeating queue has no think times"),
        ("arrival_ms", stream.arrival_ms, ~(stream.arrival_ms >= 0), "arrivals begin at 0"),
        ("arrival_ms", stream.arrival_ms, np.diff(stream.arrival_ms, prepend=-np.inf) < 0, "sort them"),
        (
            "shared_blocks",
            stream.shared_blocks,
            (stream.shared_blocks < 0) | (stream.shared_blocks > whole),
            "≤ blocks",
        ),
        ("content_start", stream.content_start, ends > len(stream.contents), "number every shared block"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InvalidInputError(path=f"{path}[{row}]", value=values[row].item(), remedy=remedy)
    return stream


def longest(stream: RequestStream) -> int:
    """Tokens of the longest request when it ends."""
    return int((stream.prompt + stream.output).max())


def most_outstanding_tokens(stream: RequestStream) -> int:
    """Output tokens of the requests that can be in the system together, at most."""
    clients_of = np.bincount(stream.queue_of, minlength=len(stream.queue_start) - 1)
    if (clients_of == 1).all() and (np.diff(stream.queue_start) > 0).all():
        return int(np.maximum.reduceat(stream.output, stream.queue_start[:-1]).sum())
    total = 0
    for queue, clients in enumerate(clients_of):
        output = stream.output[stream.queue_start[queue] : stream.queue_start[queue + 1]]
        total += int(output.max(initial=0)) if clients == 1 else int(np.sort(output)[-clients:].sum())
    return total


@kernel
def load_request(stream: RequestStream, requests: Requests, slot: int, row: int) -> None:
    """Puts request `row` into a slot whose last request has ended; the scheduler hears of it when it is added."""
    shared, start = stream.shared_blocks[row], stream.content_start[row]
    for index in range(shared):
        requests.contents[slot, index] = stream.contents[start + index]
    for index in range(shared, requests.own_from[slot]):
        requests.contents[slot, index] = own_content(requests, stream.shared_numbers, slot, index)
    requests.prompt[slot] = stream.prompt[row]
    requests.output[slot] = stream.output[row]
    requests.own_from[slot] = shared
