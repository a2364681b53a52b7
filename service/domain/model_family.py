"""What a family of decoders has in common: what its own class knows and a config.json does not say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.domain.config_section import Assumed

Placement = Literal["every", "after_first", "every_nth", "interleaved", "listed", "ranged"]
Windows = Literal["declared", "alternating", "one_full_in", "chunked"]
Builder = Literal["grouped", "latent", "delta", "kimi_linear", "mamba", "searched", "compressed", "crossing", "gemma4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The keys of a mixture of experts, and in which layers it stands.

    every_nth counts as Qwen does (decoder_sparse_step), interleaved as Llama 4, listed as MiniMax (a 0 or 1 a layer),
    ranged as Ernie (from one layer to another).
    """

    count: str = "num_experts"
    used: str = "num_experts_per_tok"
    intermediate: str = "moe_intermediate_size"
    dense_intermediate: str = "intermediate_size"
    placement: Placement = "every"
    shared_count: str | None = None
    shared_size: str | None = None
    shared_gate: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to read a config of this family. norms: those over the hidden size in each layer; fields of `defaults` and
    `spellings` are as in Section; post_norms_key switches two more norms on; full_every: of `one_full_in` and
    `chunked`, where the config does not say."""

    builder: Builder = "grouped"
    qkv_bias: str = "never"
    output_bias: str = "never"
    mlp_bias: str = "never"
    qk_norm: Literal["none", "head", "projection"] = "none"
    qk_norm_key: str | None = None
    gated: bool = True
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    post_norms_key: str | None = None
    norm_bias: bool = False
    tied: bool = False
    learned_positions: bool = False
    head_bias: str = "never"
    query_gate: Literal["none", "full", "head"] = "none"
    sinks: bool = False
    inner_is_four_hidden: bool = False
    intermediate_divisor: int = 1
    windows: Windows = "declared"
    full_every: int = 0
    scaled_context: bool = True
    experts: Experts | None = None
    selector: bool = False
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Assumed] = field(default_factory=dict)
