"""What bounds a server under a workload: memory for the KV cache, prompts, answers, or nothing yet.

The simulator's error differs by these regimes, so an answer states the error of the regime that it is in. One rule
judges a moment of a run (`regime_of_state`), the other one a workload before anything runs (`regime_of`).
"""

import math
from typing import Literal, get_args

from service.domain.candidate import Candidate
from service.domain.scenario import Workload, check_float, check_int

Regime = Literal["light", "prefill-bound", "decode-bound", "kv-bound"]
REGIMES: tuple[Regime, ...] = get_args(Regime)

# Up to so many sequences a decode step lasts about as long as reading the weights once: a tenth of RIDGE_TOKENS.
LIGHT_SEQUENCES = 32
# Tokens at which computing the dense layers in 16 bits takes as long as reading their weights: peak FLOP/s divided by
# bytes/s, 2.25e15 / 7.7e12 = 292 on a B200, 0.99e15 / 3.35e12 = 295 on an H100. Beyond it tokens cost time, below not.
RIDGE_TOKENS = 300
# A prompt's share of the time from which on prompts bound the run.
MOST = 0.5


def regime_of_state(*, waiting: float, running: float, kv_full: bool, prefill_share: float) -> Regime:
    """The regime of a moment: requests that wait and run, whether memory refused one, prefill's share of the time.

    Full memory comes first, because everything else follows from it; then whichever takes the time. Few sequences of
    which none waits are light only if prompts do not take most of the time.
    """
    if kv_full and waiting > 0:
        return "kv-bound"
    if prefill_share > MOST:
        return "prefill-bound"
    if waiting == 0 and running <= LIGHT_SEQUENCES:
        return "light"
    return "decode-bound"


def regime_of(
    *,
    prompt_tokens: int,
    max_new_tokens: int,
    shared_prefix_ratio: float,
    concurrency: int,
    kv_cache_tokens: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> Regime:
    """The regime of a closed loop of `concurrency` clients, from numbers that are known before launch.

    Without prefix caching give shared_prefix_ratio 0. The shared prefix is held once, everything else per sequence at
    half of its answer. Time is counted in readings of the weights: max_new_tokens decode steps of all sequences, and
    their prompts in chunks of max_num_batched_tokens; a step of fewer tokens than RIDGE_TOKENS takes one reading.
    InvalidInputError for a number that no workload or configuration has.
    """
    counts = {
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": max_new_tokens,
        "concurrency": concurrency,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    for name, value in counts.items():
        check_int(name, value, low=1, high=2**53)
    check_int("kv_cache_tokens", kv_cache_tokens, low=0, high=2**53)
    check_float("shared_prefix_ratio", shared_prefix_ratio, low=0.0, high=1.0)
    own_prompt = prompt_tokens * (1 - shared_prefix_ratio)
    admitted = min(concurrency, max_num_seqs)
    per_sequence = own_prompt + max_new_tokens / 2
    room = max(kv_cache_tokens - prompt_tokens * shared_prefix_ratio, 0) / per_sequence
    running = max(min(admitted, math.floor(room)), 1)
    prefill = running * own_prompt / min(max_num_batched_tokens, RIDGE_TOKENS)
    decode = max_new_tokens * max(running / RIDGE_TOKENS, 1)
    return regime_of_state(
        waiting=concurrency - running,
        running=running,
        kv_full=room < admitted,
        prefill_share=prefill / (prefill + decode),
    )


def announced_regime(workload: Workload, candidate: Candidate, *, kv_cache_tokens: int) -> Regime:
    """regime_of what was announced under one configuration; what prompts have in common saves nothing uncached."""
    return regime_of(
        prompt_tokens=workload.prompt_tokens,
        max_new_tokens=workload.max_new_tokens,
        shared_prefix_ratio=workload.shared_prefix_ratio if candidate.enable_prefix_caching else 0.0,
        concurrency=workload.concurrency,
        kv_cache_tokens=kv_cache_tokens,
        max_num_seqs=candidate.max_num_seqs,
        max_num_batched_tokens=candidate.max_num_batched_tokens,
    )
