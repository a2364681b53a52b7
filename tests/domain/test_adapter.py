"""The memory of LoRA adapters, and which of them are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.adapter import ENGINE_RANKS, Adapter, read_adapter, with_adapter
from service.domain.catalogue import model_by_name
from service.domain.errors import InvalidInputError
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch

# Qwen3-8B: hidden 4096, 32 and 8 heads of 128, FFN 12288, 36 layers, vocabulary 151,936, head not tied.
# A layer: q 4096 + 4096, k and v 4096 + 1024 each, o 4096 + 4096, gate and up 4096 + 12288 each, down 12288 + 4096.
LAYER = 8192 + 2 * 5120 + 8192 + 3 * 16_384
WIDTH = 36 * LAYER + 2 * (151_936 + 4096)
PEFT: dict[str, Any] = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}


def test_room_is_reserved_in_every_layer_at_two_bytes_a_number() -> None:
    plain = model_by_name("Qwen/Qwen3-8B")
    adapted = with_adapter(plain, Adapter(rank=16))
    assert adapted.weight_gb - plain.weight_gb == pytest.approx(16 * WIDTH * 2 / 1e9)
    assert adapted.architecture is not None
    assert plain.architecture is not None
    assert adapted.architecture.weight_bytes - plain.architecture.weight_bytes == 16 * WIDTH * 2
    assert f"rank 16 · {WIDTH:,} inputs and outputs" in adapted.warnings[-1]
    assert (adapted.name, adapted.kv_bytes_per_token) == (plain.name, plain.kv_bytes_per_token)


def test_the_targets_of_an_adapter_do_not_change_what_is_reserved() -> None:
    plain = model_by_name("Qwen/Qwen3-8B")
    every, few = Adapter(rank=8), Adapter(rank=8, targets=("q_proj",))
    assert with_adapter(plain, every).weight_gb == with_adapter(plain, few).weight_gb


@given(rank=st.integers(1, 512), max_loras=st.integers(1, 64))
def test_memory_grows_with_the_engine_s_rank_and_with_adapters_at_once(rank: int, max_loras: int) -> None:
    plain = model_by_name("Qwen/Qwen3-0.6B")
    one = with_adapter(plain, Adapter(rank=1)).weight_gb - plain.weight_gb
    adapter = Adapter(rank=rank, max_loras=max_loras)
    assert adapter.reserved_rank == min(known for known in ENGINE_RANKS if known >= rank)
    added = with_adapter(plain, adapter).weight_gb - plain.weight_gb
    assert added == pytest.approx(one * adapter.reserved_rank * max_loras)


def test_each_expert_has_room_of_its_own() -> None:
    dense = {
        "model_type": "mistral", "hidden_size": 640, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 1280, "vocab_size": 1000, "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }  # fmt: skip
    experts = parse_config({**dense, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})
    added = with_adapter(experts, Adapter(rank=1)).weight_gb - experts.weight_gb
    # q and o 640 + 640, k and v 640 + 320; router 640 + 4; four experts of three times 640 + 1280; twice 1000 + 640.
    width = 2 * 1280 + 2 * 960 + 644 + 4 * 3 * 1920 + 2 * 1640
    assert added == pytest.approx(width * 2 / 1e9)


def test_an_adapter_config_is_read() -> None:
    assert read_adapter(PEFT, max_loras=3) == Adapter(rank=16, max_loras=3, targets=("q_proj", "v_proj"))
    assert read_adapter({**PEFT, "target_modules": "all-linear"}).targets is None
    assert read_adapter({**PEFT, "rank_pattern": {"model.layers.0.q_proj": 40, "v_proj": 8}}).rank == 40


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"r": 0}, "r"),
        ({"r": 513}, "r"),
        ({"r": True}, "r"),
        ({"r": 8.0}, "r"),
        ({"r": None}, "r"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"target_modules": "(a+)+$"}, "target_modules"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": ["q_proj", 3]}, "target_modules[1]"),
        ({"target_modules": {"q_proj": 1}}, "target_modules"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 1000}}, "rank_pattern.q_proj"),
    ],
)
def test_what_cannot_be_sized_or_served_is_refused_by_its_key(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_adapter({**PEFT, **change})
    assert caught.value.path == path


def test_a_layer_that_the_family_does_not_have_is_a_warning() -> None:
    model = with_adapter(model_by_name("Qwen/Qwen3-8B"), Adapter(rank=8, targets=("q_proj", "query_key_value")))
    (warning,) = model.warnings
    assert warning.endswith("Layers of that name are not known in this family: query_key_value.")


def test_four_numbers_do_not_say_how_wide_the_layers_are() -> None:
    numbers = ModelArch(weight_gb=16.0, num_layers=36, hidden_size=4096, kv_bytes_per_token=147_456)
    with pytest.raises(InvalidInputError, match="give its config") as caught:
        with_adapter(numbers, Adapter(rank=8))
    assert caught.value.path == "adapter"


def test_adapters_that_no_machine_holds_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="lower max_loras"):
        with_adapter(model_by_name("meta-llama/Llama-3.1-70B-Instruct"), Adapter(rank=512, max_loras=1024))
