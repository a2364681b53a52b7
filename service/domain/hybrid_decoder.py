"""Decoders that mix attention with recurrent layers: Qwen3-Next, Qwen3.5, Nemotron-H."""

from dataclasses import replace

from service.domain.config_section import Section
from service.domain.decoder_layer import (
    Frame,
    Layer,
    dense_block,
    expert_block,
    feed_forwards,
    grouped_attention,
    grouped_cache,
    layer_norms,
)
from service.domain.recurrent_layer import GatedDeltaNet, Mamba2
from service.domain.weight_module import ExpertLayer, FeedForward, GroupedAttention, Module

_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_BLOCK_NAMES = {"linear_attention": "mamba", "full_attention": "attention", **{name: name for name in _BLOCKS.values()}}


def delta_layers(frame: Frame) -> list[Layer]:
    """Gated delta nets with attention in between, whose query projection also yields an output gate."""
    section, family = frame.section, frame.family
    gated = section.flag("attn_output_gate", default=True)
    attention = replace(grouped_attention(section, family, frame.hidden), gate="full" if gated else "none")
    delta = GatedDeltaNet(
        hidden=frame.hidden,
        key_heads=section.size("linear_num_key_heads"),
        value_heads=section.size("linear_num_value_heads"),
        key_dim=section.size("linear_key_head_dim"),
        value_dim=section.size("linear_value_head_dim"),
        kernel=section.size("linear_conv_kernel_dim"),
        state_element_bytes=_state_element_bytes(section, "mamba_ssm_dtype"),
    )
    blocks = feed_forwards(section, family, hidden=frame.hidden, layers=frame.layers)
    linear = _linear(section, frame.layers)
    layers = []
    for i in range(frame.layers):
        name = f"model.layers.{i}"
        rest: list[Module] = [*blocks[i].modules(f"{name}.mlp"), *layer_norms(frame, i)]
        if linear[i]:
            layers.append(Layer([*delta.modules(f"{name}.linear_attn"), *rest], None, delta.state_bytes))
        else:
            layers.append(Layer([*attention.modules(f"{name}.self_attn"), *rest], grouped_cache(attention, None)))
    return layers


def _linear(section: Section, layers: int) -> list[bool]:
    kinds = section.words("layer_types", length=layers, known=("linear_attention", "full_attention"))
    if kinds is not None:
        return [kind == "linear_attention" for kind in kinds]
    every = section.size("full_attention_interval")
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _state_element_bytes(section: Section, key: str) -> int:
    """What the config asks the engine to keep the state in; without a word it is the model's own 16 bits."""
    return 4 if section.text(key) == "float32" else 2


def mamba_blocks(section: Section) -> list[str]:
    """What each layer of Nemotron-H is: a list of words, or a pattern of letters."""
    key = next((name for name in ("layers_block_type", "layer_types") if section.values.get(name) is not None), None)
    if key is not None:
        listed = section.values[key]
        length = len(listed) if isinstance(listed, list) else 0
        words = section.words(key, length=max(1, length), known=tuple(_BLOCK_NAMES))
        return [_BLOCK_NAMES[word] for word in words or []]
    pattern = section.text("hybrid_override_pattern")
    if pattern is None:
        raise section.refusal("layers_block_type", "the config must say what each layer is; add it")
    unknown = next((letter for letter in pattern if letter not in _BLOCKS), None)
    if unknown is not None or not pattern:
        raise section.refusal("hybrid_override_pattern", f"known letters are {' '.join(_BLOCKS)}", value=pattern)
    return [_BLOCKS[letter] for letter in pattern]


def mamba_layers(frame: Frame) -> list[Layer]:
    """Nemotron-H: each layer is one of a state-space layer, attention, experts or an MLP."""
    section, family = frame.section, frame.family
    blocks = mamba_blocks(section)
    if len(blocks) != frame.layers:
        raise section.refusal(
            "num_hidden_layers", f"the layers that are listed are {len(blocks)}; make them agree", value=frame.layers
        )
    made = {kind: _block(frame, kind) for kind in dict.fromkeys(blocks)}
    layers = []
    for i, kind in enumerate(blocks):
        modules = [*made[kind].modules(f"model.layers.{i}.mixer"), *layer_norms(frame, i)]
        found = made[kind]
        if isinstance(found, Mamba2):
            layers.append(Layer(modules, None, found.state_bytes))
        elif kind == "attention":
            layers.append(Layer(modules, grouped_cache(grouped_attention(section, family, frame.hidden), None)))
        else:
            layers.append(Layer(modules))
    return layers


def _block(frame: Frame, kind: str) -> Mamba2 | GroupedAttention | FeedForward | ExpertLayer:
    section, family = frame.section, frame.family
    if kind == "mamba":
        return Mamba2(
            hidden=frame.hidden,
            heads=section.size("mamba_num_heads"),
            head_dim=section.size("mamba_head_dim"),
            groups=section.size("n_groups"),
            state=section.size("ssm_state_size"),
            kernel=section.size("conv_kernel"),
            conv_bias=section.flag("use_conv_bias", default=True),
            state_element_bytes=_state_element_bytes(section, "mamba_ssm_cache_dtype"),
        )
    if kind == "attention":
        return grouped_attention(section, family, frame.hidden)
    if kind == "mlp":
        return dense_block(section, family, frame.hidden)
    if family.experts is None:
        raise ValueError(f"a family of builder {family.builder!r} describes its experts")
    block = expert_block(section, family, family.experts, frame.hidden)
    return replace(block, latent=section.optional("moe_latent_size"))
