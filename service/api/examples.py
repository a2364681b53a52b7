"""Requests that work as they stand: shown in the documentation, sent by the tests."""

import json
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
    "fine_tuned": {
        "summary": "A fine-tuned model, by the one that it was made from",
        "value": {
            "model": {"same_architecture_as": "Qwen/Qwen3-8B", "name": "acme/support-chat"},
            "gpu": "B200",
            "workload": _CHAT,
        },
    },
    "with_adapters": {
        "summary": "Four LoRA adapters at once, counted and out of support",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "adapter": {"rank": 16, "max_loras": 4},
            "gpu": "B200",
            "workload": _CHAT,
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
    "rough_and_shared": {
        "summary": "A load that is known roughly, on a GPU that others use, with limits of one's own",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "gpu": "B200",
            "gpu_shared": True,
            "workload": {**_CHAT, "confidence": "rough"},
            "slo": {"max_p95_ttft_ms": 1000},
        },
    },
    "with_forms": {
        "summary": "Ready to paste, for a server with a shorter context and an argument of its own",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "gpu": "B200",
            "workload": _CHAT,
            "max_model_len": 8192,
            "extra_args": "--enable-auto-tool-choice --tool-call-parser=hermes",
            "render": ["vllm", "yaml", "helm", "kserve", "ray", "metis"],
        },
    },
    "in_words": {
        "summary": "Retrieval with prompts of 4,000 to 8,000 tokens and 20 to 40 clients, and the reasons",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "gpu": "B200",
            "workload": {
                "prompt_tokens": [4000, 8000],
                "output_tokens": 250,
                "max_output_tokens": 1000,
                "shared_prefix_tokens": 1500,
                "concurrency": [20, 40],
            },
            "explain": True,
        },
    },
    "by_preset": {
        "summary": "A known shape, for one of four replicas",
        "value": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "gpu": "B200",
            "workload": {"preset": "rag", "concurrency": 120, "replicas": 4},
        },
    },
}

BATCH_EXAMPLES: dict[str, dict[str, Any]] = {
    "two": {
        "summary": "Two questions",
        "value": {"items": [RECOMMEND_EXAMPLES["by_name"]["value"], RECOMMEND_EXAMPLES["by_numbers"]["value"]]},
    },
    "one_is_refused": {
        "summary": "A measured quantity refuses its own question only",
        "value": {
            "items": [
                RECOMMEND_EXAMPLES["by_name"]["value"],
                {"model": {"name": "Qwen/Qwen3-8B"}, "workload": {**_CHAT, "ttft_p95_ms": 812.0}},
            ]
        },
    },
}

INSPECT_EXAMPLES: dict[str, dict[str, Any]] = {
    "mixture": {
        "summary": "A mixture of experts",
        "value": {
            "config": {
                "model_type": "mixtral",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "vocab_size": 32000,
                "tie_word_embeddings": False,
                "max_position_embeddings": 32768,
            }
        },
    },
    "windowed": {
        "summary": "Dimensions inside text_config, a window in five of six layers, two lengths",
        "value": {
            "config": {
                "model_type": "gemma3",
                "text_config": {
                    "model_type": "gemma3_text",
                    "hidden_size": 3840,
                    "num_hidden_layers": 48,
                    "num_attention_heads": 16,
                    "num_key_value_heads": 8,
                    "intermediate_size": 15360,
                    "sliding_window": 1024,
                    "sliding_window_pattern": 6,
                },
            },
            "at_tokens": [1024, 131072],
        },
    },
}

HOOK_EXAMPLES: dict[str, dict[str, Any]] = {
    "one_pinned": {
        "summary": "Prefix caching is switched off by the user",
        "value": {
            "hook_version": "v1",
            "event": "endpoint.creating",
            "mode": "apply",
            "project_id": "search",
            "request": {
                "name": "my-vllm-endpoint",
                "model": "Qwen/Qwen3-8B",
                "workload_type": "VLLM",
                "gpu": 1,
                "workload_config": {"max_model_len": 8192, "extra_args": "--no-enable-prefix-caching"},
            },
            "context": {"gpu_product": "NVIDIA-B200", "engine": "vllm", "engine_version": "0.28.0"},
            "workload": _CHAT,
        },
    },
}

ADMISSION_EXAMPLES: dict[str, dict[str, Any]] = {
    "create": {
        "summary": "An InferenceService that opts in",
        "value": {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "operation": "CREATE",
                "namespace": "team",
                "object": {
                    "apiVersion": "serving.kserve.io/v1beta1",
                    "kind": "InferenceService",
                    "metadata": {
                        "name": "qwen3-8b",
                        "annotations": {
                            "memorypolicy.io/gpu": "NVIDIA-B200",
                            "memorypolicy.io/engine-version": "0.28.0",
                            "memorypolicy.io/workload": json.dumps(_CHAT),
                        },
                    },
                    "spec": {
                        "predictor": {
                            "model": {
                                "modelFormat": {"name": "huggingface"},
                                "storageUri": "hf://Qwen/Qwen3-8B",
                                "args": ["--max-model-len=8192"],
                                "resources": {"limits": {"nvidia.com/gpu": "1"}},
                            }
                        }
                    },
                },
            },
        },
    },
}

OUTCOME_EXAMPLES: dict[str, dict[str, Any]] = {
    "by_recommendation": {
        "summary": "A report about one answer",
        "value": {
            "recommendation_id": "e8553332-d5a5-4598-ac91-70ae2e04b844",
            "arm": "recommended",
            "engine_args": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
            "measured": {"output_throughput_tps": 5120.5, "ttft_p95_ms": 812.0, "slo_met": True},
        },
    },
    "by_endpoint": {
        "summary": "A report about an endpoint that runs the engine's default",
        "value": {
            "project": "search",
            "endpoint": "qwen3-8b",
            "arm": "engine_default",
            "engine_args": {},
            "measured": {"output_throughput_tps": 4800.0, "window_s": 900, "window_end_unix": 1764450000},
        },
    },
}
