"""vLLM 0.28's scheduling rules: who gets how many tokens in a step. No time in here, only tokens and blocks.

Mirrors vllm/v1/core/sched/scheduler.py and async_scheduler.py for one full-attention model without speculative
decoding, LoRA, priorities or connectors. Requests live in slots: a slot holds one request at a time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from bench_runner.kv_cache import (
    BLOCK,
    FREE,
    NONE,
    BlockPool,
    blocks_of,
    cache_block,
    release_blocks,
    retire_content,
    take_block,
    touch_block,
)

ABSENT, WAITING, RUNNING, PREEMPTED = 0, 1, 2, 3
NUM_WAITING, NUM_RUNNING, PREEMPTIONS, HIT_TOKENS, QUERIED_TOKENS = 0, 1, 2, 3, 4
# What a run asked of its limits: `bench_runner/stand_in.py` tells from these which other limits give the same run.
PEAK_RUNNING, PEAK_TOKENS, PEAK_BLOCKS, SEQS_BOUND, TOKENS_BOUND, BLOCKS_BOUND, ANY_HIT, FREE_HIT = range(5, 13)
NUM_TOTALS = 13


class Limits(NamedTuple):
    """The engine arguments that bound a step. asynchronous: a step is scheduled while another is on the GPU."""

    max_num_seqs: int
    max_num_batched_tokens: int
    asynchronous: bool


class Requests(NamedTuple):
    """[slots] arrays, and the queues. Token counts as the scheduler knows them, not as the client does.

    computed counts tokens scheduled so far, placeholders the scheduled ones whose value is still on the GPU,
    stale those of a preempted request. contents numbers what each block of a slot's request holds: equal numbers, equal
    tokens up to the end of that block. From block own_from on nobody else can ask for it once the request has ended.
    """

    status: NDArray[np.int8]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    contents: NDArray[np.int64]
    own_from: NDArray[np.int64]
    computed: NDArray[np.int64]
    generated: NDArray[np.int64]
    placeholders: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    stale: NDArray[np.int64]
    admitted: NDArray[np.bool_]
    table: NDArray[np.int32]
    num_blocks: NDArray[np.int64]
    num_cached: NDArray[np.int64]
    waiting: NDArray[np.int64]
    running: NDArray[np.int64]
    totals: NDArray[np.int64]


class Step(NamedTuple):
    """What one step computes: [slots] rows of which the first `size[0]` count. context: tokens already in the cache."""

    slot: NDArray[np.int64]
    tokens: NDArray[np.int64]
    context: NDArray[np.int64]
    samples: NDArray[np.bool_]
    size: NDArray[np.int64]


def new_requests(*, slots: int, max_tokens: int) -> Requests:
    """Empty slots for requests of at most max_tokens (prompt and output)."""

    def zeros() -> NDArray[np.int64]:
        return np.zeros(slots, dtype=np.int64)

    return Requests(
        status=np.zeros(slots, dtype=np.int8),
        prompt=zeros(),
        output=zeros(),
        contents=np.zeros((slots, -(-max_tokens // BLOCK)), dtype=np.int64),
        own_from=zeros(),
        computed=zeros(),
        generated=zeros(),
        placeholders=zeros(),
        in_flight=zeros(),
        stale=zeros(),
        admitted=np.zeros(slots, dtype=np.bool_),
        table=np.full((slots, -(-max_tokens // BLOCK)), NONE, dtype=np.int32),
        num_blocks=zeros(),
        num_cached=zeros(),
        waiting=zeros(),
        running=zeros(),
        totals=np.zeros(NUM_TOTALS, dtype=np.int64),
    )


def new_step(*, slots: int) -> Step:
    """An empty step."""
    return Step(
        slot=np.zeros(slots, dtype=np.int64),
        tokens=np.zeros(slots, dtype=np.int64),
        context=np.zeros(slots, dtype=np.int64),
        samples=np.zeros(slots, dtype=np.bool_),
        size=np.zeros(1, dtype=np.int64),
    )


@kernel
def own_content(requests: Requests, shared_numbers: int, slot: int, index: int) -> int:
    """The content number of a block that only the slot's request holds; numbers below shared_numbers are for others."""
    return shared_numbers + slot * requests.contents.shape[1] + index


def number_own_contents(requests: Requests, *, shared_numbers: int) -> int:
    """Numbers all blocks of all slots as their requests' own; returns how many content numbers there are then."""
    slots, per_slot = requests.contents.shape
    requests.contents[:] = shared_numbers + np.arange(slots * per_slot).reshape(slots, per_slot)
    requests.own_from[:] = 0
    return shared_numbers + slots * per_slot


@kernel
def add_request(requests: Requests, slot: int) -> None:
    """Scheduler.add_request: the back of the waiting queue. the caller has set lengths and contents."""
    requests.status[slot] = WAITING
    requests.computed[slot] = 0
    requests.generated[slot] = 0
    requests.placeholders[slot] = 0
    requests.in_flight[slot] = 0
    requests.stale[slot] = 0
    requests.admitted[slot] = False
    requests.num_blocks[slot] = 0
    requests.num_cached[slot] = 0
    requests.waiting[requests.totals[NUM_WAITING]] = slot
    requests.totals[NUM_WAITING] += 1


@kernel
def _known_tokens(requests: Requests, slot: int) -> int:
    return requests.prompt[slot] + requests.generated[slot]


@kernel
def _cache_up_to(requests: Requests, pool: BlockPool, slot: int, tokens: int) -> None:
    """KVCacheManager.cache_blocks: full blocks of the first `tokens` tokens become hittable, in this very step."""
    if not pool.caching:
        return
    full = tokens // BLOCK
    for index in range(requests.num_cached[slot], full):
        cache_block(pool, requests.table[slot, index], requests.contents[slot, index])
    requests.num_cached[slot] = max(requests.num_cached[slot], full)


@kernel
def _grow(requests: Requests, pool: BlockPool, slot: int, tokens: int) -> bool:
    """allocate_slots for a running request: False if the pool cannot give the blocks for `tokens` tokens."""
    needed = blocks_of(tokens) - requests.num_blocks[slot]
    if needed > pool.totals[FREE]:
        requests.totals[BLOCKS_BOUND] += 1
        return False
    for _ in range(needed):
        requests.table[slot, requests.num_blocks[slot]] = take_block(pool)
        requests.num_blocks[slot] += 1
    _cache_up_to(requests, pool, slot, min(tokens, _known_tokens(requests, slot)))
    return True


@kernel
def _release(requests: Requests, pool: BlockPool, slot: int) -> None:
    release_blocks(pool, requests.table[slot], requests.num_blocks[slot])
    requests.num_blocks[slot] = 0
    requests.num_cached[slot] = 0


@kernel
def _preempt_last(requests: Requests, pool: BlockPool) -> int:
    """_preempt_request on the newest running request: blocks freed, progress forgotten, front of the waiting queue."""
    totals = requests.totals
    totals[NUM_RUNNING] -= 1
    victim = requests.running[totals[NUM_RUNNING]]
    _release(requests, pool, victim)
    requests.status[victim] = PREEMPTED
    requests.computed[victim] = 0
    requests.placeholders[victim] = 0
    requests.stale[victim] = requests.in_flight[victim]
    for index in range(totals[NUM_WAITING], 0, -1):
        requests.waiting[index] = requests.waiting[index - 1]
    requests.waiting[0] = victim
    totals[NUM_WAITING] += 1
    totals[PREEMPTIONS] += 1
    return victim


@kernel
def _put(requests: Requests, step: Step, slot: int, tokens: int, asynchronous: bool) -> None:
    """Adds a request to the step; afterwards as _update_after_schedule leaves it."""
    row = step.size[0]
    step.slot[row] = slot
    step.tokens[row] = tokens
    step.context[row] = requests.computed[slot]
    requests.computed[slot] += tokens
    requests.in_flight[slot] += tokens
    samples = requests.computed[slot] >= _known_tokens(requests, slot) + requests.placeholders[slot]
    step.samples[row] = samples
    if samples and asynchronous:
        requests.placeholders[slot] += 1
    step.size[0] = row + 1


@kernel
def _schedule_running(requests: Requests, pool: BlockPool, limits: Limits, step: Step) -> tuple[int, bool]:
    """First loop of schedule(): running requests in order, preempting the newest where blocks run out.

    Returns the token budget that is left and whether anyone was preempted.
    """
    budget = limits.max_num_batched_tokens
    preempted = False
    index = 0
    while index < requests.totals[NUM_RUNNING] and budget > 0:
        slot = requests.running[index]
        computed, placeholders = requests.computed[slot], requests.placeholders[slot]
        last_is_in_flight = placeholders > 0 and (
            computed + 2 - placeholders >= requests.prompt[slot] + requests.output[slot]
        )
        wanted = _known_tokens(requests, slot) + placeholders - computed
        tokens = min(wanted, budget)
        if last_is_in_flight or tokens == 0:
            index += 1
            continue
        if tokens < wanted:
            requests.totals[TOKENS_BOUND] += 1
        fits = _grow(requests, pool, slot, computed + tokens)
        while not fits:
            preempted = True
            if _preempt_last(requests, pool) == slot:
                break
            fits = _grow(requests, pool, slot, computed + tokens)
        if not fits:
            break
        _put(requests, step, slot, tokens, limits.asynchronous)
        budget -= tokens
        index += 1
    if budget == 0 and index < requests.totals[NUM_RUNNING]:
        requests.totals[TOKENS_BOUND] += 1
    return budget, preempted


@kernel
def _find_hits(requests: Requests, pool: BlockPool, slot: int) -> tuple[int, int]:
    """find_longest_cache_hit into the block table: (hit blocks, those of them that are in the free queue).

    The last token is always computed, so that there is something to sample from.
    """
    hits, evictable = 0, 0
    if not pool.caching:
        return hits, evictable
    for index in range((_known_tokens(requests, slot) - 1) // BLOCK):
        block = pool.oldest_copy[requests.contents[slot, index]]
        if block == NONE:
            break
        requests.table[slot, index] = block
        hits += 1
        evictable += pool.references[block] == 0
    return hits, evictable


@kernel
def _admit(requests: Requests, pool: BlockPool, step: Step, slot: int, budget: int, asynchronous: bool) -> int:
    """One waiting request: its tokens in this step, or 0 if its whole sequence does not fit.

    The check of the whole sequence is vLLM's scheduler_reserve_full_isl, on by default.
    """
    hits, evictable = _find_hits(requests, pool, slot)
    known = _known_tokens(requests, slot)
    needed = blocks_of(known) - hits + evictable
    if hits > 0:
        requests.totals[ANY_HIT] = 1
    if evictable > 0:
        requests.totals[FREE_HIT] = 1
    if needed > pool.totals[FREE]:
        requests.totals[BLOCKS_BOUND] += 1
        return 0
    requests.totals[PEAK_BLOCKS] = max(requests.totals[PEAK_BLOCKS], len(pool.references) - pool.totals[FREE] + needed)
    for index in range(hits):
        touch_block(pool, requests.table[slot, index])
    requests.num_blocks[slot] = hits
    requests.num_cached[slot] = hits
    requests.computed[slot] = hits * BLOCK
    tokens = min(known - hits * BLOCK, budget)
    if tokens < known - hits * BLOCK:
        requests.totals[TOKENS_BOUND] += 1
    _grow(requests, pool, slot, hits * BLOCK + tokens)
    if not requests.admitted[slot]:
        requests.totals[HIT_TOKENS] += hits * BLOCK
        requests.totals[QUERIED_TOKENS] += known
        requests.admitted[slot] = True
    requests.status[slot] = RUNNING
    requests.running[requests.totals[NUM_RUNNING]] = slot
    requests.totals[NUM_RUNNING] += 1
    requests.totals[PEAK_RUNNING] = max(requests.totals[PEAK_RUNNING], requests.totals[NUM_RUNNING])
    _put(requests, step, slot, tokens, asynchronous)
    return tokens


@kernel
def _remove(queue: NDArray[np.int64], size: int, index: int) -> None:
    for position in range(index, size - 1):
        queue[position] = queue[position + 1]


@kernel
def schedule(requests: Requests, pool: BlockPool, limits: Limits, step: Step) -> int:
    """Scheduler.schedule: fills `step`, returns its tokens. Running requests first; nobody new after a preemption."""
    step.size[0] = 0
    budget, preempted = _schedule_running(requests, pool, limits, step)
    position = 0
    while not preempted and position < requests.totals[NUM_WAITING] and budget > 0:
        if requests.totals[NUM_RUNNING] >= limits.max_num_seqs:
            requests.totals[SEQS_BOUND] += 1
            break
        slot = requests.waiting[position]
        if requests.stale[slot] > 0:
            # Output of before its preemption is still on the GPU; it resumes when that has been delivered.
            position += 1
            continue
        tokens = _admit(requests, pool, step, slot, budget, limits.asynchronous)
        if tokens == 0:
            break
        _remove(requests.waiting, requests.totals[NUM_WAITING], position)
        requests.totals[NUM_WAITING] -= 1
        budget -= tokens
    if budget == 0 and position < requests.totals[NUM_WAITING]:
        requests.totals[TOKENS_BOUND] += 1
    used = limits.max_num_batched_tokens - budget
    totals = requests.totals
    totals[PEAK_TOKENS] = max(totals[PEAK_TOKENS], used)
    totals[PEAK_BLOCKS] = max(totals[PEAK_BLOCKS], len(pool.references) - pool.totals[FREE])
    return used


@kernel
def _finish(requests: Requests, pool: BlockPool, slot: int) -> None:
    """_free_request: blocks return to the pool; what only this request could ask for can never be hit again."""
    totals = requests.totals
    if requests.status[slot] == PREEMPTED:
        queue, count = requests.waiting, NUM_WAITING
    else:
        queue, count = requests.running, NUM_RUNNING
    for index in range(totals[count]):
        if queue[index] == slot:
            _remove(queue, totals[count], index)
            totals[count] -= 1
            break
    _release(requests, pool, slot)
    if pool.caching:
        for index in range(requests.own_from[slot], blocks_of(_known_tokens(requests, slot))):
            retire_content(pool, requests.contents[slot, index])
    requests.status[slot] = ABSENT


@kernel
def update(
    requests: Requests, pool: BlockPool, step: Step, emitted: NDArray[np.int64], finished: NDArray[np.bool_]
) -> int:
    """update_from_output: fills emitted (slots that got a token, in order) and finished; returns how many."""
    count = 0
    for row in range(step.size[0]):
        slot = step.slot[row]
        requests.in_flight[slot] -= step.tokens[row]
        stale = requests.stale[slot] > 0
        if stale:
            requests.stale[slot] -= step.tokens[row]
        if not step.samples[row]:
            continue
        requests.generated[slot] += 1
        if not stale and requests.placeholders[slot] > 0:
            requests.placeholders[slot] -= 1
            _cache_up_to(requests, pool, slot, requests.computed[slot] - requests.placeholders[slot])
        emitted[count] = slot
        finished[count] = requests.generated[slot] >= requests.output[slot]
        if finished[count]:
            _finish(requests, pool, slot)
        count += 1
    return count
