"""Layers that keep a state of fixed size per sequence instead of a cache that grows: weights and state of each kind."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.domain.weight_module import Module, vector

# The convolution's last inputs are kept in the model's 16 bits.
_CONV_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention of Qwen3-Next and Qwen3.5. state_element_bytes: of the recurrent matrix."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_element_bytes: int

    @property
    def _channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def modules(self, name: str) -> Iterator[Module]:
        """Projections, a short convolution, one decay and one step a value head."""
        values = self.value_heads * self.value_dim
        yield Module("recurrent layers", f"{name}.in_proj_qkv", self._channels, self.hidden)
        yield Module("recurrent layers", f"{name}.in_proj_z", values, self.hidden)
        yield Module("recurrent layers", f"{name}.in_proj_ba", 2 * self.value_heads, self.hidden)
        yield Module("recurrent layers", f"{name}.out_proj", self.hidden, values)
        yield vector("recurrent layers", f"{name}.conv1d", self._channels * self.kernel)
        yield vector("recurrent layers", f"{name}.dt_bias", 2 * self.value_heads)
        yield vector("norms", f"{name}.norm", self.value_dim)

    @property
    def state_bytes(self) -> int:
        """(kernel − 1) inputs of the convolution, and a matrix a value head."""
        matrices = self.value_heads * self.key_dim * self.value_dim
        return self._channels * (self.kernel - 1) * _CONV_BYTES + matrices * self.state_element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv 2510.26692). full_gate: one matrix for the output gate, not two thin ones."""

    hidden: int
    heads: int
    head_dim: int
    kernel: int
    full_gate: bool

    def modules(self, name: str) -> Iterator[Module]:
        """q, k, v with a convolution each, decay, step and output gate."""
        wide = self.heads * self.head_dim
        for proj in ("q_proj", "k_proj", "v_proj"):
            yield Module("recurrent layers", f"{name}.{proj}", wide, self.hidden)
        yield vector("recurrent layers", f"{name}.conv1d", 3 * wide * self.kernel)
        yield Module("recurrent layers", f"{name}.f_a_proj", self.head_dim, self.hidden)
        yield Module("recurrent layers", f"{name}.f_b_proj", wide, self.head_dim)
        yield Module("recurrent layers", f"{name}.b_proj", self.heads, self.hidden)
        if self.full_gate:
            yield Module("recurrent layers", f"{name}.g_proj", wide, self.hidden)
        else:
            yield Module("recurrent layers", f"{name}.g_a_proj", self.head_dim, self.hidden)
            yield Module("recurrent layers", f"{name}.g_b_proj", wide, self.head_dim)
        yield Module("recurrent layers", f"{name}.o_proj", self.hidden, wide)
        yield vector("recurrent layers", f"{name}.dt_bias", wide + self.heads)
        yield vector("norms", f"{name}.o_norm", self.head_dim)

    @property
    def state_bytes(self) -> int:
        """The engine keeps this layer's recurrent matrices in 32 bits whatever else is set (kda_state_dtype)."""
        wide = self.heads * self.head_dim
        return 3 * wide * (self.kernel - 1) * _CONV_BYTES + self.heads * self.head_dim**2 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State-space layer of Nemotron-H. state_element_bytes: of the state."""

    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    state_element_bytes: int

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _channels(self) -> int:
        return self._inner + 2 * self.groups * self.state

    def modules(self, name: str) -> Iterator[Module]:
        """One projection in, a short convolution, the state's parameters, one projection out."""
        yield Module("recurrent layers", f"{name}.in_proj", self._inner + self._channels + self.heads, self.hidden)
        yield Module("recurrent layers", f"{name}.out_proj", self.hidden, self._inner)
        yield vector("recurrent layers", f"{name}.conv1d", self._channels * (self.kernel + self.conv_bias))
        yield vector("recurrent layers", f"{name}.A_log", 3 * self.heads)
        yield vector("norms", f"{name}.norm", self._inner)

    @property
    def state_bytes(self) -> int:
        """(kernel − 1) inputs of the convolution, and heads · head_dim · state."""
        held = self.heads * self.head_dim * self.state
        return self._channels * (self.kernel - 1) * _CONV_BYTES + held * self.state_element_bytes
