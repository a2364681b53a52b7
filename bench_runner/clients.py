"""A closed loop of clients: each keeps one request in flight and sends the next when the last token arrives.

Clients start at random moments of a ramp, so that they do not move in lockstep. Times in milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from bench_runner.measurement import Recorder, record_completion, record_token


class Clients(NamedTuple):
    """[clients] arrays about the request that each has in flight."""

    sent_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    received: NDArray[np.int64]


def new_clients(*, count: int) -> Clients:
    """Clients that have sent nothing yet."""
    return Clients(
        sent_ms=np.zeros(count),
        first_token_ms=np.zeros(count),
        received=np.zeros(count, dtype=np.int64),
    )


@kernel
def send(clients: Clients, client: int, now_ms: float) -> None:
    """The client sends its next request."""
    clients.sent_ms[client] = now_ms
    clients.received[client] = 0


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
