"""What a config.json says about memory: weights, the KV cache of each kind of layer, and the formulas behind both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.domain.weight_module import Module

# The engine keeps keys and values in 16 bits whatever the weights are stored in, unless it is told otherwise.
KV_ELEMENT_BYTES = 2

Kind = Literal["dense", "moe", "mla", "sliding", "hybrid"]
CacheKind = Literal["full", "sliding", "chunked", "latent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayers:
    """Layers that cache alike. values: numbers kept per token and KV head; window: tokens kept, None for all.

    A latent cache is one vector for key and value together and is the same on every rank.
    """

    kind: CacheKind
    layers: int
    kv_heads: int
    values: int
    window: int | None = None

    def bytes_per_token(self, *, tensor_parallel: int = 1) -> int:
        """Of all these layers, on one rank: a KV head is shared by ranks rather than cut."""
        heads = self.kv_heads if self.kind == "latent" else max(1, self.kv_heads // tensor_parallel)
        return self.layers * heads * self.values * KV_ELEMENT_BYTES

    def bytes_at(self, tokens: int, *, tensor_parallel: int = 1) -> int:
        """Of a sequence of so many tokens; a window keeps no more than it is long."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return kept * self.bytes_per_token(tensor_parallel=tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The reading of one config.json.

    kind is the trait that matters most, traits are all of them. parameters: loaded weights, tied embeddings once;
    active_parameters: those that one token passes. state_bytes: what recurrent layers keep per sequence, whatever its
    length; 0 where there are none. assumed: dimensions that the family's class fills in where the config is silent.
    weights: numbers and bytes by format. adapter: what is served on top, in words, its room being part of weight_bytes;
    adapter_args: the engine's arguments that make that room.
    """

    kind: Kind
    traits: tuple[Kind, ...]
    family: str
    num_layers: int
    hidden_size: int
    parameters: int
    active_parameters: int
    weight_bytes: int
    quantisation: str | None
    caches: tuple[CacheLayers, ...]
    state_bytes: int
    max_context: int
    warnings: tuple[str, ...]
    assumed: tuple[tuple[str, str | int | bool], ...]
    modules: tuple[Module, ...] = field(repr=False, compare=False)
    weights: Mapping[str, tuple[int, int]] = field(repr=False, compare=False)
    adapter: str | None = None
    adapter_args: tuple[tuple[str, int | bool], ...] = ()

    @property
    def kv_bytes_per_token(self) -> int:
        """Every layer full: what each token costs until the first window is full."""
        return self.kv_bytes_per_token_per_rank(1)

    def kv_bytes_per_token_per_rank(self, tensor_parallel: int) -> int:
        """On one of so many ranks that share each layer."""
        return sum(cache.bytes_per_token(tensor_parallel=tensor_parallel) for cache in self.caches)

    def kv_bytes_at(self, tokens: int, *, tensor_parallel: int = 1) -> int:
        """KV cache of a sequence of so many tokens, windows taken into account; without the recurrent state."""
        return sum(cache.bytes_at(tokens, tensor_parallel=tensor_parallel) for cache in self.caches)
