"""What would make room for a model that does not fit: a shorter context, fewer bits, a larger GPU."""

from dataclasses import dataclass, replace
from typing import Literal

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Demand, too_few_batched_tokens
from service.domain.gpu import GPUS
from service.exclusion import contradicted
from service.recommend import Query

MOST_GPUS = 3
WeightBits = Literal[8, 4]
# Against 16 bits; 4-bit formats keep scales beside the weights and some layers as they are.
_SHARE_OF_16_BITS: tuple[tuple[WeightBits, float], ...] = ((8, 0.5), (4, 0.3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Each by itself, None or empty where it would not help.

    max_model_len: the longest context that starts; configurations: how many candidates start with the workload's own;
    weight_bits: the most bits with which one starts, with a context of up to weight_bits_max_model_len.
    """

    max_model_len: int | None
    configurations: int
    weight_bits: WeightBits | None
    weight_bits_max_model_len: int | None
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Candidates that do not contradict what is fixed, to be tried with one change or another."""

    candidates: tuple[Candidate, ...]
    chunked_prefill: bool

    def starting(self, demand: Demand, *, memory_gib: float) -> int:
        """How many would start."""
        return sum(
            demand.capacity(one, memory_gib=memory_gib).full_length_request_fits
            and not too_few_batched_tokens(
                one, context_tokens=demand.context_tokens, chunked_prefill=self.chunked_prefill
            )
            for one in self.candidates
        )

    def longest_context(self, demand: Demand, *, memory_gib: float) -> int | None:
        """By bisection: a longer context never needs less. None if not even the workload's request fits."""
        fits, too_long = demand.request_tokens, demand.context_tokens
        if self.starting(demand, memory_gib=memory_gib):
            return too_long
        if not self.starting(replace(demand, context_tokens=fits), memory_gib=memory_gib):
            return None
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.starting(replace(demand, context_tokens=middle), memory_gib=memory_gib):
                fits = middle
            else:
                too_long = middle
        return fits


def remedy(query: Query) -> Remedy:
    """For a question that memory leaves without an answer."""
    demand, memory_gib = query.demand, query.gpu.memory_gib
    agreeing = tuple(one for one in CANDIDATES if not contradicted(one, query.fixed)) or CANDIDATES
    attempt = _Attempt(candidates=agreeing, chunked_prefill=query.chunked_prefill)
    bits, context = _weight_bits(query, attempt)
    return Remedy(
        max_model_len=attempt.longest_context(demand, memory_gib=memory_gib),
        configurations=attempt.starting(replace(demand, context_tokens=demand.request_tokens), memory_gib=memory_gib),
        weight_bits=bits,
        weight_bits_max_model_len=context,
        gpus=tuple(
            gpu.name
            for gpu in sorted(GPUS, key=lambda gpu: gpu.memory_gib)
            if gpu.memory_gib > memory_gib and attempt.starting(demand, memory_gib=gpu.memory_gib)
        )[:MOST_GPUS],
    )


def _weight_bits(query: Query, attempt: _Attempt) -> tuple[WeightBits | None, int | None]:
    """For a model that is known to be in 16 bits."""
    model, demand = query.scenario.model, query.demand
    if model.architecture is None or model.quantisation is not None:
        return None, None
    for bits, share in _SHARE_OF_16_BITS:
        smaller = replace(demand, weight_bytes=share * demand.weight_bytes)
        context = attempt.longest_context(smaller, memory_gib=query.gpu.memory_gib)
        if context is not None:
            return bits, context
    return None, None
