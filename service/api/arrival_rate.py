"""Requests per second -> clients, from what the bundle's estimator says of vLLM's default."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from service.api.counted import counted
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


# Column of an estimator's quantiles: three of each quantity, the median in the middle.
_THROUGHPUT = 3 * QUANTITIES.index("throughput_tps") + 1


class Settled(NamedTuple):
    """clients: in flight on average; latency_ms: the mean of a request, so that clients = rate · latency before
    rounding up.

    sustainable_per_s: None where the rate is sustained, else the highest rate that is.
    """

    clients: int
    latency_ms: float
    sustainable_per_s: float | None = None


def loads(low: int, high: int) -> list[int]:
    """Whole numbers of clients from low to high by equal factors, each once."""
    steps = MOST_LOADS - 1
    return sorted({round(low * (high / low) ** (step / steps)) for step in range(MOST_LOADS)})


def clients_at(rate_per_s: float, clients: Sequence[int], rates_per_s: Sequence[float]) -> Settled:
    """The least number of clients that finish so many requests a second, rounded up, with the latency that they have by
    clients = rate · latency: Little, A Proof for the Queuing Formula L = λW, 1961.

    clients: ascending, with the requests a second that so many finish; between two of them a straight line. Below that
    number more requests come than go, so that it grows to there. Where no number of clients finishes so many requests,
    the most clients are the answer, with the highest rate that any number of them reaches.
    """
    first = next((index for index, finished in enumerate(rates_per_s) if finished >= rate_per_s), None)
    if first is None:
        return Settled(clients[-1], clients[-1] / rates_per_s[-1] * 1000, max(rates_per_s))
    if first == 0:
        latency_s = clients[0] / rates_per_s[0]
        return Settled(max(_rounded_up(rate_per_s * latency_s), 1), latency_s * 1000)
    before, after = rates_per_s[first - 1], rates_per_s[first]
    between = clients[first - 1] + (clients[first] - clients[first - 1]) * (rate_per_s - before) / (after - before)
    return Settled(_rounded_up(between), between / rate_per_s * 1000)


def _rounded_up(clients: float) -> int:
    """Estimates come in 32 bits: what they are off by is no client."""
    return math.ceil(clients * (1 - 1e-5))


class SettledLoad(NamedTuple):
    """The load with its clients. outside, warnings: where the rate is more than can be sustained."""

    load: ReadLoad
    outside: tuple[OutOfRange, ...] = ()
    warnings: tuple[str, ...] = ()


def settled(load: ReadLoad, rate_per_s: Span, query: Query, policy: Policy) -> SettledLoad:
    """The clients by what the estimator gives for vLLM's default: the median throughput ÷ the mean output is how many
    requests a second they finish, as `expected` has it. query: with any number of clients.

    RefusedError where no such throughput is stored. A rate that is not sustained gets the most clients that were
    trained for, and is outside of what was.
    """
    low, high = policy.manifest.training_range["log2_concurrency"]
    clients = loads(math.ceil(2**low), math.floor(2**high))
    finished = _finished_per_s(load, query, policy, clients)
    ends = [clients_at(rate, clients, finished) for rate in rate_per_s]
    found = load.with_clients((ends[0].clients, max(ends[1].clients, ends[0].clients)))
    middle = found.workload.concurrency
    assumed = {**load.assumed, "workload.concurrency": middle, "workload.latency_ms": _between(ends, middle)}
    found = replace(found, assumed=assumed)
    most = ends[1].sustainable_per_s
    if most is None:
        return SettledLoad(found)
    limit = f"at most {most:.4g} a second at up to {counted(clients[-1], 'client')}"
    outside = OutOfRange(feature="workload.requests_per_second", value=rate_per_s[1], trained_for=limit)
    times = math.ceil(rate_per_s[1] / most)
    warning = (
        f"vLLM's default does not sustain {rate_per_s[1]:.4g} such requests a second on one {query.gpu.name}: by "
        f"{policy.manifest.evidence} runs it finishes {limit}. By that {times:,} times as many replicas would do."
    )
    return SettledLoad(found, (outside,), (warning,))


def _between(ends: Sequence[Settled], middle: int) -> float:
    """The latency at the middle of the two ends, by a straight line."""
    low, high = ends
    if low.clients == high.clients:
        return low.latency_ms
    share = (middle - low.clients) / (high.clients - low.clients)
    return low.latency_ms + (high.latency_ms - low.latency_ms) * share


def _finished_per_s(load: ReadLoad, query: Query, policy: Policy, clients: Sequence[int]) -> list[float]:
    """Requests a second that so many clients finish, by the estimator; one run of it."""
    workload = query.scenario.workload
    states = [encode_state(replace(query.scenario, workload=replace(workload, concurrency=count))) for count in clients]
    estimator = policy.estimator
    if estimator is None:
        _refuse("the policy stores no throughputs")
    _refuse_unknown(query, policy, states[0])
    found = estimator.estimate_all(states, [default_features(query.gpu)] * len(states))
    throughputs = np.exp([float(one.quantiles[DEFAULT_ROW][_THROUGHPUT]) for one in found])
    rates: list[float] = (throughputs / load.mean_output_tokens).tolist()
    return rates


def _refuse_unknown(query: Query, policy: Policy, state: Sequence[float]) -> None:
    """RefusedError where no throughput of vLLM's default is stored. state: at a number of clients trained for."""
    outside = out_of_range(
        state,
        model=query.scenario.model,
        gpu=query.gpu,
        engine_version=query.engine_version,
        slo=policy.manifest.slo,
        manifest=policy.manifest,
    )
    for entry in (*outside, *query.outside):
        _refuse(f"{entry.feature} lies outside of what throughputs are stored for")
    if not query.chunked_prefill:
        _refuse("no throughput is stored without chunked prefill")
    if not query.demand.capacity(query.engine_default, memory_gib=query.gpu.memory_gib).full_length_request_fits:
        _refuse("vLLM's default does not start here, and its throughput is what the rate is turned into clients by")


def _refuse(why: str) -> NoReturn:
    message = f"a rate cannot be turned into clients: {why}; give concurrency instead"
    raise RefusedError("invalid_request", f"{PATH}: {message}", details=[Detail(path=PATH, message=message)])
