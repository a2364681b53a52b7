"""Which of the candidates vLLM would start on a device, and why not the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Capacity, Demand, too_few_batched_tokens
from service.domain.gpu import Gpu
from service.domain.scenario import Scenario

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

    reason: Obstacle | Literal["contradicts_fixed", "not_learnt"]
    arguments: tuple[str, ...] = ()
    needed_gib: float | None = None
    available_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Memory that the candidate nearest to starting needs and may use, in GiB."""

    config_id: str
    needed_gib: float
    available_gib: float


def engine_start(gpu: Gpu, fixed: EngineArgs, scenario: Scenario, *, chunked_prefill: bool) -> Candidate:
    """What vLLM starts with when nothing but `fixed` is set."""
    context, request = scenario.model.max_model_len, scenario.workload.sequence_tokens
    return _engine_start(gpu, tuple(fixed.items()), context, 0 if chunked_prefill else context or request)


@lru_cache(maxsize=1024)
def _engine_start(
    gpu: Gpu, fixed: tuple[tuple[str, int | float | bool], ...], context_tokens: int | None, at_once: int
) -> Candidate:
    """at_once: tokens of a prompt that have to be computed in one step.

    As vLLM 0.28 has it (engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args).
    """
    given = dict(fixed)
    args = {**gpu.engine_default.engine_args(), **given}
    seqs, tokens = int(args["max_num_seqs"]), int(args["max_num_batched_tokens"])
    if "max_num_batched_tokens" not in given:
        tokens = max(at_once, tokens)
        if context_tokens is not None:
            tokens = min(seqs * context_tokens, tokens)
    if "max_num_seqs" not in given:
        seqs = min(seqs, tokens)
    return Candidate(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=float(args["gpu_memory_utilization"]),
        enable_prefix_caching=bool(args["enable_prefix_caching"]),
    )


def obstacle_of(candidate: Candidate, capacity: Capacity, demand: Demand, *, chunked_prefill: bool) -> Obstacle | None:
    """Why vLLM would not start with it, None where it would."""
    if not capacity.full_length_request_fits:
        return "kv_cache_too_small"
    if too_few_batched_tokens(candidate, context_tokens=demand.context_tokens, chunked_prefill=chunked_prefill):
        return "too_few_batched_tokens"
    return None


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


def with_learnt_only(exclusions: list[Exclusion | None], learnt: Sequence[str] | None) -> list[Exclusion | None]:
    """The same, and of what else could be chosen only these config_ids; None: the ranking learnt from all."""
    if learnt is None:
        return exclusions
    return [
        Exclusion(reason="not_learnt") if exclusion is None and candidate.config_id not in learnt else exclusion
        for candidate, exclusion in zip(CANDIDATES, exclusions, strict=True)
    ]


def _exclusion(
    candidate: Candidate, capacity: Capacity, demand: Demand, *, fixed: EngineArgs, chunked_prefill: bool
) -> Exclusion | None:
    if fixed and (foreign := contradicted(candidate, fixed)):
        return Exclusion(reason="contradicts_fixed", arguments=foreign)
    obstacle = obstacle_of(candidate, capacity, demand, chunked_prefill=chunked_prefill)
    if obstacle == "kv_cache_too_small":
        return Exclusion(reason=obstacle, needed_gib=capacity.needed_gib, available_gib=capacity.available_gib)
    if obstacle is not None:
        return Exclusion(reason=obstacle, arguments=("max_num_batched_tokens",))
    return None


def contradicted(candidate: Candidate, fixed: EngineArgs) -> tuple[str, ...]:
    """The arguments that are fixed to another value than the candidate's."""
    args = candidate.engine_args()
    # 0.9 may arrive as 0.9000000001 from a template that computed it.
    return tuple(name for name, value in fixed.items() if not math.isclose(args[name], value, rel_tol=1e-9))


def shortfall_of(
    exclusions: Sequence[Exclusion | None], capacities: Sequence[Capacity], *, kept: Candidate, kept_capacity: Capacity
) -> Shortfall:
    """Of the candidates that agree with `fixed` the one that lacks the least; of `kept`, if none agrees."""
    pairs = list(zip(range(len(CANDIDATES)), exclusions, strict=True))
    agreeing = [index for index, exclusion in pairs if exclusion and exclusion.reason == "kv_cache_too_small"]
    nearest, capacity = kept, kept_capacity
    if agreeing:
        index = min(agreeing, key=lambda index: capacities[index].needed_gib - capacities[index].available_gib)
        nearest, capacity = CANDIDATES[index], capacities[index]
    return Shortfall(config_id=nearest.config_id, needed_gib=capacity.needed_gib, available_gib=capacity.available_gib)
