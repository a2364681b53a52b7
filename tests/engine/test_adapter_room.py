"""What the service counts for adapters is what a real vLLM 0.28 allocates for them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.domain.adapter import Adapter, with_adapter
from service.domain.model_config import parse_config
from tests.engine.adapter_room import MAX_LORAS, RANK

ROOT = Path(__file__).resolve().parents[2]
TINY: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "dtype": "bfloat16",
    "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def reserved(config: dict[str, Any]) -> int:
    """By a real engine, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.adapter_room"], cwd=ROOT, input=json.dumps(config), text=True,
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROOM ")]
    assert lines, done.stderr[-3000:]
    return int(lines[-1].removeprefix("ROOM "))


def counted(config: dict[str, Any]) -> int:
    """By the service."""
    model = parse_config(config)
    adapted = with_adapter(model, Adapter(rank=RANK, max_loras=MAX_LORAS))
    assert adapted.architecture is not None
    assert model.architecture is not None
    return adapted.architecture.weight_bytes - model.architecture.weight_bytes


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("Qwen3ForCausalLM", {"model_type": "qwen3"}),
        ("LlamaForCausalLM", {"model_type": "llama", "mlp_bias": False}),
        ("Qwen3MoeForCausalLM", {"model_type": "qwen3_moe", **EXPERTS}),
    ],
)
def test_the_room_is_that_of_a_real_engine(architecture: str, config: dict[str, Any]) -> None:
    whole = {**TINY, **config, "architectures": [architecture]}
    assert counted(whole) == reserved(whole)


def test_where_the_engine_wraps_no_embeddings_the_count_is_above_it_by_them() -> None:
    whole = {**TINY, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    embeddings = 2 * (TINY["vocab_size"] + TINY["hidden_size"]) * RANK * MAX_LORAS * 2
    assert counted(whole) - reserved(whole) == embeddings
