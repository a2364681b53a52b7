from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.errors import InvalidInputError, UnsupportedModelError
from service.domain.model_config import parse_config, read_architecture
from service.domain.scenario import ModelArch

# The keys of the published config.json files that size a model; everything else is left out.
QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
# mistralai/Mistral-Small-24B-Instruct-2501
MISTRAL_SMALL_24B: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 32768,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "sliding_window": None,
}
# meta-llama/Llama-3.1-8B; no head_dim: 4096 ÷ 32 = 128.
LLAMA_3_1_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "mlp_bias": False,
}
# meta-llama/Llama-3.2-1B
LLAMA_3_2_1B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
# Qwen/Qwen2.5-7B-Instruct: a window larger than the context, and switched off.
QWEN2_5_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
# EleutherAI/gpt-j-6b; n_inner null: four times n_embd.
GPT_J_6B: dict[str, Any] = {
    "model_type": "gptj",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "tie_word_embeddings": False,
    "vocab_size": 50400,
}
# bigcode/starcoder
STARCODER: dict[str, Any] = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_layer": 40,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
}

REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, **changes}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


# --- key and value bytes per token ---


def test_a_declared_head_dim_wins_over_hidden_divided_by_heads() -> None:
    # 2 · 36 · 8 · 128 · 2 bytes; hidden ÷ heads would be 80 and give 92,160.
    assert parse_config(QWEN3_4B).kv_bytes_per_token == 147_456
    # 2 · 40 · 8 · 128 · 2 bytes; hidden ÷ heads would be 160 and give 204,800.
    assert parse_config(MISTRAL_SMALL_24B).kv_bytes_per_token == 163_840


@pytest.mark.parametrize("config", [without(LLAMA_3_1_8B, "head_dim"), changed(LLAMA_3_1_8B, head_dim=None)])
def test_a_missing_or_null_head_dim_is_derived(config: dict[str, Any]) -> None:
    # 4096 ÷ 32 = 128: 2 · 32 · 8 · 128 · 2 bytes.
    assert parse_config(config).kv_bytes_per_token == 131_072


@pytest.mark.parametrize("config", [changed(LLAMA_3_1_8B, hidden_size=4100), changed(QWEN3_4B, num_attention_heads=24)])
def test_a_head_dim_that_does_not_come_out_even_must_be_declared(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="declare head_dim") as caught:
        parse_config(changed(config, head_dim=None))
    assert caught.value.path == "head_dim"
    assert parse_config(changed(config, head_dim=128)).num_layers == config["num_hidden_layers"]


@pytest.mark.parametrize(
    "config", [without(LLAMA_3_1_8B, "num_key_value_heads"), changed(LLAMA_3_1_8B, num_key_value_heads=None)]
)
def test_missing_key_value_heads_are_as_many_as_attention_heads(config: dict[str, Any]) -> None:
    # 32 heads instead of 8: four times 131,072.
    assert parse_config(config).kv_bytes_per_token == 524_288
    # Key and value projections of all 32 layers grow by 2 · 4096 · 24 · 128 each.
    assert parse_config(config).parameters == 8_030_261_248 + 32 * 2 * 4096 * 24 * 128


@pytest.mark.parametrize("kv_heads", [3, 5, 7, 64])
def test_key_value_heads_that_do_not_divide_the_heads_are_refused(kv_heads: int) -> None:
    with pytest.raises(InvalidInputError, match="num_key_value_heads") as caught:
        parse_config(changed(LLAMA_3_1_8B, num_key_value_heads=kv_heads))
    assert caught.value.value == kv_heads


# --- weights ---


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN3_4B, 4_022_468_096),
        (MISTRAL_SMALL_24B, 23_572_403_200),
        (LLAMA_3_1_8B, 8_030_261_248),
        (LLAMA_3_2_1B, 1_235_814_400),
        (QWEN2_5_7B, 7_615_616_512),
    ],
    ids=["Qwen3-4B", "Mistral-Small-24B", "Llama-3.1-8B", "Llama-3.2-1B", "Qwen2.5-7B"],
)
def test_parameters_are_the_published_ones_to_the_last(config: dict[str, Any], parameters: int) -> None:
    model = parse_config(config)
    assert model.parameters == parameters
    assert model.weight_gb == pytest.approx(parameters * 2 / 1e9, rel=1e-12)


def test_a_tied_head_is_counted_once() -> None:
    tied = parse_config(LLAMA_3_2_1B)
    untied = parse_config(changed(LLAMA_3_2_1B, tie_word_embeddings=False))
    # 128,256 · 2048 · 2 bytes = 525,336,576 bytes.
    assert untied.weight_gb - tied.weight_gb == pytest.approx(0.525336576)
    assert (untied.weight_gb - tied.weight_gb) * 1e9 / 2**30 == pytest.approx(0.49, abs=0.005)
    assert untied.kv_bytes_per_token == tied.kv_bytes_per_token


def test_a_tie_that_is_not_stated_is_taken_as_untied_and_reported_as_assumed() -> None:
    silent = parse_config(without(LLAMA_3_2_1B, "tie_word_embeddings"))
    assert silent.parameters == 1_235_814_400 + 128_256 * 2048
    assert silent.assumed == (("model.config.tie_word_embeddings", False),)
    assert parse_config(LLAMA_3_2_1B).assumed == ()


def test_attention_biases_are_counted_where_the_family_reads_them() -> None:
    # Per layer: 32 · 128 for q, 2 · 8 · 128 for k and v, 4096 for the output.
    biased = parse_config(changed(LLAMA_3_1_8B, attention_bias=True))
    assert biased.parameters == 8_030_261_248 + 32 * (4096 + 2048 + 4096)
    # Mistral's class has no such bias, whatever its config says.
    assert parse_config(changed(MISTRAL_SMALL_24B, attention_bias=True)).parameters == 23_572_403_200


def test_biases_of_an_mlp_are_counted() -> None:
    # Per layer: 14,336 for gate and for up, 4,096 for down.
    assert parse_config(changed(LLAMA_3_1_8B, mlp_bias=True)).parameters == 8_030_261_248 + 32 * (2 * 14336 + 4096)


def test_the_result_carries_name_shape_and_context() -> None:
    model = parse_config(QWEN3_4B, name="Qwen/Qwen3-4B")
    assert (model.name, model.num_layers, model.hidden_size, model.max_model_len) == ("Qwen/Qwen3-4B", 36, 2560, 40960)
    assert parse_config(QWEN3_4B).name is None


def test_keys_that_size_nothing_are_ignored() -> None:
    noisy = changed(QWEN3_4B, architectures=["Qwen3ForCausalLM"], rope_theta=1e6, torch_dtype="bfloat16", x={"y": [1]})
    assert parse_config(noisy) == parse_config(QWEN3_4B)


def test_the_config_is_left_as_it_was() -> None:
    config = deepcopy(QWEN3_4B)
    parse_config(config)
    assert config == QWEN3_4B


# --- what cannot be read ---


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("drop", [True, False], ids=["missing", "null"])
def test_a_missing_dimension_is_named_and_never_defaulted(key: str, drop: bool) -> None:
    config = without(QWEN3_4B, key) if drop else changed(QWEN3_4B, **{key: None})
    with pytest.raises(UnsupportedModelError, match="must name this dimension; add it") as caught:
        parse_config(config)
    assert caught.value.path == key


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n_layer", "num_hidden_layers"),
        ("n_layers", "num_hidden_layers"),
        ("num_layers", "num_hidden_layers"),
        ("n_embd", "hidden_size"),
        ("d_model", "hidden_size"),
        ("n_head", "num_attention_heads"),
        ("n_heads", "num_attention_heads"),
    ],
)
def test_an_old_spelling_is_refused_naming_what_is_missing_and_what_to_rename(old: str, new: str) -> None:
    config = changed(without(LLAMA_3_1_8B, new), **{old: LLAMA_3_1_8B[new]})
    with pytest.raises(UnsupportedModelError, match=f"^{new}: .*rename {old}$") as caught:
        parse_config(config)
    assert caught.value.path == new


def test_old_spellings_are_read_in_the_families_whose_class_knows_them() -> None:
    model = parse_config(GPT_J_6B)
    # 28 layers of q, k, v, o (4 · 4096²), two MLP matrices (2 · 4096 · 16384) with biases 16384 + 4096 and one norm
    # of 2 · 4096; two embeddings of 50,400, the head's bias and the last norm.
    layer = 4 * 4096**2 + 2 * 4096 * 16384 + 16384 + 4096 + 2 * 4096
    assert model.parameters == 28 * layer + 2 * 50400 * 4096 + 50400 + 2 * 4096 == 6_050_882_784
    assert (model.num_layers, model.hidden_size, model.max_model_len) == (28, 4096, 2048)
    # 2 · 28 · 16 · 256 · 2 bytes.
    assert model.kv_bytes_per_token == 458_752
    assert ("model.config.n_inner", 16384) in model.assumed


def test_multi_query_is_one_key_value_head() -> None:
    # 2 · 40 · 1 · 128 · 2 bytes, and 48 heads without it.
    assert parse_config(STARCODER).kv_bytes_per_token == 20_480
    assert parse_config(changed(STARCODER, multi_query=False)).kv_bytes_per_token == 48 * 20_480
    silent = parse_config(without(STARCODER, "multi_query"))
    assert silent.kv_bytes_per_token == 20_480
    assert ("model.config.multi_query", True) in silent.assumed


@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_layer", "n_positions", "vocab_size"])
def test_a_missing_dimension_of_old_spelling_is_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match="must name this dimension") as caught:
        parse_config(without(GPT_J_6B, key))
    today = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    assert caught.value.path == {**today, "n_positions": "max_position_embeddings"}.get(key, key)


def test_two_spellings_of_one_dimension_must_agree() -> None:
    assert parse_config(changed(GPT_J_6B, hidden_size=4096)).hidden_size == 4096
    with pytest.raises(UnsupportedModelError, match="hidden_size and n_embd are one dimension with two values"):
        parse_config(changed(GPT_J_6B, hidden_size=2048))


@pytest.mark.parametrize("family", ["resnet", "LLAMA", "", None])
def test_an_unknown_family_is_told_some_that_are_read(family: object) -> None:
    with pytest.raises(UnsupportedModelError, match="families such as llama, mistral, qwen2") as caught:
        parse_config(changed(LLAMA_3_1_8B, model_type=family))
    assert caught.value.path == "model_type"


def test_an_unknown_family_of_old_spellings_gets_a_hint() -> None:
    with pytest.raises(UnsupportedModelError, match="n_layer is an old spelling of num_hidden_layers"):
        parse_config(changed(GPT_J_6B, model_type="gpt-unheard-of"))


@pytest.mark.parametrize("family", [5, True, ["llama"], {"llama": 1}])
def test_a_family_that_is_no_word_is_refused(family: object) -> None:
    with pytest.raises(UnsupportedModelError, match="give a string") as caught:
        parse_config(changed(LLAMA_3_1_8B, model_type=family))
    assert caught.value.path == "model_type"


def test_an_empty_config_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="model_type"):
        parse_config({})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("num_experts", 128, "mixture of experts"),
        ("num_local_experts", 8, "mixture of experts"),
        ("n_routed_experts", 256, "mixture of experts"),
        ("moe_intermediate_size", 768, "mixture of experts"),
        ("kv_lora_rank", 512, "multi-head latent attention"),
        ("ssm_cfg", {"layer": "Mamba2"}, "state-space layers"),
        ("mamba_d_state", 256, "state-space layers"),
        ("linear_num_key_heads", 16, "linear-attention layers"),
        ("full_attention_interval", 4, "linear-attention layers"),
        ("cross_attention_layers", [3, 8, 13], "cross-attention layers"),
    ],
)
def test_another_architecture_is_refused_with_its_reason(key: str, value: object, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        parse_config(changed(QWEN3_4B, **{key: value}))
    assert caught.value.path == key
    assert "give the four numbers instead" in str(caught.value)


@pytest.mark.parametrize("off", [None, 0, False, {}, []])
def test_a_key_of_another_architecture_that_is_switched_off_is_no_reason_to_refuse(off: object) -> None:
    config = changed(QWEN3_4B, num_experts=off, quantization_config=off, vision_config=off)
    assert parse_config(config) == parse_config(QWEN3_4B)


# --- wrong values ---

NO_DIMENSION = [True, False, 0, -1, -4096, 1.0, 4096.5, float("nan"), float("inf"), "4096", "", [], [8], {}, {"a": 1}]


@pytest.mark.parametrize("key", [*REQUIRED, "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [*NO_DIMENSION, 10**12, 10**400, -(10**400)], ids=repr)
def test_what_is_no_dimension_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_config(changed(QWEN3_4B, **{key: value}))
    assert caught.value.path == key
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
@pytest.mark.parametrize("value", [0, 1, "true", "", 1.0, float("nan"), [], {}], ids=repr)
def test_what_is_no_switch_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match="true or false") as caught:
        parse_config(changed(LLAMA_3_1_8B, **{key: value}))
    assert caught.value.path == key


@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_a_null_switch_is_off(key: str) -> None:
    assert parse_config(changed(LLAMA_3_1_8B, **{key: None})).parameters == 8_030_261_248


def test_dimensions_that_are_possible_one_by_one_but_not_together_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="weight_gb"):
        parse_config(changed(LLAMA_3_1_8B, hidden_size=1_000_000, num_hidden_layers=1000, head_dim=128))
    with pytest.raises(InvalidInputError, match="kv_bytes_per_token"):
        parse_config(changed(LLAMA_3_1_8B, head_dim=100_000))


# --- sliding windows ---


@pytest.mark.parametrize(
    "config",
    [
        QWEN2_5_7B,
        # Off, although smaller than the context.
        changed(QWEN2_5_7B, sliding_window=4096),
        # In force, but as long as the context.
        changed(QWEN2_5_7B, use_sliding_window=True, max_window_layers=0),
        changed(MISTRAL_SMALL_24B, sliding_window=32768),
        MISTRAL_SMALL_24B,
        without(MISTRAL_SMALL_24B, "sliding_window"),
    ],
)
def test_a_window_that_never_cuts_is_full_attention(config: dict[str, Any]) -> None:
    assert parse_config(config).max_model_len == 32768


def test_a_window_below_the_context_is_kept_in_the_cache_and_no_more() -> None:
    # As in mistralai/Mistral-7B-v0.1: 2 · 40 · 8 · 128 · 2 = 163,840 bytes per token until the window is full.
    read = read_architecture(changed(MISTRAL_SMALL_24B, sliding_window=4096))
    assert (read.kind, read.kv_bytes_per_token) == ("sliding", 163_840)
    assert read.kv_bytes_at(4096) == read.kv_bytes_at(32768) == 4096 * 163_840
    assert read.kv_bytes_at(1) == 163_840


def test_qwen_slides_from_max_window_layers_on() -> None:
    slides = changed(QWEN2_5_7B, sliding_window=4096, use_sliding_window=True)
    read = read_architecture(changed(slides, max_window_layers=20))
    # 2 · 4 KV heads · 128 · 2 bytes a layer; 8 of 28 layers slide.
    assert read.kv_bytes_at(10_000) == 2048 * (20 * 10_000 + 8 * 4096)
    with pytest.raises(UnsupportedModelError, match="max_window_layers"):
        parse_config(slides)


@pytest.mark.parametrize("window", [*NO_DIMENSION, 10**400], ids=repr)
def test_what_is_no_window_is_refused_by_name(window: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_config(changed(MISTRAL_SMALL_24B, sliding_window=window))
    assert caught.value.path == "sliding_window"


# --- any JSON at all ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(10**12, 10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLAUSIBLE = st.sampled_from([1, 2, 7, 8, 32, 64, 128, 1024, 4096, 100_000, 1_000_000, "qwen2", "llama", "olmo2", True])
KEYS = [
    *QWEN3_4B,
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "quantization_config",
    "num_experts",
    "text_config",
    "n_layer",
    "rope_scaling",
]


def model_or_refusal(config: dict[str, Any]) -> ModelArch | InvalidInputError:
    """What parse_config says; any other error is the test's failure."""
    try:
        return parse_config(config)
    except InvalidInputError as error:
        return error


@settings(deadline=None, max_examples=400)
@given(
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
    replaced=st.dictionaries(st.sampled_from(KEYS), JSON | PLAUSIBLE, max_size=3),
)
def test_any_config_gives_a_model_or_a_refusal(dropped: set[str], replaced: dict[str, Any]) -> None:
    config = {**without(QWEN3_4B, *dropped), **replaced}
    outcome = model_or_refusal(config)
    if isinstance(outcome, InvalidInputError):
        assert outcome.path.partition(".")[0] in {*KEYS, "weight_gb", "kv_bytes_per_token", "max_window_layers"}
        assert outcome.remedy
        assert len(str(outcome)) < 300
    elif not isinstance(config.get("text_config"), dict):
        # 2 · layers · KV heads · head_dim · 2 bytes.
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        assert outcome.kv_bytes_per_token == 4 * config["num_hidden_layers"] * kv_heads * head_dim
        assert 0.001 <= outcome.weight_gb <= 10_000


# A Qwen2.5-7B-Instruct config.json with the scaling that its model card tells long-context users to add.
ROPE = {**QWEN2_5_7B, "max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 32768),
        ({"rope_type": "default"}, 32768),
        ({"rope_type": "llama3", "factor": 8.0}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192}, 16384),
        ({"type": "linear", "factor": 2.0}, 65536),
        ({"rope_type": "longrope", "long_factor": [1.0]}, 32768),
    ],
)
def test_the_context_is_what_the_engine_derives_from_the_rope_scaling(scaling: object, context: int) -> None:
    assert parse_config({**ROPE, "rope_scaling": scaling}).max_model_len == context


def test_longrope_starts_with_the_original_context() -> None:
    # microsoft/Phi-3.5-mini-instruct: 131,072 positions, of which 4,096 are original.
    scaling = {"type": "longrope", "long_factor": [1.0]}
    config = {**ROPE, "rope_scaling": scaling, "original_max_position_embeddings": 4096}
    assert parse_config(config).max_model_len == 4096


@pytest.mark.parametrize(
    "scaling", ["yarn", {"rope_type": "mystery"}, {"type": "yarn", "factor": 4.0}, {"type": "linear"}, {"type": 3}]
)
def test_a_scaling_that_cannot_be_read_is_refused(scaling: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_config({**ROPE, "rope_scaling": scaling})
