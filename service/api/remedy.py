"""What would make room for a model that does not fit: a shorter context, fewer bits, a larger GPU."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import Demand, too_few_batched_tokens
from service.domain.gpu import GPUS
from service.domain.quantisation import PLAIN_BYTES
from service.domain.quantised_format import QUANTISED_PARTS
from service.domain.scenario import ModelArch
from service.exclusion import EngineArgs, contradicted
from service.recommend import Query

MOST_GPUS = 3
_BY_MEMORY = sorted(GPUS, key=lambda gpu: gpu.memory_gib)
WeightBits = Literal[8, 4]
# Of what is quantised, against 16 bits; 4-bit formats keep scales beside the weights.
_SHARE_OF_16_BITS: tuple[tuple[WeightBits, float], ...] = ((8, 0.5), (4, 0.3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Each by itself, None or empty where it would not help.

    max_model_len: the longest context that starts; configurations: how many candidates that agree with what is fixed
    start with the workload's own;
    weight_bits: the most bits with which one starts, with a context of up to weight_bits_max_model_len.
    """

    max_model_len: int | None
    configurations: int
    weight_bits: WeightBits | None
    weight_bits_max_model_len: int | None
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Candidates that do not contradict what is fixed, to be tried with one change or another; `kept` if all do.

    roomiest: of each token budget the one with the most memory; if any of them starts, one of these does.
    request_tokens: of the largest request, below which no context is of use.
    """

    agreeing: tuple[Candidate, ...]
    roomiest: tuple[Candidate, ...]
    chunked_prefill: bool
    request_tokens: int

    @classmethod
    def of(cls, fixed: EngineArgs, *, kept: Candidate, chunked_prefill: bool, request_tokens: int) -> Self:
        """kept: what the engine starts with when nothing but `fixed` is set."""
        agreeing = tuple(one for one in CANDIDATES if not contradicted(one, fixed))
        roomiest: dict[int, Candidate] = {}
        # Of equal ones the last: without prefix caching a recurrent state is kept once.
        for one in sorted(
            agreeing or (kept,), key=lambda one: (one.gpu_memory_utilization, not one.enable_prefix_caching)
        ):
            roomiest[one.max_num_batched_tokens] = one
        return cls(
            agreeing=agreeing,
            roomiest=tuple(roomiest.values()),
            chunked_prefill=chunked_prefill,
            request_tokens=request_tokens,
        )

    def starts(self, candidate: Candidate, demand: Demand, *, memory_gib: float) -> bool:
        """Whether vLLM would start with it."""
        return demand.capacity(
            candidate, memory_gib=memory_gib
        ).full_length_request_fits and not too_few_batched_tokens(
            candidate, context_tokens=demand.context_tokens, chunked_prefill=self.chunked_prefill
        )

    def any_starts(self, demand: Demand, *, memory_gib: float) -> bool:
        """Whether vLLM would start with one of them."""
        return any(self.starts(one, demand, memory_gib=memory_gib) for one in self.roomiest)

    def longest_context(self, demand: Demand, *, memory_gib: float) -> int | None:
        """By bisection: a longer context never needs less. None if not even the workload's request fits."""
        fits, too_long = self.request_tokens, demand.context_tokens
        if self.any_starts(demand, memory_gib=memory_gib):
            return too_long
        if not self.any_starts(replace(demand, context_tokens=fits), memory_gib=memory_gib):
            return None
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.any_starts(replace(demand, context_tokens=middle), memory_gib=memory_gib):
                fits = middle
            else:
                too_long = middle
        return fits


def remedy(query: Query) -> Remedy:
    """For a question that memory leaves without an answer."""
    model = query.scenario.model
    return _remedy(
        query.demand,
        query.gpu.memory_gib,
        tuple(query.fixed.items()),
        kept=query.kept,
        chunked_prefill=query.chunked_prefill,
        request_tokens=query.request_tokens,
        # Beside a KV cache of a given size weights of any size are no matter.
        quantisable_bytes=0 if query.gpu.cache_only else _quantisable_bytes(model),
    )


def _quantisable_bytes(model: ModelArch) -> int:
    """What formats of fewer bits shrink: not embedding, head, norms and adapters.

    0 for weights that are quantised already, or of which only the size is known: how far they could be cut, nobody
    knows.
    """
    read = model.architecture
    if read is None or read.quantisation is not None:
        return 0
    return PLAIN_BYTES * sum(
        module.elements for module in read.modules if module.part in QUANTISED_PARTS and not module.vector
    )


# Hundreds of configurations are tried for one, and models that do not fit are asked for again.
@lru_cache(maxsize=512)
def _remedy(
    demand: Demand,
    memory_gib: float,
    fixed: tuple[tuple[str, float | bool], ...],
    *,
    kept: Candidate,
    chunked_prefill: bool,
    request_tokens: int,
    quantisable_bytes: int,
) -> Remedy:
    attempt = _Attempt.of(dict(fixed), kept=kept, chunked_prefill=chunked_prefill, request_tokens=request_tokens)
    bits, context = _weight_bits(demand, attempt, memory_gib, quantisable_bytes=quantisable_bytes)
    shortest = replace(demand, context_tokens=request_tokens)
    return Remedy(
        max_model_len=attempt.longest_context(demand, memory_gib=memory_gib),
        configurations=sum(attempt.starts(one, shortest, memory_gib=memory_gib) for one in attempt.agreeing),
        weight_bits=bits,
        weight_bits_max_model_len=context,
        gpus=tuple(
            gpu.name
            for gpu in _BY_MEMORY
            if gpu.memory_gib > memory_gib
            # A demand beside which the weights lie asks nothing of a GPU that can be compared.
            and not demand.rule.cache_given
            and attempt.any_starts(demand, memory_gib=gpu.memory_gib)
        )[:MOST_GPUS],
    )


def _weight_bits(
    demand: Demand, attempt: _Attempt, memory_gib: float, *, quantisable_bytes: int
) -> tuple[WeightBits | None, int | None]:
    for bits, share in _SHARE_OF_16_BITS if quantisable_bytes else ():
        smaller = replace(demand, weight_bytes=demand.weight_bytes - (1 - share) * quantisable_bytes)
        context = attempt.longest_context(smaller, memory_gib=memory_gib)
        if context is not None:
            return bits, context
    return None, None
