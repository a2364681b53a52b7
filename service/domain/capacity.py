"""What a configuration leaves for the KV cache, how many requests that holds, and whether vLLM starts with it.

The rules are vLLM 0.28's own (v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, config/scheduler.py); for models
whose layers all keep every token they are those of service.domain.memory.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Self

from service.domain.candidate import Candidate
from service.domain.kv_layout import KvLayout, layout_of
from service.domain.memory import GIB, OVERHEAD_GIB, start_up_tokens
from service.domain.scenario import ModelArch, Workload

# What vLLM itself estimates where it captures all graphs of its default: 0.64 and 0.78 GiB in public logs of 0.18 to
# 0.27 ("Estimated CUDA graph memory"), 0.17 to 1.97 with other settings. It is a part of OVERHEAD_GIB.
CUDA_GRAPHS_GIB = 0.75
# v0.21 made VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS the default (v1/worker/gpu_worker.py).
_GRAPHS_INSIDE_FROM = (0, 21)
_NEWEST_KNOWN = (0, 28)
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """GiB beside weights and KV cache: charged to gpu_memory_utilization, and taken from what it leaves.

    known: whether the rule of this very version is known; else it is that of the newest known one. cache_given: the
    memory that is given is the KV cache's alone, whatever gpu_memory_utilization says.
    """

    inside_gib: float
    outside_gib: float
    known: bool
    cache_given: bool = False

    @property
    def graphs_inside(self) -> bool:
        """Whether CUDA graphs are charged to gpu_memory_utilization."""
        return self.outside_gib == 0


@lru_cache(maxsize=256)
def memory_rule(engine_version: str) -> MemoryRule:
    """The rule of a version such as 0.28.0."""
    found = _VERSION.match(engine_version)
    version = (int(found[1]), int(found[2])) if found else None
    if version is not None and version < _GRAPHS_INSIDE_FROM:
        return MemoryRule(inside_gib=OVERHEAD_GIB - CUDA_GRAPHS_GIB, outside_gib=CUDA_GRAPHS_GIB, known=True)
    return MemoryRule(inside_gib=OVERHEAD_GIB, outside_gib=0.0, known=version is not None and version <= _NEWEST_KNOWN)


class Capacity(NamedTuple):
    """Of one configuration on one device; a tuple because each answer makes several.

    kv_cache_tokens as vLLM logs it: sequences of the whole context, times its length. requests_that_fit: of the
    workload, each at its end, by memory alone; a prefix in common is kept once where it is cached.
    """

    kv_cache_gib: float
    kv_cache_tokens: int
    requests_that_fit: int
    full_length_request_fits: bool
    needed_gib: float
    available_gib: float


class Need(NamedTuple):
    """Blocks: of a sequence of the whole context at its largest, of a request at its end, of the prefix in common."""

    full: int
    held: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a model under a workload asks of a device, whatever the configuration. context_tokens: of the one request
    that vLLM wants room for before it starts."""

    weight_bytes: float
    layout: KvLayout
    context_tokens: int
    request_tokens: int
    shared_tokens: int
    rule: MemoryRule

    @classmethod
    def of(cls, model: ModelArch, workload: Workload, *, engine_version: str) -> Self:
        """The context is the engine's own, or the workload's where it is unknown."""
        return cls(
            weight_bytes=model.weight_gb * 1e9,
            layout=layout_of(model),
            context_tokens=start_up_tokens(model, workload),
            request_tokens=workload.sequence_tokens,
            shared_tokens=int(workload.prompt_tokens * workload.shared_prefix_ratio),
            rule=memory_rule(engine_version),
        )

    def of_given_cache(self) -> Self:
        """Where the KV cache's size is given: weights and the rest lie beside it (a CPU: VLLM_CPU_KVCACHE_SPACE)."""
        rule = MemoryRule(inside_gib=0.0, outside_gib=0.0, known=self.rule.known, cache_given=True)
        return replace(self, weight_bytes=0.0, rule=rule)

    def capacity(self, candidate: Candidate, *, memory_gib: float) -> Capacity:
        """What `candidate` leaves of memory_gib, and for how much that is enough."""
        need = self.need(candidate)
        return self.leaving(need, utilization=candidate.gpu_memory_utilization, memory_gib=memory_gib)

    def need(self, candidate: Candidate) -> Need:
        """Depends on prefix caching, and where layers have windows on the token budget."""
        layout, caching = self.layout, candidate.enable_prefix_caching
        return Need(
            full=layout.blocks_to_start(
                self.context_tokens, batched_tokens=candidate.max_num_batched_tokens, prefix_caching=caching
            ),
            held=layout.blocks_held(self.request_tokens, prefix_caching=caching),
            shared=layout.blocks_shared(self.shared_tokens) if caching else 0,
        )

    def leaving(self, need: Need, *, utilization: float, memory_gib: float) -> Capacity:
        """The capacity of a configuration with that need."""
        full, held, shared = need
        block_bytes, rule = self.layout.block_bytes, self.rule
        granted = memory_gib if rule.cache_given else utilization * memory_gib
        if rule.outside_gib:
            granted = min(granted, memory_gib - rule.outside_gib)
        free = granted * GIB - self.weight_bytes - rule.inside_gib * GIB
        blocks = max(0, int(free // block_bytes))
        return Capacity(
            max(0.0, free / GIB),
            blocks * self.context_tokens // full,
            (blocks - shared) // (held - shared) if blocks >= held else 0,
            full <= blocks,
            (self.weight_bytes + full * block_bytes) / GIB + rule.inside_gib,
            granted,
        )


def too_few_batched_tokens(candidate: Candidate, *, context_tokens: int, chunked_prefill: bool) -> bool:
    """Whether vLLM refuses the token budget: less than its sequences, or, without chunked prefill, than its context."""
    budget = candidate.max_num_batched_tokens
    return budget < candidate.max_num_seqs or (not chunked_prefill and budget < context_tokens)
