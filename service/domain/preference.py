"""Which candidate is offered first: the best score, unless others are as good and safer to live with.

Scores carry noise. Within it of the best, what leaves the engine more room is preferred over what scored higher by
chance, and a small share of the memory, which throws KV cache away, is offered only for a reason.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.ranking import rank

# A configuration below this share of the memory leaves most of it to others on the same GPU.
LOW_UTILISATION = 0.5


def prefer(
    scores: NDArray[np.float32],
    eligible: Sequence[bool],
    *,
    near_tie: float | None,
    low_utilisation_gain: float | None,
    shared_gpu: bool,
    engine_default: Candidate,
    safe: Sequence[bool] | None = None,
) -> list[int]:
    """Indices of all 15 candidates, best first; what is not eligible (would not start) comes last.

    scores: [15], higher is better; near_tie and low_utilisation_gain are differences of scores. Without either, and
    without `safe`, this is ranking.rank.
    safe: those as unlikely to do worse than the engine's default as is asked for; they come before the other eligible.
    low_utilisation_gain: unless the GPU is shared, candidates below LOW_UTILISATION come behind the others of their
    group if none of them scores higher than all others by more than this.
    near_tie: those within this of the first of the order are put by more memory, more sequences and nearness to the
    engine's default instead; on a shared GPU by less memory. ValueError on rows of other lengths.
    """
    if (
        len(scores) != len(CANDIDATES)
        or len(eligible) != len(scores)
        or (safe is not None and len(safe) != len(scores))
    ):
        raise ValueError(f"{len(scores)} scores and {len(eligible)} eligibilities for {len(CANDIDATES)} candidates")
    order = rank(scores, eligible)
    count = sum(eligible)
    starting, others = order[:count], order[count:]
    result: list[int] = []
    for wanted in (True, False):
        group = [i for i in starting if (safe is None or safe[i]) == wanted]
        ordered = group
        if low_utilisation_gain is not None and not shared_gpu:
            ordered = _low_last(scores, ordered, gain=low_utilisation_gain)
        if near_tie is not None:
            ordered = _near_ties_first(
                scores, ordered, near_tie=near_tie, shared_gpu=shared_gpu, engine_default=engine_default
            )
        result += ordered
    return result + others


def _low_last(scores: NDArray[np.float32], group: list[int], *, gain: float) -> list[int]:
    low = [i for i in group if CANDIDATES[i].gpu_memory_utilization < LOW_UTILISATION]
    full = [i for i in group if i not in low]
    if not low or not full or scores[low[0]] - scores[full[0]] > gain:
        return group
    return full + low


def _near_ties_first(
    scores: NDArray[np.float32], group: list[int], *, near_tie: float, shared_gpu: bool, engine_default: Candidate
) -> list[int]:
    """A low utilisation that was put last stays last: only the run of candidates at the head is put in order."""
    if not group:
        return group
    best = scores[group[0]]
    ties = 0
    for index in group:
        if not best - near_tie <= scores[index] <= best:
            break
        ties += 1

    def key(index: int) -> tuple[float, int, float]:
        candidate = CANDIDATES[index]
        memory = candidate.gpu_memory_utilization
        return (memory if shared_gpu else -memory, -candidate.max_num_seqs, distance(candidate, engine_default))

    # Sorting is stable: what is alike in all of it stays in the order of the scores.
    return sorted(group[:ties], key=key) + group[ties:]


def cautious(
    scores: NDArray[np.float32], not_worse: NDArray[np.float32], *, prices: tuple[float, float]
) -> NDArray[np.float32]:
    """Scores less what the chances to do worse cost: prices[k] · (1 − not_worse[..., k]) for each of the two.

    What may go wrong has to gain that much more. scores: [...]; not_worse: [..., 2], the chance not to be worse than
    the engine's default and than candidate 0. Of a configuration against itself it is 1.
    """
    price = [np.float32(one) for one in prices]
    return np.asarray(
        scores - price[0] * (1 - not_worse[..., 0]) - price[1] * (1 - not_worse[..., 1]), dtype=np.float32
    )


def distance(one: Candidate, other: Candidate) -> float:
    """How far two configurations are apart: factors of two in sequences and tokens, and 1 for the other caching."""
    return (
        abs(math.log2(one.max_num_seqs / other.max_num_seqs))
        + abs(math.log2(one.max_num_batched_tokens / other.max_num_batched_tokens))
        + (one.enable_prefix_caching != other.enable_prefix_caching)
    )
