"""Published config.json files reduced by hand to the keys that size a model, one of each kind.

Sources, both Apache-2.0:
AIC: ai-dynamo/aiconfigurator@095f58a51c4ca8e61b66ec108d86f223f8d559ce, aic-core/src/aiconfigurator_core/model_configs;
OME: sgl-project/ome@17b77edad23bae262e0c9adb7f12039397a5d33d, pkg/hfutil/modelconfig/testdata.
Lists with an entry for every layer are written as the pattern that they repeat.
"""

from typing import Any

Config = dict[str, Any]

# AIC: mistralai--Mixtral-8x7B-v0.1_config.json
MIXTRAL: Config = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
# AIC: Qwen--Qwen3-30B-A3B_config.json
QWEN3_MOE: Config = {
    "model_type": "qwen3_moe", "attention_bias": False, "hidden_size": 2048, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_scaling": None,
    "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
}  # fmt: skip
# AIC: deepseek-ai--DeepSeek-V3.2_config.json without what V3 lacks; deepseek-ai/DeepSeek-V3 is the same otherwise.
DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "attention_bias": False, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1, "vocab_size": 129280,
    "max_position_embeddings": 163840, "tie_word_embeddings": False,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
# AIC: deepseek-ai--DeepSeek-V3.2_config.json
DEEPSEEK_V3_2: Config = {
    **DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
# AIC: deepseek-ai--DeepSeek-V4-Flash_config.json; the last ratio is of the prediction layer.
DEEPSEEK_V4: Config = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "head_dim": 512, "num_hidden_layers": 43,
    "num_attention_heads": 64, "num_key_value_heads": 1, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8,
    "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64, "hc_mult": 4, "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "num_nextn_predict_layers": 1, "vocab_size": 129280,
    "expert_dtype": "fp4", "max_position_embeddings": 1048576, "tie_word_embeddings": False,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
}  # fmt: skip
# OME: gemma_2_2b.json
GEMMA2: Config = {
    "model_type": "gemma2", "attention_bias": False, "hidden_size": 2304, "head_dim": 256, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000,
    "max_position_embeddings": 8192, "sliding_window": 4096,
}  # fmt: skip
# OME: gemma3_text.json
GEMMA3_TEXT: Config = {
    "model_type": "gemma3_text", "attention_bias": False, "hidden_size": 1152, "head_dim": 256,
    "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
    "vocab_size": 262144, "max_position_embeddings": 32768, "rope_scaling": None, "sliding_window": 512,
    "sliding_window_pattern": 6,
}  # fmt: skip
# AIC: google--gemma-4-26B-A4B_config.json
GEMMA4: Config = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "attention_bias": False, "attention_k_eq_v": True, "enable_moe_block": True,
        "global_head_dim": 512, "head_dim": 256, "hidden_size": 2816, "hidden_size_per_layer_input": 0,
        "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8,
        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_global_key_value_heads": 2, "num_kv_shared_layers": 0, "vocab_size": 262144,
        "max_position_embeddings": 262144, "sliding_window": 1024, "tie_word_embeddings": True,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 5,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_type": "proportional"},
            "sliding_attention": {"rope_type": "default"},
        },
    },
    "tie_word_embeddings": True,
}  # fmt: skip
# AIC: openai--gpt-oss-120b_config.json
GPT_OSS: Config = {
    "model_type": "gpt_oss", "attention_bias": True, "hidden_size": 2880, "head_dim": 64, "intermediate_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 128,
    "experts_per_token": 4, "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    },
}  # fmt: skip
# AIC: meta-llama--Llama-4-Scout-17B-16E-Instruct_config.json
LLAMA4: Config = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "hidden_size": 5120,
        "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1,
        "num_local_experts": 16, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 202048, "max_position_embeddings": 10485760,
        "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192},
    },
}  # fmt: skip
# AIC: Qwen--Qwen3.5-35B-A3B_config.json
QWEN3_5_MOE: Config = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "attention_bias": False, "attn_output_gate": True, "hidden_size": 2048,
        "head_dim": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "mlp_only_layers": [], "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "vocab_size": 248320,
        "max_position_embeddings": 262144, "full_attention_interval": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
    },
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 27, "hidden_size": 1152, "in_channels": 3, "intermediate_size": 4304, "num_heads": 16,
        "num_position_embeddings": 2304, "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "deepstack_visual_indexes": [],
    },
}  # fmt: skip
# AIC: nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16_config.json
NEMOTRON_H: Config = {
    "model_type": "nemotron_h", "attention_bias": False, "mlp_bias": False, "hidden_size": 2688, "head_dim": 128,
    "intermediate_size": 1856, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6, "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 2, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "use_conv_bias": True, "mamba_ssm_cache_dtype": "float32",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "vocab_size": 131072,
    "max_position_embeddings": 262144, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
# AIC: moonshotai--Kimi-K3_config.json
KIMI_K3: Config = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear", "hidden_size": 7168, "intermediate_size": 33792, "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2,
        "num_hidden_layers": 93, "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_use_output_gate": True, "attn_res_block_size": 12, "vocab_size": 163840, "tie_word_embeddings": False,
        "max_position_embeddings": 1048576,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93], "head_dim": 128, "num_heads": 96,
            "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}}},
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                       "re:.*lm_head.*"],
        },
    },
}  # fmt: skip
# AIC: nvidia--Llama-3_3-Nemotron-Super-49B-v1_config.json, cut to five layers of different kinds.
_WHOLE = {"no_op": False, "n_heads_in_group": 8, "replace_with_linear": False}
_NONE = {"no_op": True, "n_heads_in_group": None, "replace_with_linear": False}
NEMOTRON_NAS: Config = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_hidden_layers": 5, "num_attention_heads": 64,
    "num_key_value_heads": None, "intermediate_size": None, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "block_configs": [
        {"attention": _WHOLE, "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False}},
        {"attention": _WHOLE, "ffn": {"ffn_mult": 5.25, "no_op": False, "replace_with_linear": False}},
        {"attention": _NONE, "ffn": {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False}},
        {"attention": {**_NONE, "no_op": False, "replace_with_linear": True},
         "ffn": {"ffn_mult": 5.25, "no_op": False, "replace_with_linear": False}},
        {"attention": _WHOLE, "ffn": {"ffn_mult": None, "no_op": True, "replace_with_linear": False}},
    ],
}  # fmt: skip

ALL: dict[str, Config] = {
    "Mixtral-8x7B": MIXTRAL,
    "Qwen3-30B-A3B": QWEN3_MOE,
    "DeepSeek-V3": DEEPSEEK_V3,
    "DeepSeek-V3.2": DEEPSEEK_V3_2,
    "DeepSeek-V4-Flash": DEEPSEEK_V4,
    "Gemma-2-2B": GEMMA2,
    "Gemma-3-1B": GEMMA3_TEXT,
    "Gemma-4-26B-A4B": GEMMA4,
    "gpt-oss-120b": GPT_OSS,
    "Llama-4-Scout": LLAMA4,
    "Qwen3.5-35B-A3B": QWEN3_5_MOE,
    "Nemotron-3-Nano": NEMOTRON_H,
    "Kimi-K3": KIMI_K3,
    "Nemotron-NAS": NEMOTRON_NAS,
}
