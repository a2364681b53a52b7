"""Each kind of architecture: parameters against an independent count, cache and state by hand."""

from typing import Any

import pytest

from service.domain.architecture import CacheLayers
from service.domain.config_formula import formulas
from service.domain.errors import InvalidInputError, UnsupportedModelError
from service.domain.model_config import parse_config, read_architecture
from tests.domain.reduced_configs import (
    ALL,
    DEEPSEEK_V3,
    DEEPSEEK_V3_2,
    DEEPSEEK_V4,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA4,
    GPT_OSS,
    KIMI_K3,
    LLAMA4,
    MIXTRAL,
    NEMOTRON_H,
    NEMOTRON_NAS,
    QWEN3_5_MOE,
    QWEN3_MOE,
    Config,
)

# What transformers 5.24 counts on its own classes, built from the same config without memory (torch's meta device).
COUNTED = {
    "Mixtral-8x7B": 46_702_792_704,
    "Qwen3-30B-A3B": 30_532_122_624,
    "DeepSeek-V3": 671_026_404_352,
    "DeepSeek-V3.2": 671_877_929_216,
    "DeepSeek-V4-Flash": 284_332_230_231,
    "Gemma-2-2B": 2_614_341_888,
    "Gemma-3-1B": 999_885_952,
    "gpt-oss-120b": 116_829_156_672,
    "Llama-4-Scout": 107_769_861_120,
    "Nemotron-3-Nano": 31_577_937_344,
}


def without_key(config: Config, key: str) -> Config:
    return {name: value for name, value in config.items() if name != key}


def inner(config: Config, **changes: Any) -> Config:
    """The config with keys of its text_config changed."""
    return {**config, "text_config": {**config["text_config"], **changes}}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_the_familys_own_class(name: str) -> None:
    assert read_architecture(ALL[name]).parameters == COUNTED[name]


@pytest.mark.parametrize(
    ("name", "kind", "traits", "kv_bytes"),
    [
        # 2 · layers · KV heads · head_dim · 2 bytes; latent: layers · (512 + 64) · 2 bytes.
        ("Mixtral-8x7B", "moe", {"moe"}, 131_072),
        ("Qwen3-30B-A3B", "moe", {"moe"}, 98_304),
        ("DeepSeek-V3", "mla", {"mla", "moe"}, 70_272),
        ("DeepSeek-V3.2", "mla", {"mla", "moe"}, 70_272),
        ("Gemma-2-2B", "sliding", {"sliding"}, 106_496),
        ("Gemma-3-1B", "sliding", {"sliding"}, 26_624),
        ("gpt-oss-120b", "moe", {"moe", "sliding"}, 73_728),
        ("Llama-4-Scout", "moe", {"moe", "sliding"}, 196_608),
        # Only the 10 of 40, 6 of 52 and 24 of 93 layers that attend have a cache.
        ("Qwen3.5-35B-A3B", "hybrid", {"hybrid", "moe"}, 20_480),
        ("Nemotron-3-Nano", "hybrid", {"hybrid", "moe"}, 6_144),
        ("Kimi-K3", "hybrid", {"hybrid", "mla", "moe"}, 27_648),
        # Three of five layers attend, 64 ÷ 8 KV heads of 128.
        ("Nemotron-NAS", "dense", {"dense"}, 12_288),
    ],
)
def test_kind_and_cache_with_every_layer_full(name: str, kind: str, traits: set[str], kv_bytes: int) -> None:
    read = read_architecture(ALL[name])
    assert (read.kind, set(read.traits), read.kv_bytes_per_token) == (kind, traits, kv_bytes)
    assert parse_config(ALL[name]).kv_bytes_per_token == kv_bytes


# --- experts ---


def test_a_mixture_weighs_all_its_experts_and_a_token_passes_a_few() -> None:
    read = read_architecture(MIXTRAL)
    # 46.70 B, neither 7 B nor the 13 B that a token passes: six of eight experts of 3 · 4096 · 14336 less in 32 layers.
    assert read.parameters - read.active_parameters == 32 * 6 * 3 * 4096 * 14336
    assert parse_config(MIXTRAL).weight_gb == pytest.approx(93.405585, abs=1e-5)


def test_dense_layers_among_sparse_ones_are_counted_as_such() -> None:
    expert_layer = 128 * 3 * 2048 * 768 + 128 * 2048
    for key, value, dense_layers in (
        ("mlp_only_layers", [0, 5], 2),
        ("decoder_sparse_step", 2, 24),
        ("decoder_sparse_step", 3, 32),
    ):
        changed = read_architecture({**QWEN3_MOE, key: value})
        saved = dense_layers * (expert_layer - 3 * 2048 * 6144)
        assert changed.parameters == COUNTED["Qwen3-30B-A3B"] - saved
    layer = 256 * 3 * 7168 * 2048 + 3 * 7168 * 2048 + 256 * 7168
    fewer = read_architecture({**DEEPSEEK_V3, "first_k_dense_replace": 4})
    assert fewer.parameters == COUNTED["DeepSeek-V3"] - layer + 3 * 7168 * 18432


def test_every_second_layer_of_maverick_is_sparse() -> None:
    # meta-llama/Llama-4-Maverick-17B-128E: 400.71 B by transformers' own class.
    maverick = inner(LLAMA4, num_local_experts=128, interleave_moe_layer_step=2, rope_scaling=None)
    assert read_architecture(maverick).parameters == 400_711_848_960


def test_experts_that_work_in_a_latent_width_are_counted_at_that_width() -> None:
    # Published: 2,779.93 B with the image encoder.
    assert read_architecture(KIMI_K3).parameters == pytest.approx(2_779.93e9, rel=0.001)


def test_a_count_of_experts_that_is_missing_is_refused_and_none_is_dense() -> None:
    with pytest.raises(UnsupportedModelError, match="num_local_experts"):
        parse_config(without_key(MIXTRAL, "num_local_experts"))
    dense = read_architecture({**QWEN3_MOE, "num_experts": 0})
    assert dense.kind == "dense"


def test_a_token_cannot_pass_more_experts_than_there_are() -> None:
    with pytest.raises(UnsupportedModelError, match="there are 8 experts"):
        parse_config({**MIXTRAL, "num_experts_per_tok": 9})


# --- latent attention ---


def test_a_latent_cache_is_the_same_on_every_rank_and_kv_heads_are_shared_not_cut() -> None:
    assert read_architecture(DEEPSEEK_V3).kv_bytes_per_token_per_rank(8) == 70_272
    two_heads = CacheLayers(kind="full", layers=10, kv_heads=2, values=256)
    # max(1, 2 ÷ 4) KV heads: 10 · 1 · 256 · 2 bytes, the same as with two ranks.
    assert two_heads.bytes_per_token(tensor_parallel=4) == two_heads.bytes_per_token(tensor_parallel=2) == 5_120
    assert two_heads.bytes_at(3, tensor_parallel=4) == 3 * 5_120


def test_queries_that_are_not_compressed_are_one_matrix() -> None:
    whole = read_architecture({**DEEPSEEK_V3, "q_lora_rank": None})
    queries = 128 * (128 + 64)
    compressed = 1536 * 7168 + queries * 1536 + 1536
    assert whole.parameters == COUNTED["DeepSeek-V3"] + 61 * (queries * 7168 - compressed)


def test_a_selector_of_sparse_attention_is_named_with_its_bytes() -> None:
    # 61 layers · (128 + 4) bytes.
    assert any("8,052 more bytes per token" in warning for warning in read_architecture(DEEPSEEK_V3_2).warnings)


def test_prediction_layers_are_left_out_aloud() -> None:
    assert any("num_nextn_predict_layers" in warning for warning in read_architecture(DEEPSEEK_V3).warnings)


def test_compressed_attention_is_an_estimate_that_says_so() -> None:
    read = read_architecture(DEEPSEEK_V4)
    # 43 windows of 128 latents of 512 · 2 bytes; beyond, 21 layers keep every 4th and 20 every 128th.
    assert read.kv_bytes_at(1024) == 43 * 128 * 1024 + 1024 * (21 * 256 + 20 * 8)
    assert any("estimate" in warning for warning in read.warnings)


# --- windows ---


@pytest.mark.parametrize(
    ("config", "per_layer", "full", "windowed", "window"),
    [
        (GEMMA2, 2 * 4 * 256 * 2, 13, 13, 4096),
        (GEMMA3_TEXT, 2 * 1 * 256 * 2, 4, 22, 512),
        (GPT_OSS, 2 * 8 * 64 * 2, 18, 18, 128),
        (LLAMA4, 2 * 8 * 128 * 2, 12, 36, 8192),
    ],
    ids=["every second", "one in six", "listed", "chunks"],
)
def test_a_window_keeps_no_more_than_its_length(
    config: Config, per_layer: int, full: int, windowed: int, window: int
) -> None:
    read = read_architecture(config)
    for tokens in (1, window, window + 1, 8192, 100_000):
        assert read.kv_bytes_at(tokens) == per_layer * (full * tokens + windowed * min(tokens, window))


def test_layers_with_heads_of_their_own_are_counted_with_those() -> None:
    read = read_architecture(GEMMA4)
    # 25 layers of 8 · 256 in a window of 1,024, 5 of 2 · 512.
    assert read.kv_bytes_at(2000) == 25 * 1024 * 2 * 8 * 256 * 2 + 5 * 2000 * 2 * 2 * 512 * 2
    # 25,805,933,872 by transformers' class, of which 569,548,080 + 3,244,032 are the image encoder.
    assert read.parameters == 25_805_933_872 - 569_548_080 - 3_244_032


def test_a_class_default_that_published_configs_leave_out_is_listed_as_assumed() -> None:
    # google/gemma-3-4b-it names hidden_size, intermediate_size, num_hidden_layers, rope_scaling and sliding_window.
    nested = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024,
        },
    }  # fmt: skip
    read = read_architecture(nested)
    assert dict(read.assumed) == {
        "model.config.text_config.num_attention_heads": 8,
        "model.config.text_config.num_key_value_heads": 4,
        "model.config.text_config.head_dim": 256,
        "model.config.text_config.vocab_size": 262_208,
        "model.config.text_config.max_position_embeddings": 131_072,
        "model.config.text_config.sliding_window_pattern": 6,
        "model.config.text_config.tie_word_embeddings": True,
    }
    # The positions of Gemma 3 include the scaling: vLLM 0.28 does not multiply.
    assert read.max_context == 131_072
    # 2 · 34 · 4 · 256 · 2 bytes; the published text model has 3.88 B.
    assert read.kv_bytes_per_token == 139_264
    assert read.parameters == pytest.approx(3.88e9, rel=0.001)


# --- recurrent layers ---


def test_a_gated_delta_net_keeps_a_state_of_fixed_size() -> None:
    # 30 layers: 3 inputs of 2 · 16 · 128 + 32 · 128 channels in 16 bits, and 32 matrices of 128 · 128 in 32 bits.
    expected = 30 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)
    assert read_architecture(QWEN3_5_MOE).state_bytes == expected
    half = read_architecture(inner(QWEN3_5_MOE, mamba_ssm_dtype="bfloat16"))
    assert half.state_bytes == 30 * (3 * 8192 * 2 + 32 * 128 * 128 * 2)


def test_a_mamba_layer_keeps_a_state_of_fixed_size() -> None:
    # 23 layers: 3 inputs of 4096 + 2 · 8 · 128 channels in 16 bits, and 64 · 64 · 128 numbers in 32 bits.
    assert read_architecture(NEMOTRON_H).state_bytes == 23 * (3 * 6144 * 2 + 64 * 64 * 128 * 4)


def test_kimi_delta_attention_keeps_its_matrices_in_32_bits() -> None:
    assert read_architecture(KIMI_K3).state_bytes == 69 * (3 * 3 * 96 * 128 * 2 + 96 * 128 * 128 * 4)


def test_an_interval_says_the_same_as_a_list_of_layers() -> None:
    listed = read_architecture(QWEN3_5_MOE)
    by_interval = read_architecture(inner(QWEN3_5_MOE, layer_types=None))
    assert (by_interval.parameters, by_interval.state_bytes) == (listed.parameters, listed.state_bytes)


def test_words_and_letters_say_the_same_about_nemotron() -> None:
    words = {"M": "mamba", "*": "attention", "E": "moe"}
    listed = {**without_key(NEMOTRON_H, "hybrid_override_pattern"), "num_hidden_layers": None}
    listed["layers_block_type"] = [words[letter] for letter in NEMOTRON_H["hybrid_override_pattern"]]
    assert read_architecture(listed) == read_architecture(NEMOTRON_H)


def test_layers_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="the layers that are listed are 52"):
        parse_config({**NEMOTRON_H, "num_hidden_layers": 51})
    with pytest.raises(UnsupportedModelError, match="known letters"):
        parse_config({**NEMOTRON_H, "hybrid_override_pattern": "MEX"})
    with pytest.raises(InvalidInputError, match="one entry for each of the 40 layers"):
        parse_config(inner(QWEN3_5_MOE, layer_types=["full_attention"]))


def test_a_model_without_attention_has_no_cache_to_plan() -> None:
    with pytest.raises(UnsupportedModelError, match="no KV cache"):
        parse_config({**NEMOTRON_H, "hybrid_override_pattern": "ME", "num_hidden_layers": 2})


# --- searched and composite architectures ---


def test_what_a_search_removed_is_not_counted() -> None:
    # hidden 8192; FFN of 2/3 · mult · hidden up to a multiple of 256: 14,336, 28,672, 5,632 and none.
    attention = 2 * 8192 * 8192 + 2 * 8 * 128 * 8192
    ffn = 3 * 8192 * (14336 + 28672 + 5632 + 28672)
    norms = (5 * 2 + 1) * 8192
    parameters = 3 * attention + 8192 * 8192 + ffn + norms + 2 * 128256 * 8192
    assert read_architecture(NEMOTRON_NAS).parameters == parameters


def test_an_image_encoder_is_counted_where_its_class_is_known() -> None:
    read = read_architecture(QWEN3_5_MOE)
    # 34,660,610,688 by transformers' class of the decoder alone.
    assert read.parameters - 34_660_610_688 == read_architecture_of_tower(QWEN3_5_MOE)
    assert read.active_parameters < 4e9


def read_architecture_of_tower(config: Config) -> int:
    """By hand, modeling_qwen3_vl.py: width 1152, 27 blocks with an MLP of 4304, one merger of four patches."""
    block = 4 * 1152**2 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    merger = 4608**2 + 4608 + 4608 * 2048 + 2048 + 2 * 1152
    return 27 * block + merger + 2304 * 1152 + 1152 * (2 * 16 * 16 * 3) + 1152


def test_the_encoder_of_gemma_3_is_counted_with_its_projector() -> None:
    nested = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27,
            "patch_size": 14,
        },
    }  # fmt: skip
    # What transformers 5.24 counts on Gemma3ForConditionalGeneration.
    assert read_architecture(nested).parameters == 4_300_079_472


def test_an_encoder_of_another_class_is_left_out_aloud() -> None:
    seen = read_architecture({**GEMMA4, "vision_config": {"hidden_size": 1152}, "audio_config": {"d_model": 8}})
    assert seen.parameters == read_architecture(GEMMA4).parameters
    assert [key for key in ("vision_config", "audio_config") if any(key in text for text in seen.warnings)] == [
        "vision_config",
        "audio_config",
    ]


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_dimensions_are_found_one_level_down_and_a_refusal_names_the_whole_path(key: str) -> None:
    nested = {"model_type": "a-composite", key: MIXTRAL}
    assert read_architecture(nested) == read_architecture(MIXTRAL)
    with pytest.raises(UnsupportedModelError, match="must name this dimension") as caught:
        parse_config({key: without_key(MIXTRAL, "hidden_size")})
    assert caught.value.path == f"{key}.hidden_size"


def test_dimensions_are_found_two_levels_down() -> None:
    # As Qwen2.5-Omni and Qwen3-Omni nest them.
    assert read_architecture({"thinker_config": {"text_config": QWEN3_MOE}}) == read_architecture(QWEN3_MOE)


# --- formulas ---


@pytest.mark.parametrize("name", ALL)
def test_formulas_end_in_the_numbers_that_they_explain(name: str) -> None:
    read = read_architecture(ALL[name])
    totals = {key: int(text.rpartition("= ")[2].removesuffix(" bytes").replace(",", "")) for key, text in
              formulas(read).items() if " = " in text}  # fmt: skip
    assert sum(total for key, total in totals.items() if key.startswith("parameters: ")) == read.parameters
    assert totals["weight_bytes"] == read.weight_bytes
    assert totals["kv_bytes_per_token"] == read.kv_bytes_per_token


def test_a_formula_shows_the_numbers_in() -> None:
    found = formulas(read_architecture(MIXTRAL))
    assert found["kv_bytes_per_token"] == "2 · 32 full layers · 8 KV heads · 128 · 2 bytes = 131,072 bytes"
    assert "32 · 8 · 14,336 · 4,096 (gate_proj)" in found["parameters: experts"]
    assert formulas(read_architecture(GEMMA2))["kv_bytes_at_n_tokens"] == "53,248 · min(n, 4,096) + 53,248 · n bytes"


TWO_LAYERS: Config = {
    "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "vocab_size": 1000,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["linear_attention", "mamba", "moe", "mlp", "deepseek_sparse_attention"])
def test_layers_that_a_family_of_attention_layers_does_not_have_are_refused(kind: str) -> None:
    windows = {"layer_types": ["full_attention", kind], "sliding_window": 512}
    with pytest.raises(UnsupportedModelError, match=f"{kind}.*known are full_attention, attention, sliding_") as caught:
        read_architecture({**TWO_LAYERS, **windows})
    assert caught.value.path == "layer_types[1]"


def test_layers_are_full_or_windowed_as_they_say() -> None:
    windows = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512}
    read = read_architecture({**TWO_LAYERS, **windows})
    assert read.kv_bytes_at(4096) == (4096 + 512) * 2 * 2 * 64 * 2


def test_a_selector_of_sparse_attention_is_warned_of_where_it_is_not_counted() -> None:
    selector = {"sparse_attention_config": {"use_sparse_attention": True, "sparse_index_dim": 128}}
    plain = read_architecture(TWO_LAYERS)
    [warning] = read_architecture({**TWO_LAYERS, **selector}).warnings
    assert "sparse_attention_config: the selector of sparse attention is not counted" in warning
    assert "a key of 128 numbers" in warning
    off = {"sparse_attention_config": {"use_sparse_attention": False}}
    assert read_architecture({**TWO_LAYERS, **off}).warnings == plain.warnings == ()
    with pytest.raises(UnsupportedModelError) as caught:
        read_architecture({**TWO_LAYERS, "sparse_attention_config": {"use_sparse_attention": True}})
    assert caught.value.path == "sparse_attention_config.sparse_index_dim"
