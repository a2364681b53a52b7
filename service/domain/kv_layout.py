"""How vLLM lays a model's KV cache out in blocks, and how many of them a sequence takes.

Layers that cache alike share block tables. Where layers differ, vLLM cuts them into groups of one size that draw blocks
of one size from one pool (v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size), so that some of the
memory is padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from service.domain.architecture import Architecture, CacheLayers
from service.domain.memory import KV_BLOCK_TOKENS
from service.domain.scenario import ModelArch

# Async scheduling, which is the default, has two steps in flight.
_STEPS_IN_FLIGHT = 2
# vLLM takes the larger group where the kinds of layer are nearly as many as each other.
_NEARLY = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTables:
    """Tables of one kind. tables: how many; block_tokens: of one block; window: tokens kept, None for all.

    A chunk ends where the next begins, so it needs no block more; a window may begin in the middle of a block.
    """

    tables: int
    block_tokens: int
    window: int | None = None
    is_chunk: bool = False

    def blocks(self, tokens: int, *, in_flight: int) -> int:
        """Of a sequence of so many tokens, of which so many are being computed."""
        if self.window is None:
            return self.tables * _blocks(tokens, self.block_tokens)
        if self.is_chunk:
            return self.tables * _blocks(min(self.window + in_flight, tokens), self.block_tokens)
        return self.tables * (_blocks(min(self.window - 1 + in_flight, tokens), self.block_tokens) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """block_bytes: of one block over the layers of its group. state_bytes: of a sequence, whatever its length."""

    block_bytes: int
    kinds: tuple[BlockTables, ...]
    state_bytes: int = 0

    def blocks_to_start(self, tokens: int, *, batched_tokens: int, prefix_caching: bool) -> int:
        """What vLLM wants to have before it starts: for one sequence of `tokens`, at its largest."""
        blocks = self._state(prefix_caching) if self.state_bytes else 0
        for kind in self.kinds:
            blocks += kind.blocks(tokens, in_flight=_STEPS_IN_FLIGHT * batched_tokens)
        return blocks

    def blocks_held(self, tokens: int, *, prefix_caching: bool) -> int:
        """What a sequence of `tokens` holds while it generates."""
        blocks = self._state(prefix_caching) if self.state_bytes else 0
        for kind in self.kinds:
            whole = kind.tables * _blocks(tokens, kind.block_tokens)
            blocks += whole if kind.window is None else min(kind.blocks(tokens, in_flight=1), whole)
        return blocks

    def blocks_shared(self, tokens: int) -> int:
        """Blocks that a prefix of `tokens` fills, of layers that keep it: sequences have them in common."""
        blocks = 0
        for kind in self.kinds:
            if kind.window is None:
                blocks += kind.tables * (tokens // kind.block_tokens)
        return blocks

    @property
    def is_windowed(self) -> bool:
        """Whether the token budget decides about the blocks of a sequence."""
        return any(kind.window is not None for kind in self.kinds)

    def _state(self, prefix_caching: bool) -> int:
        # With prefix caching the state at the last block's end is kept beside the running one (mamba_cache_mode align).
        return _blocks(self.state_bytes * (2 if prefix_caching else 1), self.block_bytes)


def layout_of(model: ModelArch) -> KvLayout:
    """From its config.json where there is one; else every layer keeps every token."""
    architecture = model.architecture
    if architecture is None or (architecture.kind == "dense" and not architecture.state_bytes):
        return _uniform(model.kv_bytes_per_token)
    return _layout(architecture)


@lru_cache(maxsize=1024)
def _uniform(bytes_per_token: int, *, window: int | None = None, is_chunk: bool = False, state: int = 0) -> KvLayout:
    kind = BlockTables(tables=1, block_tokens=KV_BLOCK_TOKENS, window=window, is_chunk=is_chunk)
    return KvLayout(block_bytes=bytes_per_token * KV_BLOCK_TOKENS, kinds=(kind,), state_bytes=state)


def _layout(architecture: Architecture) -> KvLayout:
    caches, state = architecture.caches, architecture.state_bytes
    rules = {(cache.window, cache.kind == "chunked") for cache in caches}
    if len(rules) == 1:
        window, is_chunk = rules.pop()
        return _uniform(architecture.kv_bytes_per_token, window=window, is_chunk=is_chunk, state=state)
    page = max(_page_bytes(cache) for cache in caches)
    size = _group_size([cache.layers for cache in caches])
    return KvLayout(
        block_bytes=page * size, kinds=tuple(_kind(cache, page, size) for cache in caches), state_bytes=state
    )


def _page_bytes(cache: CacheLayers) -> int:
    """Of one block of one layer."""
    return cache.bytes_per_token() // cache.layers * KV_BLOCK_TOKENS


def _kind(cache: CacheLayers, page_bytes: int, group_size: int) -> BlockTables:
    """Smaller pages hold more tokens where they divide the largest, and are padded where they do not."""
    ratio, rest = divmod(page_bytes, _page_bytes(cache))
    return BlockTables(
        tables=_blocks(cache.layers, group_size),
        block_tokens=KV_BLOCK_TOKENS * (1 if rest else ratio),
        window=cache.window,
        is_chunk=cache.kind == "chunked",
    )


def _group_size(layers: Sequence[int]) -> int:
    least, most = min(layers), max(layers)
    return most if most < least * _NEARLY else least


def _blocks(amount: int, size: int) -> int:
    return -(-amount // size)
