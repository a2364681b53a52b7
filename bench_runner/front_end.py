"""The serial stage between clients and engine: one process that takes requests in and streams tokens out.

vLLM's API server is such a process: it handles one event at a time, in the order in which events reach it.
Times in milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import Clients, receive, send
from bench_runner.kernel import kernel
from bench_runner.measurement import Recorder

HEAD, TAIL = 0, 1


class Costs(NamedTuple):
    """What one event keeps the front end busy, in milliseconds."""

    request_ms: float
    prompt_token_ms: float
    output_token_ms: float


class Ring(NamedTuple):
    """A queue of events in time order, of fixed capacity. `flag` marks a token that ends its request."""

    slot: NDArray[np.int64]
    at_ms: NDArray[np.float64]
    flag: NDArray[np.bool_]
    ends: NDArray[np.int64]


class FrontEnd(NamedTuple):
    """Events that wait for it (sent requests, emitted tokens), requests it has passed on, and when it is free."""

    sent: Ring
    emitted: Ring
    ready: Ring
    free_at_ms: NDArray[np.float64]
    costs: Costs


def new_ring(*, capacity: int) -> Ring:
    """An empty ring for `capacity` events."""
    size = capacity + 1
    return Ring(np.zeros(size, np.int64), np.zeros(size), np.zeros(size, np.bool_), np.zeros(2, np.int64))


def new_front_end(*, clients: int, outstanding_tokens: int, costs: Costs) -> FrontEnd:
    """An idle front end. A closed loop bounds what can be outstanding: a request per client, with all its tokens."""
    return FrontEnd(
        sent=new_ring(capacity=clients),
        emitted=new_ring(capacity=outstanding_tokens),
        ready=new_ring(capacity=clients),
        free_at_ms=np.zeros(1),
        costs=costs,
    )


@kernel
def push(ring: Ring, slot: int, at_ms: float, flag: bool) -> None:
    """Adds an event at the end."""
    tail = ring.ends[TAIL]
    ring.slot[tail], ring.at_ms[tail], ring.flag[tail] = slot, at_ms, flag
    ring.ends[TAIL] = (tail + 1) % len(ring.slot)


@kernel
def first_ms(ring: Ring) -> float:
    """Time of the first event, infinite where there is none."""
    head = ring.ends[HEAD]
    return np.inf if head == ring.ends[TAIL] else ring.at_ms[head]


@kernel
def pop(ring: Ring) -> tuple[int, bool]:
    """Takes the first event: its slot and flag."""
    head = ring.ends[HEAD]
    ring.ends[HEAD] = (head + 1) % len(ring.slot)
    return ring.slot[head], ring.flag[head]


@kernel
def length(ring: Ring) -> int:
    """Events in the ring."""
    return (ring.ends[TAIL] - ring.ends[HEAD]) % len(ring.slot)


@kernel
def next_start_ms(front_end: FrontEnd) -> float:
    """When the front end begins its next event, infinite where none waits."""
    return max(min(first_ms(front_end.sent), first_ms(front_end.emitted)), front_end.free_at_ms[0])


@kernel
def run_front_end(
    front_end: FrontEnd, clients: Clients, recorder: Recorder, prompt: NDArray[np.int64], until_ms: float
) -> None:
    """Handles every event that begins by until_ms. prompt: [clients] tokens of each client's request."""
    costs = front_end.costs
    while next_start_ms(front_end) <= until_ms:
        start_ms = next_start_ms(front_end)
        if first_ms(front_end.emitted) <= first_ms(front_end.sent):
            client, last = pop(front_end.emitted)
            done_ms = start_ms + costs.output_token_ms
            receive(clients, recorder, client, done_ms, last)
            if last:
                send(clients, client, done_ms)
                push(front_end.sent, client, done_ms, False)
        else:
            client, _ = pop(front_end.sent)
            done_ms = start_ms + costs.request_ms + costs.prompt_token_ms * prompt[client]
            push(front_end.ready, client, done_ms, False)
        front_end.free_at_ms[0] = done_ms
