"""KV cache blocks as vLLM 0.28 accounts for them: a free queue, reference counts and prefix caching.

Mirrors vllm/v1/core/block_pool.py and the full-attention manager. A block's content is a small integer in place of a
hash: equal contents get equal integers. Several blocks can hold the same content, since vLLM does not de-duplicate.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from service.domain.memory import KV_BLOCK_TOKENS

BLOCK = KV_BLOCK_TOKENS
NONE = -1
# Content that was cached and can never be asked for again: its request has ended.
RETIRED = -2

FREE, EVICTIONS, LOST = 0, 1, 2


class BlockPool(NamedTuple):
    """[blocks] arrays; the two last entries of the free list are its sentinels. `totals` holds FREE,
    EVICTIONS and LOST, the contents of which the last copy was evicted while somebody could still have asked for it.

    Blocks of equal content are linked in the order in which they were cached: vLLM hands out the oldest.
    """

    references: NDArray[np.int32]
    content: NDArray[np.int64]
    next_free: NDArray[np.int32]
    previous_free: NDArray[np.int32]
    next_copy: NDArray[np.int32]
    previous_copy: NDArray[np.int32]
    oldest_copy: NDArray[np.int32]
    newest_copy: NDArray[np.int32]
    totals: NDArray[np.int64]
    caching: bool


def new_pool(*, blocks: int, contents: int, caching: bool) -> BlockPool:
    """A pool of `blocks` free blocks in ascending order, for content numbers 0 … contents − 1.

    vLLM sets one block aside as the null block, so one fewer can be used.
    """
    usable = max(blocks - 1, 0)
    head, tail = usable, usable + 1
    order = np.concatenate(([head], np.arange(usable), [tail])).astype(np.int32)
    next_free = np.full(usable + 2, NONE, dtype=np.int32)
    previous_free = np.full(usable + 2, NONE, dtype=np.int32)
    next_free[order[:-1]] = order[1:]
    previous_free[order[1:]] = order[:-1]
    empty = np.full(usable, NONE, dtype=np.int32)
    return BlockPool(
        references=np.zeros(usable, dtype=np.int32),
        content=np.full(usable, NONE, dtype=np.int64),
        next_free=next_free,
        previous_free=previous_free,
        next_copy=empty.copy(),
        previous_copy=empty.copy(),
        oldest_copy=np.full(contents, NONE, dtype=np.int32),
        newest_copy=np.full(contents, NONE, dtype=np.int32),
        totals=np.array([usable, 0, 0], dtype=np.int64),
        caching=caching,
    )


@kernel
def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return (tokens + BLOCK - 1) // BLOCK


@kernel
def _unlink_free(pool: BlockPool, block: int) -> None:
    before, after = pool.previous_free[block], pool.next_free[block]
    pool.next_free[before] = after
    pool.previous_free[after] = before
    pool.totals[FREE] -= 1


@kernel
def _insert_free(pool: BlockPool, block: int, before: int) -> None:
    after = pool.next_free[before]
    pool.next_free[before] = block
    pool.previous_free[block] = before
    pool.next_free[block] = after
    pool.previous_free[after] = block
    pool.totals[FREE] += 1


@kernel
def _forget_content(pool: BlockPool, block: int) -> None:
    """_maybe_evict_cached_block: a reused block loses what it cached."""
    content = pool.content[block]
    pool.content[block] = NONE
    if content == NONE:
        return
    pool.totals[EVICTIONS] += 1
    if content == RETIRED:
        return
    before, after = pool.previous_copy[block], pool.next_copy[block]
    if before == NONE:
        pool.oldest_copy[content] = after
    else:
        pool.next_copy[before] = after
    if before == NONE and after == NONE:
        pool.totals[LOST] += 1
    if after == NONE:
        pool.newest_copy[content] = before
    else:
        pool.previous_copy[after] = before


@kernel
def take_block(pool: BlockPool) -> int:
    """get_new_blocks: the block at the front of the free queue, evicted. The caller checked that there is one."""
    head = len(pool.next_free) - 2
    block = pool.next_free[head]
    _unlink_free(pool, block)
    if pool.caching:
        _forget_content(pool, block)
    pool.references[block] = 1
    return block


@kernel
def touch_block(pool: BlockPool, block: int) -> None:
    """A prefix hit: one more reference, and no longer a candidate for eviction."""
    if pool.references[block] == 0:
        _unlink_free(pool, block)
    pool.references[block] += 1


@kernel
def cache_block(pool: BlockPool, block: int, content: int) -> None:
    """cache_full_blocks for one block: it can be hit from now on."""
    if pool.content[block] != NONE:
        return
    pool.content[block] = content
    newest = pool.newest_copy[content]
    pool.previous_copy[block] = newest
    pool.next_copy[block] = NONE
    pool.newest_copy[content] = block
    if newest == NONE:
        pool.oldest_copy[content] = block
    else:
        pool.next_copy[newest] = block


@kernel
def release_blocks(pool: BlockPool, table: NDArray[np.int32], count: int) -> None:
    """free: tail blocks first; cached blocks queue at the end (least recently used), others are reused at once."""
    head, tail = len(pool.next_free) - 2, len(pool.next_free) - 1
    front = head
    for index in range(count - 1, -1, -1):
        block = table[index]
        pool.references[block] -= 1
        if pool.references[block] > 0:
            continue
        if pool.caching and pool.content[block] != NONE:
            _insert_free(pool, block, pool.previous_free[tail])
        else:
            # prepend_n keeps the order of the group that it prepends.
            _insert_free(pool, block, front)
            front = block


@kernel
def retire_content(pool: BlockPool, content: int) -> None:
    """No request will ever ask for this content again, although blocks may hold it until they are reused."""
    block = pool.oldest_copy[content]
    while block != NONE:
        following = pool.next_copy[block]
        pool.content[block] = RETIRED
        pool.next_copy[block] = NONE
        pool.previous_copy[block] = NONE
        block = following
    pool.oldest_copy[content] = NONE
    pool.newest_copy[content] = NONE
