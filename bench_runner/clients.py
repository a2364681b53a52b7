"""Clients: each has at most one request in flight and takes the next of its stream when the last token arrives.

Clients of a closed loop start at random moments of a ramp, so that they do not move in lockstep. Times in milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from bench_runner.measurement import Recorder, record_completion, record_token
from bench_runner.request_stream import RequestStream, load_request
from bench_runner.scheduler import Requests


class Clients(NamedTuple):
    """[clients] arrays about the request that each has in flight, and [queues] the next row of each queue.

    sent_ms is when the request was due: in an open loop that is its arrival, also if no client was free then.
    """

    stream: RequestStream
    next_row: NDArray[np.int64]
    busy: NDArray[np.bool_]
    sent_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    received: NDArray[np.int64]


def new_clients(stream: RequestStream) -> Clients:
    """Clients that have sent nothing yet."""
    count = len(stream.queue_of)
    return Clients(
        stream=stream,
        next_row=stream.queue_start[:-1].copy(),
        busy=np.zeros(count, dtype=np.bool_),
        sent_ms=np.zeros(count),
        first_token_ms=np.zeros(count),
        received=np.zeros(count, dtype=np.int64),
    )


@kernel
def send(clients: Clients, requests: Requests, client: int, now_ms: float) -> float:
    """A free client takes its next request; returns when it sends it, infinite if there is none left."""
    stream = clients.stream
    queue = stream.queue_of[client]
    row = clients.next_row[queue]
    if stream.repeats and row == stream.queue_start[queue + 1]:
        row = stream.queue_start[queue]
    if row == stream.queue_start[queue + 1]:
        clients.busy[client] = False
        return np.inf
    clients.next_row[queue] = row + 1
    load_request(stream, requests, client, row)
    clients.busy[client] = True
    clients.received[client] = 0
    if stream.open_loop:
        clients.sent_ms[client] = stream.arrival_ms[row]
        return max(stream.arrival_ms[row], now_ms)
    clients.sent_ms[client] = now_ms + stream.think_ms[row]
    return clients.sent_ms[client]


@kernel
def receive(clients: Clients, recorder: Recorder, client: int, now_ms: float, last: bool) -> None:
    """One token reaches the client; the last one completes its request."""
    if clients.received[client] == 0:
        clients.first_token_ms[client] = now_ms
    clients.received[client] += 1
    record_token(recorder, now_ms)
    if last:
        record_completion(
            recorder,
            client,
            clients.sent_ms[client],
            clients.first_token_ms[client],
            now_ms,
            clients.received[client],
        )


@kernel
def next_uniform(state: NDArray[np.uint64]) -> float:
    """A number in [0, 1), the same on every machine. splitmix64, Steele et al., OOPSLA 2014."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) / 9007199254740992.0
