"""Decoders whose layers differ in heads: Gemma 4, Llama with cross-attention, and searched architectures (NAS)."""

from collections.abc import Mapping
from dataclasses import replace

from service.domain.architecture import CacheLayers
from service.domain.config_section import Section
from service.domain.decoder_layer import (
    Frame,
    Layer,
    dense_block,
    expert_block,
    grouped_attention,
    grouped_cache,
    layer_norms,
)
from service.domain.layer_window import layer_windows
from service.domain.weight_module import FeedForward, GroupedAttention, Module, vector

_FFN_MULTIPLE = 256


def gemma4_layers(frame: Frame) -> list[Layer]:
    """Full layers with heads of their own, whose values are the keys; experts beside the MLP, not instead of it."""
    section, family, hidden = frame.section, frame.family, frame.hidden
    if section.count("hidden_size_per_layer_input"):
        raise section.refusal(
            "hidden_size_per_layer_input",
            "embeddings of each layer cannot be sized yet; give the four numbers instead",
            value=section.raw("hidden_size_per_layer_input"),
        )
    sliding = grouped_attention(section, family, hidden)
    shares = section.flag("attention_k_eq_v")
    full = replace(
        sliding,
        head_dim=section.optional("global_head_dim") or sliding.head_dim,
        kv_heads=(section.optional("num_global_key_value_heads") if shares else None) or sliding.kv_heads,
        shares_kv=shares,
    )
    windows = layer_windows(section, family, layers=frame.layers, context=frame.context)
    own = frame.layers - section.count("num_kv_shared_layers")
    mlp = dense_block(section, family, hidden)
    moe = section.flag("enable_moe_block") and family.experts
    layers = []
    for i, window in enumerate(windows):
        name = f"model.layers.{i}"
        attention = full if window is None else sliding
        modules = [*attention.modules(f"{name}.self_attn"), *mlp.modules(f"{name}.mlp"), *layer_norms(frame, i)]
        if moe:
            mixture = expert_block(section, family, moe, hidden)
            modules += mixture.modules(name)
            # Three norms around the experts, a scale of the router's input, and one for each expert.
            modules.append(vector("norms", f"{name}.moe_norms", 4 * hidden + mixture.experts))
        layers.append(Layer(modules, grouped_cache(attention, window) if i < own else None))
    return layers


def cross_attention_layers(frame: Frame) -> list[Layer]:
    """Llama 3.2 Vision: the layers of cross_attention_layers look at the image instead of the text."""
    section, hidden = frame.section, frame.hidden
    attention = grouped_attention(section, frame.family, hidden)
    crossing = section.layer_numbers("cross_attention_layers", layers=frame.layers)
    if crossing:
        section.notes.warnings.append(
            f"{len(crossing)} cross-attention layers cache the image's tokens, not the text's; they are counted as "
            "if they cached every token"
        )
    mlp = dense_block(section, frame.family, hidden)
    layers = []
    for i in range(frame.layers):
        name = f"model.layers.{i}"
        crosses = replace(attention, qk_norm="head")
        modules = [*(crosses if i in crossing else attention).modules(f"{name}.self_attn"), *mlp.modules(f"{name}.mlp")]
        modules += layer_norms(frame, i)
        if i in crossing:
            modules.append(vector("norms", f"{name}.gates", 2))
        layers.append(Layer(modules, grouped_cache(attention, None)))
    return layers


def searched_layers(frame: Frame) -> list[Layer]:
    """Nemotron NAS (DeciLM): block_configs says for each layer what is left of attention and of the MLP."""
    section = frame.section
    blocks = section.raw("block_configs")
    if not isinstance(blocks, list) or len(blocks) != frame.layers:
        raise section.refusal("block_configs", f"give a block for each of the {frame.layers} layers", value=blocks)
    heads = section.size("num_attention_heads")
    return [_searched(frame, i, block, heads) for i, block in enumerate(blocks)]


def _searched(frame: Frame, index: int, block: object, heads: int) -> Layer:
    section, hidden, name = frame.section, frame.hidden, f"model.layers.{index}"
    path = section.path_of(f"block_configs[{index}]")
    if not isinstance(block, Mapping):
        raise section.refusal(f"block_configs[{index}]", "give an object", value=block)
    parts = Section(values=block, path=path, notes=section.notes)
    attention, ffn = parts.part("attention"), parts.part("ffn")
    if attention is None or ffn is None:
        raise section.refusal(f"block_configs[{index}]", "it must hold attention and ffn", value=block)
    modules: list[Module] = []
    cache: CacheLayers | None = None
    if attention.flag("replace_with_linear"):
        modules.append(Module("attention", f"{name}.self_attn.linear_attn", hidden, hidden))
    elif not attention.flag("no_op"):
        group = attention.size("n_heads_in_group")
        if heads % group or hidden % heads:
            raise attention.refusal("n_heads_in_group", f"it must divide num_attention_heads = {heads}", value=group)
        grouped = GroupedAttention(hidden=hidden, heads=heads, kv_heads=heads // group, head_dim=hidden // heads)
        modules += grouped.modules(f"{name}.self_attn")
        cache = grouped_cache(grouped, None)
    if ffn.flag("replace_with_linear"):
        modules.append(Module("MLP", f"{name}.mlp.linear_mlp", hidden, hidden))
    elif not ffn.flag("no_op"):
        modules += FeedForward(hidden=hidden, intermediate=_ffn_size(ffn, hidden)).modules(f"{name}.mlp")
    return Layer([*modules, *layer_norms(frame, index)], cache)


def _ffn_size(ffn: Section, hidden: int) -> int:
    """modeling_decilm.py: two thirds of mult · hidden, rounded up to a multiple of 256."""
    mult = ffn.raw("ffn_mult")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult <= 100:
        raise ffn.refusal("ffn_mult", "give a number from 0 to 100", value=mult)
    return -(-int(2 * mult * hidden / 3) // _FFN_MULTIPLE) * _FFN_MULTIPLE
