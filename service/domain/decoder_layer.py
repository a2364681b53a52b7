"""The layers of a decoder with grouped attention: what each holds and caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.domain.architecture import CacheKind, CacheLayers
from service.domain.config_section import Section
from service.domain.layer_window import layer_windows
from service.domain.model_family import Experts, Family
from service.domain.weight_module import ExpertLayer, FeedForward, GroupedAttention, Module, norms


class Layer(NamedTuple):
    """One layer's weights, what it caches per token, and the state that it keeps per sequence."""

    modules: Sequence[Module]
    cache: CacheLayers | None = None
    state_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all layers have in common."""

    section: Section
    family: Family
    hidden: int
    layers: int
    context: int

    @property
    def chunked(self) -> bool:
        """Whether windows are chunks that start anew."""
        return self.family.windows == "chunked"


def grouped_layers(frame: Frame) -> list[Layer]:
    """Attention with shared KV heads, full or windowed, and an MLP or experts."""
    section, family = frame.section, frame.family
    _warn_of_selector(section)
    attention = grouped_attention(section, family, frame.hidden)
    windows = layer_windows(section, family, layers=frame.layers, context=frame.context)
    blocks = feed_forwards(section, family, hidden=frame.hidden, layers=frame.layers)
    return [
        Layer(
            [*attention.modules(_attention_name(i)), *blocks[i].modules(_mlp_name(i)), *layer_norms(frame, i)],
            grouped_cache(attention, windows[i], chunked=frame.chunked),
        )
        for i in range(frame.layers)
    ]


def _warn_of_selector(section: Section) -> None:
    """MiniMax-M3's: vllm 0.28 keeps its keys beside the KV cache (models/minimax_m3/common/indexer.py)."""
    part = section.part("sparse_attention_config")
    if part is not None and part.flag("use_sparse_attention", default=True):
        section.notes.warnings.append(
            f"{part.path}: the selector of sparse attention is not counted; its matrices, and in each sparse layer for "
            f"each token a key of {part.size('sparse_index_dim'):,} numbers in 16 bits, come on top"
        )


def grouped_cache(attention: GroupedAttention, window: int | None, *, chunked: bool = False) -> CacheLayers:
    """Key and value of each KV head."""
    kind: CacheKind = "full" if window is None else "chunked" if chunked else "sliding"
    return CacheLayers(kind=kind, layers=1, kv_heads=attention.kv_heads, values=2 * attention.head_dim, window=window)


def layer_norms(frame: Frame, index: int) -> list[Module]:
    """The norms over the hidden size."""
    family = frame.family
    names = family.norms
    if family.post_norms_key is not None and frame.section.flag(family.post_norms_key):
        names = (*names, "post_norm1", "post_norm2")
    return list(norms(f"model.layers.{index}", names, frame.hidden, bias=family.norm_bias))


def _attention_name(index: int) -> str:
    return f"model.layers.{index}.self_attn"


def _mlp_name(index: int) -> str:
    return f"model.layers.{index}.mlp"


def grouped_attention(section: Section, family: Family, hidden: int) -> GroupedAttention:
    """Heads, KV heads and head size, as declared or as the family derives them."""
    heads = section.size("num_attention_heads")
    kv_heads = _kv_heads(section, heads)
    if heads % kv_heads:
        raise section.refusal("num_key_value_heads", f"it must divide num_attention_heads = {heads}", value=kv_heads)
    has_norm = family.qk_norm_key is None or section.flag(family.qk_norm_key)
    return GroupedAttention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(section, hidden, heads),
        qkv_bias=switch(section, family.qkv_bias),
        output_bias=switch(section, family.output_bias),
        qk_norm=family.qk_norm if has_norm else "none",
        gate=family.query_gate,
        sinks=family.sinks,
    )


def _kv_heads(section: Section, heads: int) -> int:
    if section.values.get("multi_query_attention") is False:
        return heads
    if section.raw("num_key_value_heads") is None and section.values.get("model_type") == "gpt_bigcode":
        if section.values.get("multi_query") is None:
            # configuration_gpt_bigcode.py: multi_query = True
            section.assume("multi_query", True)
        return 1 if section.flag("multi_query", default=True) else heads
    if section.raw("num_key_value_heads") is None and "num_key_value_heads" not in section.defaults:
        return heads
    found = section.size("num_key_value_heads")
    if found > heads:
        raise section.refusal("num_key_value_heads", f"give a whole number from 1 to {heads}", value=found)
    return found


def _head_dim(section: Section, hidden: int, heads: int) -> int:
    """The declared head_dim wins (it need not be hidden ÷ heads); only a missing or null one is derived."""
    if section.raw("head_dim") is not None or "head_dim" in section.defaults:
        return section.size("head_dim")
    if hidden % heads:
        raise section.refusal(
            "head_dim", f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, so declare head_dim"
        )
    return hidden // heads


def switch(section: Section, bias: str) -> bool:
    """Whether a bias is there: "never", "always" or the key that says so."""
    return bias == "always" or (bias != "never" and section.flag(bias))


Block = FeedForward | ExpertLayer


def feed_forwards(section: Section, family: Family, *, hidden: int, layers: int) -> list[Block]:
    """An MLP or a mixture of experts for each layer."""
    experts = family.experts
    if experts is None:
        return [dense_block(section, family, hidden)] * layers
    if section.count(experts.count) == 0:
        if section.raw(experts.count) is None and experts.count not in section.values:
            # Its class would start with a number of its own.
            section.size(experts.count)
        return [dense_block(section, family, hidden)] * layers
    sparse = expert_layers(section, experts, layers)
    mixture = expert_block(section, family, experts, hidden)
    if all(sparse):
        return [mixture] * layers
    dense = dense_block(section, family, hidden, key=experts.dense_intermediate)
    return [mixture if is_sparse else dense for is_sparse in sparse]


def dense_block(section: Section, family: Family, hidden: int, *, key: str = "intermediate_size") -> FeedForward:
    """The MLP of a dense layer."""
    if family.inner_is_four_hidden and section.raw(key) is None:
        # n_inner = None means four times the hidden size in GPT-2's class and those that follow it.
        section.assume("n_inner", 4 * hidden)
        inner = 4 * hidden
    else:
        inner = section.size(key)
    if inner % family.intermediate_divisor:
        raise section.refusal(key, f"it must be a multiple of {family.intermediate_divisor}", value=inner)
    return FeedForward(
        hidden=hidden,
        intermediate=inner // family.intermediate_divisor,
        gated=family.gated,
        bias=switch(section, family.mlp_bias),
    )


def expert_block(section: Section, family: Family, experts: Experts, hidden: int) -> ExpertLayer:
    """The mixture of a sparse layer."""
    count = section.size(experts.count)
    per_token = section.size(experts.used)
    if per_token > count:
        raise section.refusal(experts.used, f"there are {count} experts", value=per_token)
    intermediate = section.size(experts.intermediate)
    shared = 0
    if experts.shared_count:
        shared = section.count(experts.shared_count) * intermediate
    elif experts.shared_size:
        shared = section.count(experts.shared_size)
    return ExpertLayer(
        hidden=hidden,
        experts=count,
        per_token=per_token,
        intermediate=intermediate,
        shared=shared,
        shared_gate=experts.shared_gate and shared > 0,
        gated=family.gated,
        bias=experts.bias,
    )


def expert_layers(section: Section, experts: Experts, layers: int) -> list[bool]:
    """For each layer whether it is a mixture."""
    return _PLACEMENTS[experts.placement](section, layers)


def _every(section: Section, layers: int) -> list[bool]:
    return [True] * layers


def _after_first(section: Section, layers: int) -> list[bool]:
    types = section.words("mlp_layer_types", length=layers, known=("dense", "sparse"))
    if types is not None:
        return [kind == "sparse" for kind in types]
    first, every = section.count("first_k_dense_replace"), section.optional("moe_layer_freq") or 1
    return [layer >= first and layer % every == 0 for layer in range(layers)]


def _every_nth(section: Section, layers: int) -> list[bool]:
    dense = section.layer_numbers("mlp_only_layers", layers=layers)
    step = section.optional("decoder_sparse_step") or 1
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def _interleaved(section: Section, layers: int) -> list[bool]:
    named = section.raw("moe_layers")
    if named is not None:
        sparse = section.layer_numbers("moe_layers", layers=layers)
        return [layer in sparse for layer in range(layers)]
    step = section.size("interleave_moe_layer_step")
    return [(layer + 1) % step == 0 for layer in range(layers)]


def _listed(section: Section, layers: int) -> list[bool]:
    listed = section.raw("moe_layer_freq")
    if not isinstance(listed, list) or len(listed) != layers or any(entry not in (0, 1) for entry in listed):
        raise section.refusal("moe_layer_freq", f"give a 0 or a 1 for each of the {layers} layers", value=listed)
    return [bool(entry) for entry in listed]


def _ranged(section: Section, layers: int) -> list[bool]:
    first, every = section.count("moe_layer_start_index"), section.optional("moe_layer_interval") or 1
    # configuration_ernie4_5_moe.py: -1 or nothing is the last layer.
    last = section.values.get("moe_layer_end_index")
    end = layers - 1 if last in (None, -1) else section.count("moe_layer_end_index")
    return [first <= layer <= end and (layer + 1) % every == 0 for layer in range(layers)]


_PLACEMENTS: dict[str, Callable[[Section, int], list[bool]]] = {
    "every": _every,
    "after_first": _after_first,
    "every_nth": _every_nth,
    "interleaved": _interleaved,
    "listed": _listed,
    "ranged": _ranged,
}
