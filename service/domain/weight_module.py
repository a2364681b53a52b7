"""The weight matrices of a decoder by name: what a layer is made of, as far as it decides memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Part = Literal[
    "embedding", "attention", "recurrent layers", "MLP", "experts", "shared experts", "router", "norms", "head",
    "image encoder",
]  # fmt: skip


class Module(NamedTuple):
    """A matrix of rows x cols, `copies` times; one token passes `used` of them. vector: it is never quantised."""

    part: Part
    name: str
    rows: int
    cols: int
    copies: int = 1
    used: int = 1
    vector: bool = False

    @property
    def elements(self) -> int:
        """Numbers in all copies."""
        return self.rows * self.cols * self.copies

    @property
    def used_elements(self) -> int:
        """Numbers that one token passes."""
        return self.rows * self.cols * self.used


def matrix(part: Part, name: str, rows: int, cols: int, *, bias: bool = False) -> Iterator[Module]:
    """A linear layer from cols to rows, with a bias of rows if it has one."""
    yield Module(part, name, rows, cols)
    if bias:
        yield vector(part, f"{name}.bias", rows)


def vector(part: Part, name: str, size: int) -> Module:
    """A norm, a bias or another parameter that stays in 16 bits."""
    return Module(part, name, 1, size, vector=True)


def norms(layer: str, names: Iterable[str], hidden: int, *, bias: bool) -> Iterator[Module]:
    """Norms over the hidden size; a bias doubles each."""
    for name in names:
        yield vector("norms", f"{layer}.{name}", hidden)
        if bias:
            yield vector("norms", f"{layer}.{name}.bias", hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Attention whose query heads share KV heads. qk_norm: over nothing, each head, or the whole projection.

    gate: an output gate as wide as the query projection, or one number a head. shares_kv: values are the keys.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "projection"] = "none"
    gate: Literal["none", "full", "head"] = "none"
    sinks: bool = False
    shares_kv: bool = False

    def modules(self, name: str) -> Iterator[Module]:
        """q, k, v, o and what goes with them."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = 2 * q if self.gate == "full" else q
        yield from matrix("attention", f"{name}.q_proj", rows, self.hidden, bias=self.qkv_bias)
        yield from matrix("attention", f"{name}.k_proj", kv, self.hidden, bias=self.qkv_bias)
        if not self.shares_kv:
            yield from matrix("attention", f"{name}.v_proj", kv, self.hidden, bias=self.qkv_bias)
        yield from matrix("attention", f"{name}.o_proj", self.hidden, q, bias=self.output_bias)
        if self.gate == "head":
            yield Module("attention", f"{name}.g_proj", self.heads, self.hidden)
        if self.sinks:
            yield vector("attention", f"{name}.sinks", self.heads)
        if self.qk_norm != "none":
            whole = self.qk_norm == "projection"
            yield vector("norms", f"{name}.q_norm", q if whole else self.head_dim)
            yield vector("norms", f"{name}.k_norm", kv if whole else self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """gated: gate, up and down, as in SwiGLU; otherwise up and down."""

    hidden: int
    intermediate: int
    gated: bool = True
    bias: bool = False

    def modules(self, name: str, part: Part = "MLP") -> Iterator[Module]:
        """The matrices of one of them."""
        for proj in ("gate_proj", "up_proj") if self.gated else ("up_proj",):
            yield from matrix(part, f"{name}.{proj}", self.intermediate, self.hidden, bias=self.bias)
        yield from matrix(part, f"{name}.down_proj", self.hidden, self.intermediate, bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """Routed experts of which a token passes a few, and shared ones that it always passes.

    latent: the width that routed experts work in where it is not the hidden size. shared: intermediate size, 0 if none.
    """

    hidden: int
    experts: int
    per_token: int
    intermediate: int
    shared: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    latent: int | None = None
    latent_norm: bool = False

    def modules(self, name: str) -> Iterator[Module]:
        """Router, routed and shared experts of one layer."""
        yield from matrix("router", f"{name}.gate", self.experts, self.hidden, bias=self.bias)
        width = self.latent or self.hidden
        one = FeedForward(hidden=width, intermediate=self.intermediate, gated=self.gated, bias=self.bias)
        for module in one.modules(f"{name}.experts", "experts"):
            yield module._replace(copies=self.experts, used=self.per_token)
        if self.latent:
            yield Module("experts", f"{name}.latent_down_proj", self.latent, self.hidden)
            yield Module("experts", f"{name}.latent_up_proj", self.hidden, self.latent)
        if self.latent_norm and self.latent:
            yield vector("norms", f"{name}.latent_norm", self.latent)
        if self.shared:
            always = FeedForward(hidden=self.hidden, intermediate=self.shared, gated=self.gated, bias=self.bias)
            yield from always.modules(f"{name}.shared_experts", "shared experts")
        if self.shared_gate:
            yield Module("router", f"{name}.shared_expert_gate", 1, self.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are rebuilt from one cached vector (DeepSeek-V2, arXiv 2405.04434).

    q_rank None: queries are not compressed. index_heads, index_dim: the selector of sparse attention (DeepSeek-V3.2).
    """

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    output_gate: bool = False

    def modules(self, name: str) -> Iterator[Module]:
        """Compressions, expansions, output, and the selector where there is one."""
        q_out = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            yield Module("attention", f"{name}.q_proj", q_out, self.hidden)
        else:
            yield Module("attention", f"{name}.q_a_proj", self.q_rank, self.hidden)
            yield Module("attention", f"{name}.q_b_proj", q_out, self.q_rank)
            yield vector("norms", f"{name}.q_a_layernorm", self.q_rank)
        yield Module("attention", f"{name}.kv_a_proj_with_mqa", self.kv_rank + self.rope_dim, self.hidden)
        yield vector("norms", f"{name}.kv_a_layernorm", self.kv_rank)
        yield Module("attention", f"{name}.kv_b_proj", self.heads * (self.nope_dim + self.value_dim), self.kv_rank)
        yield Module("attention", f"{name}.o_proj", self.hidden, self.heads * self.value_dim)
        if self.output_gate:
            yield Module("attention", f"{name}.g_proj", self.heads * self.value_dim, self.hidden)
        if self.index_heads:
            source = self.q_rank or self.hidden
            yield Module("attention", f"{name}.indexer.wq_b", self.index_heads * self.index_dim, source)
            yield Module("attention", f"{name}.indexer.wk", self.index_dim, self.hidden)
            yield Module("attention", f"{name}.indexer.weights_proj", self.index_heads, self.hidden)
            yield vector("norms", f"{name}.indexer.k_norm", 2 * self.index_dim)
