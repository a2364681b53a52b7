"""What the engine's context means for the start: said where it costs something, and never set without being asked."""

from collections.abc import Iterator
from dataclasses import replace

from service.domain.candidate import CANDIDATES
from service.exclusion import capacities_of
from service.recommend import Query, Recommendation


def context_warnings(query: Query, answer: Recommendation) -> Iterator[str]:
    """Of an answer that can be started: configurations that only the length of the context excludes."""
    model = query.scenario.model
    if answer.decision == "none_feasible" or model.max_model_len is None:
        return
    short_of_memory = [
        row.candidate_index
        for row in answer.ranked
        if row.exclusion is not None and row.exclusion.reason == "kv_cache_too_small"
    ]
    if not short_of_memory:
        return
    short = replace(query.scenario, model=replace(model, max_model_len=query.request_tokens))
    capacities = capacities_of(replace(query, scenario=short).demand, query.gpu.memory_gib)
    would_start = sum(capacities[index].full_length_request_fits for index in short_of_memory)
    if would_start:
        yield (
            f"{would_start} of {len(CANDIDATES)} configurations cannot be chosen only because vLLM must hold one "
            f"request of the whole context of {model.max_model_len:,} tokens; with max_model_len "
            f"{query.request_tokens} (prompt + output) they can, and longer requests are refused."
        )
