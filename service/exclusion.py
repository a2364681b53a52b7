"""Which of the candidates vLLM would start on a device, and why not the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Capacity, Demand, too_few_batched_tokens

Obstacle = Literal["kv_cache_too_small", "too_few_batched_tokens"]
EngineArgs = Mapping[str, int | float | bool]
# Where no layer has a window a capacity depends on two arguments only, and its need on one of them.
_CACHING = [candidate.enable_prefix_caching for candidate in CANDIDATES]
_NEEDS = (_CACHING.index(False), _CACHING.index(True))
_SETTINGS = tuple(dict.fromkeys((one.gpu_memory_utilization, int(one.enable_prefix_caching)) for one in CANDIDATES))
_SETTING_OF = tuple(_SETTINGS.index((one.gpu_memory_utilization, int(one.enable_prefix_caching))) for one in CANDIDATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Why a candidate cannot be chosen. arguments: those that contradict `fixed`; memory in GiB where it lacks."""

    reason: Obstacle | Literal["contradicts_fixed"]
    arguments: tuple[str, ...] = ()
    needed_gib: float | None = None
    available_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Memory that the candidate nearest to starting needs and may use, in GiB."""

    config_id: str
    needed_gib: float
    available_gib: float


def capacities_of(demand: Demand, memory_gib: float) -> list[Capacity]:
    """Of each candidate. Those that ask alike share one."""
    if demand.layout.is_windowed:
        return [demand.capacity(candidate, memory_gib=memory_gib) for candidate in CANDIDATES]
    needs = [demand.need(CANDIDATES[first]) for first in _NEEDS]
    distinct = [
        demand.leaving(needs[need], utilization=utilization, memory_gib=memory_gib) for utilization, need in _SETTINGS
    ]
    return [distinct[setting] for setting in _SETTING_OF]


def exclusions_of(
    capacities: Sequence[Capacity], demand: Demand, *, fixed: EngineArgs, chunked_prefill: bool
) -> list[Exclusion | None]:
    """Of each candidate, None where it can be chosen. capacities: of each, in the candidates' order."""
    if not fixed and chunked_prefill and all(one.full_length_request_fits for one in capacities):
        return [None] * len(CANDIDATES)
    return [
        _exclusion(candidate, capacity, demand, fixed=fixed, chunked_prefill=chunked_prefill)
        for candidate, capacity in zip(CANDIDATES, capacities, strict=True)
    ]


def _exclusion(
    candidate: Candidate, capacity: Capacity, demand: Demand, *, fixed: EngineArgs, chunked_prefill: bool
) -> Exclusion | None:
    if fixed and (foreign := contradicted(candidate, fixed)):
        return Exclusion(reason="contradicts_fixed", arguments=foreign)
    if not capacity.full_length_request_fits:
        return Exclusion(
            reason="kv_cache_too_small", needed_gib=capacity.needed_gib, available_gib=capacity.available_gib
        )
    if too_few_batched_tokens(candidate, context_tokens=demand.context_tokens, chunked_prefill=chunked_prefill):
        return Exclusion(reason="too_few_batched_tokens", arguments=("max_num_batched_tokens",))
    return None


def contradicted(candidate: Candidate, fixed: EngineArgs) -> tuple[str, ...]:
    """The arguments that are fixed to another value than the candidate's."""
    args = candidate.engine_args()
    # 0.9 may arrive as 0.9000000001 from a template that computed it.
    return tuple(name for name, value in fixed.items() if not math.isclose(args[name], value, rel_tol=1e-9))


def shortfall_of(exclusions: Sequence[Exclusion | None], capacities: Sequence[Capacity]) -> Shortfall:
    """Of the candidates that agree with `fixed` (of all, if none does), the one that lacks the least."""
    pairs = list(zip(range(len(CANDIDATES)), exclusions, strict=True))
    agreeing = [index for index, exclusion in pairs if exclusion and exclusion.reason == "kv_cache_too_small"]
    nearest = min(
        agreeing or range(len(CANDIDATES)),
        key=lambda index: capacities[index].needed_gib - capacities[index].available_gib,
    )
    return Shortfall(
        config_id=CANDIDATES[nearest].config_id,
        needed_gib=capacities[nearest].needed_gib,
        available_gib=capacities[nearest].available_gib,
    )
