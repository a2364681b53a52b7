"""Requests per second -> clients, by Little's law from what the bundle's estimator says of vLLM's default."""

import math
from collections.abc import Sequence
from typing import NamedTuple

# Numbers of clients at which the latency is looked up, one run of the network for all.
MOST_LOADS = 64


class Settled(NamedTuple):
    """clients: in flight on average; latency_ms: of one request, so that clients = rate · latency before rounding up.

    sustainable_per_s: None where the rate is sustained, else the highest rate that is.
    """

    clients: int
    latency_ms: float
    sustainable_per_s: float | None = None


def loads(low: int, high: int) -> list[int]:
    """Whole numbers of clients from low to high by equal factors, each once."""
    steps = MOST_LOADS - 1
    return sorted({round(low * (high / low) ** (step / steps)) for step in range(MOST_LOADS)})


def clients_at(rate_per_s: float, clients: Sequence[int], latencies_ms: Sequence[float]) -> Settled:
    """The fixed point of clients = rate · latency(clients), rounded up: Little, A Proof for the Queuing Formula
    L = λW, 1961. clients: ascending, with the latency of a request among so many.

    The least fixed point, between two listed numbers by a straight line. Where even the most clients do not finish so
    many requests, those are the answer, with the highest rate that any number of them reaches.
    """
    excess = [rate_per_s * ms / 1000 - count for count, ms in zip(clients, latencies_ms, strict=True)]
    first = next((index for index, value in enumerate(excess) if value <= 0), None)
    if first is None:
        most = max(count / ms * 1000 for count, ms in zip(clients, latencies_ms, strict=True))
        return Settled(clients[-1], latencies_ms[-1], most)
    if first == 0:
        return Settled(max(math.ceil(rate_per_s * latencies_ms[0] / 1000), 1), latencies_ms[0])
    before, after = excess[first - 1], excess[first]
    between = clients[first - 1] + (clients[first] - clients[first - 1]) * before / (before - after)
    return Settled(math.ceil(between), between / rate_per_s * 1000)
