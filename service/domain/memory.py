"""KV cache capacity of a candidate on a GPU, and whether the engine would start at all."""

from dataclasses import dataclass

from service.domain.candidate import Candidate
from service.domain.scenario import ModelArch, Workload

GIB = 2**30
KV_BLOCK_TOKENS = 16
# Activations, CUDA graphs and the runtime itself; measured spread is about ±1 GiB.
OVERHEAD_GIB = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """Memory that a candidate needs to start, against what its gpu_memory_utilization grants, in GiB."""

    feasible: bool
    needed_gib: float
    available_gib: float


def kv_blocks(model: ModelArch, candidate: Candidate, *, memory_gib: float) -> int:
    """KV cache blocks of 16 tokens: (utilization · memory − weights − overhead) ÷ bytes of a block; never below 0."""
    free = candidate.gpu_memory_utilization * memory_gib * GIB - model.weight_gb * 1e9 - OVERHEAD_GIB * GIB
    return max(0, int(free // (model.kv_bytes_per_token * KV_BLOCK_TOKENS)))


def start_up_tokens(model: ModelArch, workload: Workload) -> int:
    """Tokens of the one request that must fit: the engine's own context, or the workload's where it is unknown."""
    return model.max_model_len or workload.sequence_tokens


def start_up_feasibility(
    model: ModelArch, workload: Workload, candidate: Candidate, *, memory_gib: float
) -> Feasibility:
    """vLLM refuses to start when the KV cache cannot hold one request of max_model_len."""
    tokens = start_up_tokens(model, workload)
    blocks = -(-tokens // KV_BLOCK_TOKENS)
    kv_bytes = blocks * KV_BLOCK_TOKENS * model.kv_bytes_per_token
    return Feasibility(
        feasible=blocks <= kv_blocks(model, candidate, memory_gib=memory_gib),
        needed_gib=(model.weight_gb * 1e9 + kv_bytes) / GIB + OVERHEAD_GIB,
        available_gib=candidate.gpu_memory_utilization * memory_gib,
    )
