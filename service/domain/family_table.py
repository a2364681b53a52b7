"""The families that are read, by model_type.

A bias is "never", "always" or the key that switches it on. Sources: transformers 5.24, models/<family>/modeling_*.py
and configuration_*.py; for what is in no library, the modeling code in the model's own repository.
"""

from service.domain.model_family import Experts, Family

_GPT2_SPELLINGS = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("n_head_kv",),
    "intermediate_size": ("n_inner",),
}
_FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_ROUTED = Experts(count="n_routed_experts", placement="after_first", shared_count="n_shared_experts")

_LLAMA = Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_PLAIN = Family()
_QWEN2 = Family(qkv_bias="always")
_QWEN3 = Family(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head")
_QWEN3_MOE = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head", experts=Experts(placement="every_nth")
)
_GPT2 = Family(
    qkv_bias="always", output_bias="always", mlp_bias="always", gated=False, norm_bias=True, tied=True,
    learned_positions=True, inner_is_four_hidden=True, spellings=_GPT2_SPELLINGS,
)  # fmt: skip
_PHI = Family(
    qkv_bias="always", output_bias="always", mlp_bias="always", gated=False, norms=("input_layernorm",),
    norm_bias=True, head_bias="always", inner_is_four_hidden=True, spellings=_GPT2_SPELLINGS,
)  # fmt: skip
_GEMMA2 = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", norms=_FOUR_NORMS, tied=True, windows="alternating",
    defaults={"head_dim": 256, "sliding_window": 4096},
)  # fmt: skip
# A published config.json of Gemma 3 leaves out what equals its class's default, heads and vocabulary included.
_GEMMA3 = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", norms=_FOUR_NORMS, qk_norm="head", tied=True,
    windows="one_full_in", full_every=6, scaled_context=False,
    defaults={
        "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
        "max_position_embeddings": 131_072, "sliding_window": 4096,
    },
)  # fmt: skip
_DEEPSEEK = Family(builder="latent", experts=_ROUTED)
_SPARSE_DEEPSEEK = Family(builder="latent", experts=_ROUTED, selector=True)
_DEEPSEEK_V4 = Family(builder="compressed", experts=_ROUTED)
_QWEN3_5 = Family(builder="delta", qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head")
_QWEN3_NEXT = Family(
    builder="delta", qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head",
    experts=Experts(placement="every_nth", shared_size="shared_expert_intermediate_size", shared_gate=True),
)  # fmt: skip
_COHERE = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", norms=("input_layernorm",), tied=True,
    qk_norm="head", qk_norm_key="use_qk_norm",
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "ministral3": _PLAIN,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "phi3": _PLAIN,
    "olmo2": Family(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="projection", norms=_POST_NORMS),
    "baichuan": _PLAIN,
    "xverse": _PLAIN,
    "minicpm": _LLAMA,
    "internlm2": Family(qkv_bias="bias", output_bias="bias"),
    "exaone": Family(spellings={"num_hidden_layers": ("num_layers",)}),
    "qwen": Family(qkv_bias="always", intermediate_divisor=2),
    "chatglm": Family(
        qkv_bias="add_qkv_bias", output_bias="add_bias_linear", mlp_bias="add_bias_linear",
        spellings={
            "num_hidden_layers": ("num_layers",), "num_key_value_heads": ("multi_query_group_num",),
            "head_dim": ("kv_channels",), "intermediate_size": ("ffn_hidden_size",),
            "vocab_size": ("padded_vocab_size",),
        },
    ),
    "phi3small": Family(
        qkv_bias="always", output_bias="always", mlp_bias="always", norm_bias=True, tied=True,
        spellings={"intermediate_size": ("ff_intermediate_size",)},
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": Family(
        mlp_bias="always", gated=False, norms=("input_layernorm",), norm_bias=True, head_bias="always",
        inner_is_four_hidden=True, spellings=_GPT2_SPELLINGS,
    ),
    "phi": _PHI,
    "phi-msft": _PHI,
    "stablelm": Family(qkv_bias="use_qkv_bias", norm_bias=True),
    "starcoder2": Family(
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", gated=False, norm_bias=True, tied=True,
    ),
    "cohere": _COHERE,
    "gemma": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", tied=True, defaults={"head_dim": 256},
    ),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4_text": Family(
        builder="gemma4", qkv_bias="attention_bias", output_bias="attention_bias", norms=_FOUR_NORMS, qk_norm="head",
        tied=True, experts=Experts(used="top_k_experts"),
    ),
    "mixtral": Family(experts=Experts(count="num_local_experts", intermediate="intermediate_size")),
    "qwen2_moe": Family(
        qkv_bias="always",
        experts=Experts(placement="every_nth", shared_size="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "phimoe": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", norm_bias=True, head_bias="lm_head_bias",
        experts=Experts(count="num_local_experts", intermediate="intermediate_size"),
    ),
    "dbrx": Family(
        experts=Experts(count="moe_num_experts", used="moe_top_k", intermediate="ffn_hidden_size"),
        spellings={
            "hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",),
            "num_key_value_heads": ("kv_n_heads",),
        },
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", sinks=True, windows="alternating",
        experts=Experts(count="num_local_experts", intermediate="intermediate_size", bias=True),
    ),
    "llama4_text": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", windows="chunked", full_every=4,
        experts=Experts(
            count="num_local_experts", intermediate="intermediate_size", dense_intermediate="intermediate_size_mlp",
            placement="interleaved", shared_size="intermediate_size",
        ),
    ),
    "minimax_m2": Family(
        qk_norm="projection", qk_norm_key="use_qk_norm",
        experts=Experts(count="num_local_experts", intermediate="intermediate_size"),
    ),
    "minimax_m3": Family(
        qk_norm="head", qk_norm_key="use_qk_norm",
        experts=Experts(
            count="num_local_experts", dense_intermediate="dense_intermediate_size", placement="listed",
            shared_size="shared_intermediate_size",
        ),
    ),
    "step3p7": Family(
        qk_norm="head", query_gate="head",
        experts=Experts(placement="after_first", shared_size="share_expert_dim"),
    ),
    "mllama_text_model": Family(builder="crossing"),
    "deepseek": Family(experts=_ROUTED),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _SPARSE_DEEPSEEK,
    "glm_moe_dsa": _SPARSE_DEEPSEEK,
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_ref": _DEEPSEEK_V4,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "kimi_linear": Family(
        builder="kimi_linear",
        experts=Experts(placement="after_first", used="num_experts_per_token", shared_count="num_shared_experts"),
    ),
    "nemotron_h": Family(
        builder="mamba", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", gated=False,
        norms=("norm",),
        experts=Experts(count="n_routed_experts", shared_size="moe_shared_expert_intermediate_size"),
    ),
    "nemotron-nas": Family(builder="searched"),
    "exaone4": Family(qk_norm="head", norms=_POST_NORMS, windows="one_full_in", full_every=4),
    "exaone_moe": Family(
        qk_norm="head", windows="one_full_in", full_every=4,
        experts=Experts(placement="after_first", shared_count="num_shared_experts"),
    ),
    "hyperclovax": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", post_norms_key="use_post_norm",
    ),
    "solar_open": Family(qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", experts=_ROUTED),
    "axk1": _DEEPSEEK,
    "glm": Family(qkv_bias="attention_bias"),
    "glm4": Family(qkv_bias="attention_bias", norms=_FOUR_NORMS),
    "glm4_moe": Family(qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", experts=_ROUTED),
    "granite": _LLAMA,
    "granitemoe": Family(
        qkv_bias="attention_bias", output_bias="attention_bias",
        experts=Experts(count="num_local_experts", intermediate="intermediate_size"),
    ),
    "smollm3": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", tied=True,
    ),
    "seed_oss": Family(qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "arcee": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", gated=False,
    ),
    "internlm3": Family(qkv_bias="qkv_bias", output_bias="bias", mlp_bias="bias"),
    "olmo3": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="projection", norms=_POST_NORMS,
        windows="one_full_in", full_every=4, defaults={"sliding_window": 4096},
    ),
    "olmoe": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="projection",
        experts=Experts(intermediate="intermediate_size"),
    ),
    "cohere2": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", norms=("input_layernorm",), tied=True,
        windows="one_full_in", full_every=4, defaults={"sliding_window": 4096},
    ),
    "gpt_neox": Family(
        qkv_bias="always", output_bias="always", mlp_bias="always", gated=False, norm_bias=True,
    ),
    "ernie4_5": Family(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", tied=True),
    "ernie4_5_moe": Family(
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", tied=True,
        experts=Experts(
            count="moe_num_experts", used="moe_k", placement="ranged", shared_count="moe_num_shared_experts",
        ),
    ),
}  # fmt: skip
