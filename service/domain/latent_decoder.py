"""Decoders with multi-head latent attention: DeepSeek V2 to V4, Kimi, GLM with sparse attention."""

from dataclasses import replace

from service.domain.architecture import CacheLayers
from service.domain.config_section import Section
from service.domain.decoder_layer import Frame, Layer, expert_block, feed_forwards, layer_norms
from service.domain.recurrent_layer import KimiDelta
from service.domain.weight_module import ExpertLayer, LatentAttention, Module, vector

# The selector's keys are kept in 8 bits with a 32-bit scale (vLLM 0.28, sparse_attn_indexer).
_INDEX_SCALE_BYTES = 4


def latent_layers(frame: Frame) -> list[Layer]:
    """Latent attention and, after the first dense layers, experts."""
    section, family = frame.section, frame.family
    attention = _latent_attention(section, frame.hidden, selector=family.selector)
    bare = replace(attention, index_heads=0, index_dim=0)
    blocks = feed_forwards(section, family, hidden=frame.hidden, layers=frame.layers)
    kinds = section.words("indexer_types", length=frame.layers, known=("full", "shared"))
    # A layer of the kind "shared" takes the selection of the one before.
    selects = [family.selector and (kinds is None or kinds[i] == "full") for i in range(frame.layers)]
    if any(selects):
        _warn_of_selector(section, sum(selects), attention.index_dim)
    return [
        Layer(
            [
                *(attention if selects[i] else bare).modules(f"model.layers.{i}.self_attn"),
                *blocks[i].modules(f"model.layers.{i}.mlp"),
                *layer_norms(frame, i),
            ],
            _latent_cache(attention),
        )
        for i in range(frame.layers)
    ]


def _latent_attention(section: Section, hidden: int, *, selector: bool = False) -> LatentAttention:
    return LatentAttention(
        hidden=hidden,
        heads=section.size("num_attention_heads"),
        q_rank=section.optional("q_lora_rank"),
        kv_rank=section.size("kv_lora_rank"),
        rope_dim=section.size("qk_rope_head_dim"),
        nope_dim=section.size("qk_nope_head_dim"),
        value_dim=section.size("v_head_dim"),
        index_heads=section.size("index_n_heads") if selector else 0,
        index_dim=section.size("index_head_dim") if selector else 0,
        output_gate=section.flag("mla_use_output_gate"),
    )


def _latent_cache(attention: LatentAttention) -> CacheLayers:
    return CacheLayers(kind="latent", layers=1, kv_heads=1, values=attention.kv_rank + attention.rope_dim)


def _warn_of_selector(section: Section, layers: int, index_dim: int) -> None:
    extra = layers * (index_dim + _INDEX_SCALE_BYTES)
    section.notes.warnings.append(
        f"sparse attention keeps {extra:,} more bytes per token ({layers} layers · ({index_dim} + 4)) for its "
        "selector; they are not in the KV figures"
    )


def kimi_linear_layers(frame: Frame) -> list[Layer]:
    """Kimi Delta Attention, with latent attention in the layers that linear_attn_config names (counted from 1)."""
    section, family, experts = frame.section, frame.family, frame.family.experts
    linear = section.part("linear_attn_config")
    if linear is None:
        raise section.refusal("linear_attn_config", "the config must say which layers are linear; add it")
    full = linear.layer_numbers("full_attn_layers", layers=frame.layers, first=1)
    delta = KimiDelta(
        hidden=frame.hidden,
        heads=linear.size("num_heads"),
        head_dim=linear.size("head_dim"),
        kernel=linear.size("short_conv_kernel_size"),
        full_gate=linear.flag("use_full_rank_gate"),
    )
    attention = _latent_attention(section, frame.hidden)
    blocks = feed_forwards(section, family, hidden=frame.hidden, layers=frame.layers)
    latent = section.optional("routed_expert_hidden_size")
    if latent is not None and experts is not None:
        wide = replace(
            expert_block(section, family, experts, frame.hidden),
            latent=latent, latent_norm=section.flag("latent_moe_use_norm"),
        )  # fmt: skip
        blocks = [wide if isinstance(block, ExpertLayer) else block for block in blocks]
    residual = 4 * frame.hidden if section.optional("attn_res_block_size") else 0
    layers = []
    for i in range(frame.layers):
        name = f"model.layers.{i}.self_attn"
        modules: list[Module] = [*blocks[i].modules(f"model.layers.{i}.mlp"), *layer_norms(frame, i)]
        if residual:
            # Attention residuals: two norms and two weighings of the hidden size.
            modules.append(vector("norms", f"model.layers.{i}.res", residual))
        if i in full:
            layers.append(Layer([*attention.modules(name), *modules], _latent_cache(attention)))
        else:
            layers.append(Layer([*delta.modules(name), *modules], None, delta.state_bytes))
    return layers


def compressed_layers(frame: Frame) -> list[Layer]:
    """DeepSeek V4: a window of latents in every layer, and beyond it one latent for every few tokens."""
    section, family, hidden = frame.section, frame.family, frame.hidden
    heads, dim = section.size("num_attention_heads"), section.size("head_dim")
    ratios = _ratios(section, frame.layers)
    window = section.size("sliding_window")
    blocks = feed_forwards(section, family, hidden=hidden, layers=frame.layers)
    section.notes.warnings.append(
        "compressed attention: the KV figures count 16-bit latents of the window and of the compressed tokens; the "
        "engine's own layout and its selector differ, so they are an estimate"
    )
    layers = []
    for i, ratio in enumerate(ratios):
        name = f"model.layers.{i}.self_attn"
        modules = [*_compressed_attention(section, name, hidden, heads, dim), *layer_norms(frame, i)]
        modules += blocks[i].modules(f"model.layers.{i}.mlp")
        modules += _hyper_connections(section, f"model.layers.{i}", hidden)
        layers.append(
            Layer(modules, CacheLayers(kind="latent", layers=1, kv_heads=1, values=dim, window=min(window, 10**9)))
        )
        if ratio:
            # A layer's second cache is a layer of its own here.
            layers.append(
                Layer(
                    _compressor(section, name, hidden, dim, ratio),
                    CacheLayers(kind="latent", layers=1, kv_heads=1, values=-(-dim // ratio)),
                )
            )
    return layers


def _ratios(section: Section, layers: int) -> list[int]:
    """One per layer; those of the prediction layers stand behind them."""
    listed = section.raw("compress_ratios")
    if not isinstance(listed, list) or len(listed) < layers:
        raise section.refusal("compress_ratios", f"give a ratio for each of the {layers} layers", value=listed)
    for index, ratio in enumerate(listed[:layers]):
        # The engine's compressor knows no others.
        if isinstance(ratio, bool) or ratio not in (0, 4, 128):
            raise section.refusal(f"compress_ratios[{index}]", "give 0, 4 or 128", value=ratio)
    return listed[:layers]


def _compressed_attention(section: Section, name: str, hidden: int, heads: int, dim: int) -> list[Module]:
    q_rank, o_rank, groups = section.size("q_lora_rank"), section.size("o_lora_rank"), section.size("o_groups")
    return [
        Module("attention", f"{name}.q_a_proj", q_rank, hidden),
        Module("attention", f"{name}.q_b_proj", heads * dim, q_rank),
        Module("attention", f"{name}.kv_proj", dim, hidden),
        Module("attention", f"{name}.o_a_proj", o_rank, heads * dim),
        Module("attention", f"{name}.o_b_proj", hidden, groups * o_rank),
        vector("attention", f"{name}.sinks", heads),
        vector("norms", f"{name}.norms", q_rank + dim),
    ]


def _compressor(section: Section, name: str, hidden: int, dim: int, ratio: int) -> list[Module]:
    # Windows of the compressor overlap at the ratio 4, so it keeps two sets.
    sets = 2 if ratio == 4 else 1
    modules = [
        Module("attention", f"{name}.compressor.kv_proj", sets * dim, hidden),
        Module("attention", f"{name}.compressor.gate_proj", sets * dim, hidden),
        vector("attention", f"{name}.compressor.position_bias", ratio * sets * dim),
        vector("norms", f"{name}.compressor.kv_norm", dim),
    ]
    if ratio == 4:
        index_dim, index_heads = section.size("index_head_dim"), section.size("index_n_heads")
        modules += [
            Module("attention", f"{name}.indexer.kv_proj", sets * index_dim, hidden),
            Module("attention", f"{name}.indexer.gate_proj", sets * index_dim, hidden),
            Module("attention", f"{name}.indexer.q_b_proj", index_heads * index_dim, section.size("q_lora_rank")),
            Module("attention", f"{name}.indexer.weights_proj", index_heads, hidden),
            vector("attention", f"{name}.indexer.position_bias", ratio * sets * index_dim),
            vector("norms", f"{name}.indexer.kv_norm", index_dim),
        ]
    return modules


def _hyper_connections(section: Section, name: str, hidden: int) -> list[Module]:
    """Several residual streams, mixed around attention and around the experts."""
    streams = section.optional("hc_mult")
    if streams is None:
        return []
    mixes = (2 + streams) * streams
    return [vector("norms", f"{name}.hc", 2 * (mixes * streams * hidden + mixes + 3))]
