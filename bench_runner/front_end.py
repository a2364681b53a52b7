"""The serial stage between clients and engine: one process that takes requests in and streams tokens out.

vLLM's API server is such a process: it handles one event at a time, in the order in which events reach it.
Times in milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.clients import Clients, receive, send
from bench_runner.kernel import kernel
from bench_runner.measurement import Recorder, record_delay
from bench_runner.scheduler import Requests

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
    """An idle front end. What can be outstanding is bounded: a request per client, with all its tokens."""
    return FrontEnd(
        sent=new_ring(capacity=clients),
        emitted=new_ring(capacity=outstanding_tokens),
        ready=new_ring(capacity=clients),
        free_at_ms=np.zeros(1),
        costs=costs,
    )


@kernel
def _after(place: int, size: int) -> int:
    """The next place of a ring. A division would be most of the cost of an event."""
    return place + 1 if place + 1 < size else 0


@kernel
def push(ring: Ring, slot: int, at_ms: float, flag: bool) -> None:
    """Adds an event at the end."""
    tail = ring.ends[TAIL]
    ring.slot[tail], ring.at_ms[tail], ring.flag[tail] = slot, at_ms, flag
    ring.ends[TAIL] = _after(tail, len(ring.slot))


@kernel
def insert(ring: Ring, slot: int, at_ms: float) -> None:
    """Adds an event behind those that are not later; the others may be thinking for longer."""
    size = len(ring.slot)
    place = ring.ends[TAIL]
    while place != ring.ends[HEAD]:
        before = (place - 1) % size
        if ring.at_ms[before] <= at_ms:
            break
        ring.slot[place], ring.at_ms[place], ring.flag[place] = ring.slot[before], ring.at_ms[before], ring.flag[before]
        place = before
    ring.slot[place], ring.at_ms[place], ring.flag[place] = slot, at_ms, False
    ring.ends[TAIL] = (ring.ends[TAIL] + 1) % size


@kernel
def first_ms(ring: Ring) -> float:
    """Time of the first event, infinite where there is none."""
    head = ring.ends[HEAD]
    return np.inf if head == ring.ends[TAIL] else ring.at_ms[head]


@kernel
def pop(ring: Ring) -> tuple[int, bool]:
    """Takes the first event: its slot and flag."""
    head = ring.ends[HEAD]
    ring.ends[HEAD] = _after(head, len(ring.slot))
    return ring.slot[head], ring.flag[head]


@kernel
def length(ring: Ring) -> int:
    """Events in the ring."""
    return (ring.ends[TAIL] - ring.ends[HEAD]) % len(ring.slot)


@kernel
def later_than(ring: Ring, at_ms: float) -> int:
    """Events in the ring that are later than at_ms."""
    count = 0
    for offset in range(length(ring)):
        count += ring.at_ms[(ring.ends[HEAD] + offset) % len(ring.slot)] > at_ms
    return count


@kernel
def next_start_ms(front_end: FrontEnd) -> float:
    """When the front end begins its next event, infinite where none waits."""
    return max(min(first_ms(front_end.sent), first_ms(front_end.emitted)), front_end.free_at_ms[0])


@kernel
def _send_next(front_end: FrontEnd, clients: Clients, requests: Requests, client: int, now_ms: float) -> float:
    """The client takes its next request and sends it when it is due, which is returned; infinite if it has none."""
    due_ms = send(clients, requests, client, now_ms)
    if due_ms == np.inf:
        return due_ms
    if clients.stream.repeats:
        push(front_end.sent, client, due_ms, False)
    else:
        insert(front_end.sent, client, due_ms)
    return due_ms


@kernel
def start_clients(
    front_end: FrontEnd, clients: Clients, requests: Requests, order: NDArray[np.int64], starts_ms: NDArray[np.float64]
) -> None:
    """Every client takes its first request, in the given order, as if it became free at its start."""
    for client in order:
        _send_next(front_end, clients, requests, client, starts_ms[client])


@kernel
def _stream_tokens(front_end: FrontEnd, clients: Clients, recorder: Recorder, until_ms: float) -> None:
    """The events of run_front_end up to the first that is no token or ends a request: most of them, in a tight loop."""
    ring = front_end.emitted
    size, head, tail = len(ring.slot), ring.ends[HEAD], ring.ends[TAIL]
    free_ms, sent_ms = front_end.free_at_ms[0], first_ms(front_end.sent)
    cost_ms = front_end.costs.output_token_ms
    while head != tail and not ring.flag[head] and ring.at_ms[head] <= sent_ms:
        start_ms = max(ring.at_ms[head], free_ms)
        if start_ms > until_ms:
            break
        free_ms = start_ms + cost_ms
        receive(clients, recorder, ring.slot[head], free_ms, False)
        head = _after(head, size)
    ring.ends[HEAD] = head
    front_end.free_at_ms[0] = free_ms


@kernel
def run_front_end(
    front_end: FrontEnd, clients: Clients, recorder: Recorder, requests: Requests, until_ms: float
) -> None:
    """Handles every event that begins by until_ms; a client that gets its last token takes its next request."""
    costs = front_end.costs
    while True:
        _stream_tokens(front_end, clients, recorder, until_ms)
        if next_start_ms(front_end) > until_ms:
            break
        start_ms = next_start_ms(front_end)
        if first_ms(front_end.emitted) <= first_ms(front_end.sent):
            client, last = pop(front_end.emitted)
            done_ms = start_ms + costs.output_token_ms
            receive(clients, recorder, client, done_ms, last)
            if last:
                due_ms = _send_next(front_end, clients, requests, client, done_ms)
                record_delay(recorder, clients.sent_ms[client], due_ms)
        else:
            client, _ = pop(front_end.sent)
            done_ms = start_ms + costs.request_ms + costs.prompt_token_ms * requests.prompt[client]
            push(front_end.ready, client, done_ms, False)
        front_end.free_at_ms[0] = done_ms
