"""Requests per second -> clients, by Little's law from what the bundle's estimator says of vLLM's default."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from service.api.problem import Detail, RefusedError
from service.api.workload_words import ReadLoad, Span
from service.domain.features import encode_state
from service.domain.manifest import QUANTITIES
from service.policies import Policy
from service.recommend import DEFAULT_ROW, Query, default_features
from service.support import OutOfRange, out_of_range

PATH = "$.workload.requests_per_second"
# Numbers of clients at which the latency is looked up, one run of the network for all.
MOST_LOADS = 64


# Columns of an estimator's quantiles: three of each quantity, the median in the middle.
_TTFT, _TPOT = (3 * QUANTITIES.index(name) + 1 for name in ("ttft_p95_ms", "tpot_p95_ms"))


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
        return Settled(max(_rounded_up(rate_per_s * latencies_ms[0] / 1000), 1), latencies_ms[0])
    before, after = excess[first - 1], excess[first]
    between = clients[first - 1] + (clients[first] - clients[first - 1]) * before / (before - after)
    return Settled(_rounded_up(between), between / rate_per_s * 1000)


def _rounded_up(clients: float) -> int:
    """Latencies come in 32 bits: what they are off by is no client."""
    return math.ceil(clients * (1 - 1e-5))


class SettledLoad(NamedTuple):
    """The load with its clients. outside, warnings: where the rate is more than can be sustained."""

    load: ReadLoad
    outside: tuple[OutOfRange, ...] = ()
    warnings: tuple[str, ...] = ()


def settled(load: ReadLoad, rate_per_s: Span, query: Query, policy: Policy) -> SettledLoad:
    """Little's law with W = TTFT + (output - 1) · TPOT, medians of the p95 that the estimator gives for vLLM's default,
    so that rather more clients are found than fewer. query: with any number of clients.

    RefusedError where no such latency is stored. A rate that is not sustained gets the most clients that were trained
    for, and is outside of what was.
    """
    low, high = policy.manifest.training_range["log2_concurrency"]
    clients = loads(math.ceil(2**low), math.floor(2**high))
    latencies = _latencies_ms(load, query, policy, clients)
    ends = [clients_at(rate, clients, latencies) for rate in rate_per_s]
    found = load.with_clients((ends[0].clients, max(ends[1].clients, ends[0].clients)))
    middle = found.workload.concurrency
    assumed = {**load.assumed, "workload.concurrency": middle, "workload.latency_ms": _between(ends, middle)}
    found = replace(found, assumed=assumed)
    most = ends[1].sustainable_per_s
    if most is None:
        return SettledLoad(found)
    limit = f"at most {most:.4g} a second at up to {clients[-1]:,} clients"
    outside = OutOfRange(feature="workload.requests_per_second", value=rate_per_s[1], trained_for=limit)
    warning = (
        f"vLLM's default does not sustain {rate_per_s[1]:.4g} such requests a second on one {query.gpu.name}: it "
        f"finishes {limit}. By that {math.ceil(rate_per_s[1] / most):,} times as many replicas would do."
    )
    return SettledLoad(found, (outside,), (warning,))


def _between(ends: Sequence[Settled], middle: int) -> float:
    """The latency at the middle of the two ends, by a straight line."""
    low, high = ends
    if low.clients == high.clients:
        return low.latency_ms
    share = (middle - low.clients) / (high.clients - low.clients)
    return low.latency_ms + (high.latency_ms - low.latency_ms) * share


def _latencies_ms(load: ReadLoad, query: Query, policy: Policy, clients: Sequence[int]) -> list[float]:
    """Of one request among so many, by the estimator; one run of it."""
    workload = query.scenario.workload
    states = [encode_state(replace(query.scenario, workload=replace(workload, concurrency=count))) for count in clients]
    estimator = policy.estimator
    if estimator is None:
        _refuse("the policy stores no latencies")
    _refuse_unknown(query, policy, states[0])
    found = estimator.estimate_all(states, [default_features(query.gpu)] * len(states))
    times = np.exp([one.quantiles[DEFAULT_ROW] for one in found])
    output = math.sqrt(load.output_tokens[0] * load.output_tokens[1])
    latencies: list[float] = (times[:, _TTFT] + max(output - 1, 0.0) * times[:, _TPOT]).tolist()
    return latencies


def _refuse_unknown(query: Query, policy: Policy, state: Sequence[float]) -> None:
    """RefusedError where no latency of vLLM's default is stored. state: at a number of clients that was trained for."""
    outside = out_of_range(
        state,
        model=query.scenario.model,
        gpu=query.gpu,
        engine_version=query.engine_version,
        slo=policy.manifest.slo,
        manifest=policy.manifest,
    )
    for entry in (*outside, *query.outside):
        _refuse(f"{entry.feature} lies outside of what latencies are stored for")
    if not query.chunked_prefill:
        _refuse("no latency is stored without chunked prefill")
    if not query.demand.capacity(query.engine_default, memory_gib=query.gpu.memory_gib).full_length_request_fits:
        _refuse("vLLM's default does not start here, and its latency is what the rate is turned into clients by")


def _refuse(why: str) -> NoReturn:
    message = f"a rate cannot be turned into clients: {why}; give concurrency instead"
    raise RefusedError("invalid_request", f"{PATH}: {message}", details=[Detail(path=PATH, message=message)])
