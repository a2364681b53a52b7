"""Which limit binds the configuration that would run, in a sentence of facts that stand in the answer."""

from typing import Any

from service.api.counted import counted
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Capacity
from service.domain.regime import announced_regime
from service.domain.scenario import Workload
from service.recommend import Query, Recommendation

# What the simulated servers' one process in front of the engine takes of a request; assumed, not measured (decision 6).
REQUEST_MS, PROMPT_TOKEN_MS, OUTPUT_TOKEN_MS = 1.0, 0.0002, 0.03
# From this share of its time on, a single process makes requests wait.
BUSY = 0.8


def binding_limit(query: Query, found: Recommendation, *, output_tokens: float) -> dict[str, Any]:
    """Of the first choice, or of what starts where nothing further is set.

    limit: the first of KV memory, max_num_seqs, max_num_batched_tokens and the front end that keeps clients waiting.
    output_tokens: the mean that a request generates.
    """
    top = found.ranked[0]
    runs, capacity = CANDIDATES[top.candidate_index], top.capacity
    if found.decision == "keep_engine_default":
        runs, capacity = query.kept, found.kept_capacity
    load = query.scenario.workload
    shared = load.shared_prefix_ratio if runs.enable_prefix_caching else 0.0
    limit, sentence = _limit(
        runs, capacity, load, shared=shared, output_tokens=output_tokens, throughput_tps=_throughput(found)
    )
    return {
        "config_id": runs.config_id,
        "limit": limit,
        "regime": announced_regime(load, runs, kv_cache_tokens=capacity.kv_cache_tokens),
        "sentence": sentence,
    }


def _throughput(found: Recommendation) -> float | None:
    """Expected tokens per second of the configuration that would run."""
    expectation = found.expectation
    if expectation is None:
        return None
    runs = expectation.recommended or expectation.engine_default
    return None if runs is None else runs.throughput_tps.value


def _limit(
    runs: Candidate,
    capacity: Capacity,
    load: Workload,
    *,
    shared: float,
    output_tokens: float,
    throughput_tps: float | None,
) -> tuple[str, str]:
    clients, fits = load.concurrency, capacity.requests_that_fit
    name = runs.config_id
    if fits < min(clients, runs.max_num_seqs):
        return "kv_memory", (
            f"KV memory binds {name}: its {capacity.kv_cache_gib:.1f} GiB hold {counted(fits, 'whole request')} of "
            f"{load.sequence_tokens:,} tokens, and {min(clients, runs.max_num_seqs):,} could run at once."
        )
    if runs.max_num_seqs < clients:
        return "sequences", (
            f"max_num_seqs binds {name}: {runs.max_num_seqs:,} of {clients:,} clients are served at once, the others "
            "wait."
        )
    own_prompt = load.prompt_tokens * (1 - shared)
    wanted = clients * (1 + own_prompt / output_tokens)
    if wanted > runs.max_num_batched_tokens:
        return "prefill_budget", (
            f"max_num_batched_tokens binds {name}: for {counted(clients, 'request')} to go on without a wait a step "
            f"would have to compute {wanted:,.0f} tokens, most of them of prompts ({own_prompt:,.0f} tokens each "
            f"without the cached prefix), and computes at most {runs.max_num_batched_tokens:,}."
        )
    if throughput_tps is not None:
        per_request = REQUEST_MS + PROMPT_TOKEN_MS * load.prompt_tokens + OUTPUT_TOKEN_MS * output_tokens
        busy = throughput_tps / output_tokens * per_request / 1000
        if busy >= BUSY:
            return "front_end", (
                f"The front end binds {name}: at the expected {throughput_tps:,.0f} tokens a second one process that "
                f"takes {per_request:.1f} ms of a request, as assumed for the simulated servers, is busy "
                f"{min(busy, 1.0):.0%} of the time."
            )
    all_are = "the one client is" if clients == 1 else f"all {clients:,} clients are"
    return "none", (
        f"No limit of {name} binds: {all_are} served at once and a step has room for their "
        f"{wanted:,.0f} tokens of {runs.max_num_batched_tokens:,}; the GPU's own speed decides."
    )
