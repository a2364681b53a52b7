"""What a log says about a workload, in the numbers that the ranker was trained on. Pure: arrays in, numbers out.

An announced workload is a mean prompt, an output cap that 95 of 100 answers stay within, the share of prompt tokens
that an earlier request had in front, and how many requests are in flight. How these change over the log is a range;
how requests differ from each other is not, since the ranker was trained on workloads whose requests differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.commands.log_reader import RequestLog
from service.domain.scenario import MAX_CONCURRENCY

MOST_PARTS, LEAST_PARTS, LEAST_REQUESTS = 20, 4, 50
RANGE = (0.1, 0.9)
CAP = 0.95
# A range of counts that is narrower than this factor, or of shares than this difference, is one number.
NARROW_FACTOR, NARROW_SHARE = 1.05, 0.02

Statistic = Callable[[slice], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One number of the workload: over the whole log, and between which values it moved; low = high if it did not."""

    whole: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Requests in flight. starts_s: [steps] from the first arrival; count: [steps], each until the next start."""

    starts_s: NDArray[np.float64]
    count: NDArray[np.int64]
    mean: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNumbers:
    """Everything that was read off a log. None: the log does not say. parts: into how many it was cut for ranges."""

    parts: int
    prompt: Observed
    output: Observed
    output_cap: Observed
    output_longest: int
    shared_prefix: Observed | None
    concurrency: Concurrency | None
    requests_per_second: Observed | None


def numbers_of(log: RequestLog, *, block_tokens: int, window_s: float) -> LogNumbers:
    """The announced numbers of a log. window_s: how long after its last use a prefix still counts."""
    slices = parts_of(len(log.prompt))
    arrival_s = log.arrival_s
    rate = None
    if arrival_s is not None and arrival_s[-1] > arrival_s[0]:
        seen = _observed(_rate(arrival_s), slices, len(arrival_s))
        # Times that differ by less than a number can hold the inverse of have no rate either.
        rate = seen if np.isfinite(seen.whole) else None
    return LogNumbers(
        parts=len(slices),
        prompt=_observed(lambda part: float(log.prompt[part].mean()), slices, len(log.prompt)),
        output=_observed(lambda part: float(log.output[part].mean()), slices, len(log.prompt)),
        output_cap=_observed(lambda part: float(np.quantile(log.output[part], CAP)), slices, len(log.prompt)),
        output_longest=int(log.output.max()),
        shared_prefix=_shared(log, block_tokens=block_tokens, window_s=window_s),
        concurrency=None if arrival_s is None or log.end_s is None else concurrency_of(arrival_s, log.end_s),
        requests_per_second=rate,
    )


def parts_of(requests: int) -> tuple[slice, ...]:
    """Consecutive parts of equally many requests; one part if the log is too short for a range."""
    count = min(MOST_PARTS, requests // LEAST_REQUESTS)
    edges = np.linspace(0, requests, (count if count >= LEAST_PARTS else 1) + 1).round().astype(int)
    return tuple(slice(int(a), int(b)) for a, b in pairwise(edges))


def _observed(statistic: Statistic, slices: Sequence[slice], requests: int) -> Observed:
    whole = statistic(slice(0, requests))
    # Requests that all arrive at once have no rate.
    each = np.array([value for value in map(statistic, slices) if np.isfinite(value)])
    low, high = (float(value) for value in np.quantile(each, RANGE)) if len(each) > 1 else (whole, whole)
    return Observed(whole=whole, low=low, high=high)


def _rate(arrival_s: NDArray[np.float64]) -> Statistic:
    def rate(part: slice) -> float:
        times = arrival_s[part]
        span = float(times[-1] - times[0])
        return (len(times) - 1) / span if span > 0 else float("inf")

    return rate


def concurrency_of(arrival_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> Concurrency | None:
    """Time-weighted, from the first arrival to the last: later the log only runs out. None if no time passes."""
    first, last = float(arrival_s.min()), float(arrival_s.max())
    times = np.concatenate([arrival_s, end_s])
    changes = np.concatenate([np.ones(len(arrival_s), np.int64), -np.ones(len(end_s), np.int64)])
    order = np.argsort(times, kind="stable")
    times, count = times[order], np.cumsum(changes[order])
    lasts = np.diff(np.clip(times, first, last), append=last)
    held = lasts > 0
    if not held.any():
        return None
    starts, count, weight = times[held] - first, count[held], lasts[held] / lasts[held].sum()
    by_size = np.argsort(count, kind="stable")
    reached = np.cumsum(weight[by_size])
    p95 = count[by_size][min(int(np.searchsorted(reached, CAP)), len(count) - 1)]
    return Concurrency(starts_s=starts, count=count, mean=float(count @ weight), p95=float(p95))


def _shared(log: RequestLog, *, block_tokens: int, window_s: float) -> Observed | None:
    if log.blocks is None:
        return None
    never = shared_share(log.blocks, log.prompt, None, block_tokens=block_tokens)
    if log.arrival_s is None:
        return Observed(whole=never, low=never, high=never)
    within = shared_share(log.blocks, log.prompt, log.arrival_s, block_tokens=block_tokens, window_s=window_s)
    return Observed(whole=within, low=within, high=never)


def shared_share(
    blocks: Sequence[Sequence[str]],
    prompt: NDArray[np.int64],
    arrival_s: NDArray[np.float64] | None,
    *,
    block_tokens: int,
    window_s: float = float("inf"),
) -> float:
    """Share of all prompt tokens that stand in the longest prefix of blocks that an earlier request had, too.

    A prefix is forgotten window_s after its last use; without arrivals never. Whether a cache would have kept it is
    the engine's business: an upper bound. The last token of a prompt is computed in any case and never shared.
    """
    # A tree of blocks: (node, hash) -> node, so that hashes of contents alone work as well as hashes of prefixes.
    nodes: dict[tuple[int, str], int] = {}
    used_s: list[float] = [0.0]
    shared = 0
    for index, hashes in enumerate(blocks):
        now = 0.0 if arrival_s is None else float(arrival_s[index])
        node, hits, unbroken = 0, 0, True
        for value in hashes:
            known = nodes.get((node, value))
            if known is None:
                known = nodes[node, value] = len(used_s)
                used_s.append(now)
                unbroken = False
            unbroken = unbroken and now - used_s[known] <= window_s
            hits += unbroken
            used_s[known] = now
            node = known
        shared += min(hits * block_tokens, int(prompt[index]) - 1)
    return shared / int(prompt.sum())


def workload_of(numbers: LogNumbers) -> dict[str, Any]:
    """The `workload` of a request: a number, or [low, high] where it moved. Without concurrency if that is unknown."""
    workload: dict[str, Any] = {
        "prompt_tokens": _count(numbers.prompt),
        "max_new_tokens": _count(numbers.output_cap),
        **_further_outputs(numbers),
    }
    if numbers.shared_prefix is not None:
        workload["shared_prefix_ratio"] = _share(numbers.shared_prefix)
    if numbers.concurrency is not None:
        seen = numbers.concurrency
        low, high = sorted((seen.mean, seen.p95))
        workload["concurrency"] = _count(Observed(whole=seen.mean, low=low, high=high), most=MAX_CONCURRENCY)
    elif numbers.requests_per_second is not None:
        rate = numbers.requests_per_second
        narrow = rate.high <= rate.low * NARROW_FACTOR
        workload["requests_per_second"] = (
            _significant(rate.whole) if narrow else [_significant(rate.low), _significant(rate.high)]
        )
    return workload


def _further_outputs(numbers: LogNumbers) -> dict[str, Any]:
    """The mean and the longest answer, where they say more than the cap does."""
    further: dict[str, Any] = {}
    cap = round(numbers.output_cap.high)
    # A few enormous answers lift the mean over what 95 of 100 stay within; a mean above a cap describes nobody.
    if round(max(numbers.output.whole, numbers.output.high)) < cap:
        further["output_tokens"] = _count(numbers.output)
    if numbers.output_longest > max(cap, round(numbers.output_cap.whole)):
        further["max_output_tokens"] = numbers.output_longest
    return further


def _count(observed: Observed, *, most: int | None = None) -> int | list[int]:
    """Whole numbers from 1."""

    def whole(value: float) -> int:
        return max(1, round(value) if most is None else min(round(value), most))

    low, high = whole(observed.low), whole(observed.high)
    return [low, high] if high > low * NARROW_FACTOR else whole(observed.whole)


def _share(observed: Observed) -> float | list[float]:
    low, high = round(observed.low, 4), round(observed.high, 4)
    return [low, high] if high - low > NARROW_SHARE else round(observed.whole, 4)


def _significant(value: float) -> float:
    return float(f"{value:.4g}")
