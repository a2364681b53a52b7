"""Families beside those of the reduced files: parameters of each class's own defaults.

The second number is what transformers 5.24 counts on `CONFIG_MAPPING[model_type]()`, built without memory (torch's meta
device); what that class fills in is written out here, so that nothing is left to its defaults.
"""

import pytest

from service.domain.model_config import read_architecture
from tests.domain.reduced_configs import Config

DEFAULTS: tuple[tuple[Config, int], ...] = (
    ({
        "model_type": "exaone4", "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "sliding_window": 4096, "sliding_window_pattern": 4,
    }, 9_429_069_824),
    ({
        "model_type": "exaone_moe", "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "sliding_window": 4096, "sliding_window_pattern": 4,
        "first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok":
        8, "num_shared_experts": 1,
    }, 28_550_639_616),
    ({
        "model_type": "solar_open", "vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts":
        128, "head_dim": 128,
    }, 102_651_793_408),
    ({
        "model_type": "hyperclovax", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "head_dim": 128, "use_post_norm": True,
    }, 6_738_677_760),
    ({
        "model_type": "glm", "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "attention_bias": True,
    }, 9_399_951_360),
    ({
        "model_type": "glm4", "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "attention_bias": True,
    }, 9_400_279_040),
    ({
        "model_type": "granite", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
    }, 6_738_415_616),
    ({
        "model_type": "granitemoe", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
    }, 37_039_116_288),
    ({
        "model_type": "smollm3", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
    }, 3_075_098_624),
    ({
        "model_type": "seed_oss", "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
        "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8,
        "max_position_embeddings": 524288, "attention_bias": True, "head_dim": 128,
    }, 28_921_040_896),
    ({
        "model_type": "olmo3", "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "sliding_window": 4096,
    }, 6_888_624_128),
    ({
        "model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 4096, "num_experts_per_tok": 8, "num_experts": 64,
    }, 13_361_612_800),
    ({
        "model_type": "cohere2", "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
        "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 64,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "sliding_window": 4096, "head_dim":
        128,
    }, 34_980_831_232),
    ({
        "model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "max_position_embeddings": 2048,
        "attention_bias": True,
    }, 20_554_567_680),
    ({
        "model_type": "ernie4_5", "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "head_dim": 128,
    }, 360_748_032),
    ({
        "model_type": "qwen3_next", "full_attention_interval": 4,
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "head_dim": 256, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
        "mlp_only_layers": [],
    }, 79_674_391_296),
    ({
        "model_type": "arcee", "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 18432,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 4096, "head_dim": 80,
    }, 4_022_766_080),
    ({
        "model_type": "internlm3", "vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "head_dim": 128,
    }, 8_804_241_408),
)  # fmt: skip


@pytest.mark.parametrize(("config", "parameters"), DEFAULTS, ids=[config["model_type"] for config, _ in DEFAULTS])
def test_parameters_are_those_of_the_familys_own_class(config: Config, parameters: int) -> None:
    assert read_architecture(config).parameters == parameters


def test_letters_say_which_layers_slide() -> None:
    # LGAI-EXAONE/EXAONE-4.0-32B: three layers with a window of 4,096, then one without.
    exaone = {**DEFAULTS[0][0], "sliding_window_pattern": "LLLG", "max_position_embeddings": 131_072}
    read = read_architecture(exaone)
    per_layer = 2 * 32 * 128 * 2
    assert read.kv_bytes_at(10_000) == per_layer * (24 * 4096 + 8 * 10_000)
    assert read_architecture({**exaone, "sliding_window_pattern": None}).kv_bytes_at(10_000) == read.kv_bytes_at(10_000)
    assert read_architecture({**exaone, "sliding_window": None}).kind == "dense"
