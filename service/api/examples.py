"""Requests that work as they stand: shown in the documentation, sent by the tests."""

from typing import Any

_CHAT = {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64}

RECOMMEND_EXAMPLES: dict[str, dict[str, Any]] = {
    "by_name": {
        "summary": "A model of the catalogue",
        "value": {"model": {"name": "Qwen/Qwen3-8B"}, "gpu": "NVIDIA-B200", "workload": _CHAT},
    },
    "by_config": {
        "summary": "A model by its config.json",
        "value": {
            "model": {
                "config": {
                    "model_type": "qwen3",
                    "hidden_size": 4096,
                    "num_hidden_layers": 36,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 8,
                    "head_dim": 128,
                    "intermediate_size": 12288,
                    "vocab_size": 151936,
                    "tie_word_embeddings": False,
                    "max_position_embeddings": 40960,
                }
            },
            "gpu": "B200",
            "workload": _CHAT,
        },
    },
    "by_numbers": {
        "summary": "A model by four numbers, for a shared prefix",
        "value": {
            "model": {"weight_gb": 16.381, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456},
            "workload": {"prompt_tokens": 3000, "max_new_tokens": 256, "shared_prefix_ratio": 0.9, "concurrency": 16},
        },
    },
    "with_fixed": {
        "summary": "One engine argument is already set",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "gpu": "B200",
            "workload": _CHAT,
            "fixed": {"max_num_batched_tokens": 8192},
        },
    },
}
