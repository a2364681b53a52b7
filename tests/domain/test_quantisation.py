"""Bytes of quantised weights, module by module, by hand."""

from typing import Any

import pytest

from service.domain.architecture import Architecture
from service.domain.config_section import Notes, Section
from service.domain.errors import InvalidInputError, UnsupportedModelError
from service.domain.model_config import parse_config, read_architecture
from service.domain.module_pattern import read_names
from tests.domain.reduced_configs import DEEPSEEK_V4, GPT_OSS, QWEN3_5_MOE, Config

# Two layers, so that names of layers matter: per layer q 512·256, k and v 128·256, o 256·512, gate, up, down 256·768.
SMALL: Config = {
    "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "vocab_size": 1000,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
ATTENTION = 512 * 256 + 2 * 128 * 256 + 256 * 512
MLP = 3 * 256 * 768
LINEAR = 2 * (ATTENTION + MLP)
# Two embeddings of 1000 · 256, five norms of 256, and q_norm and k_norm of 64 in each layer.
REST = 2 * 1000 * 256 + 5 * 256 + 2 * 2 * 64
ROWS = 2 * (512 + 2 * 128 + 256 + 2 * 768 + 256)


def quantised(**quantisation: Any) -> Architecture:
    return read_architecture({**SMALL, "quantization_config": quantisation})


def test_unquantised_weights_are_two_bytes_each() -> None:
    read = read_architecture(SMALL)
    assert read.parameters == LINEAR + REST
    assert (read.weight_bytes, read.quantisation) == (2 * (LINEAR + REST), None)


@pytest.mark.parametrize(
    ("quantisation", "scales"),
    [
        # One 32-bit scale for each block of 128 x 128, one for each row, one for each of 14 matrices.
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 4 * LINEAR // 128**2),
        ({"quant_method": "fbgemm_fp8"}, 4 * ROWS),
        ({"quant_method": "fp8"}, 4 * 14),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 4 * 14),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, 4 * 14),
    ],
    ids=["blocks", "rows", "matrices", "modelopt", "algorithm alone"],
)
def test_eight_bit_floats_take_a_byte_and_their_scales(quantisation: dict[str, Any], scales: int) -> None:
    read = quantised(**quantisation)
    assert read.weight_bytes == LINEAR + scales + 2 * REST
    assert read.parameters == LINEAR + REST


@pytest.mark.parametrize(
    ("quantisation", "bits_per_weight"),
    [
        # Groups of 128 share a 16-bit scale and, in these two, a zero point of 4 bits.
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4 + 20 / 128),
        ({"quant_method": "gptq_marlin", "bits": 8, "group_size": 64}, 8 + 24 / 64),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, 4 + 16 / 64),
        # Sixteen share an 8-bit scale; thirty-two do.
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4 + 8 / 16),
        ({"quant_method": "modelopt", "quant_algo": "MXFP4"}, 4 + 8 / 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 32 / 64),
    ],
    ids=["awq", "gptq", "gptq 8", "old awq", "nvfp4", "mxfp4", "bitsandbytes"],
)
def test_groups_of_weights_share_a_scale(quantisation: dict[str, Any], bits_per_weight: float) -> None:
    assert quantised(**quantisation).weight_bytes == LINEAR * bits_per_weight / 8 + 2 * REST


@pytest.mark.parametrize(
    ("weights", "bits_per_weight"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, 4 + 16 / 128),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, 4 + 20 / 32),
        ({"num_bits": 4, "type": "float", "group_size": 16}, 4 + 8 / 16),
        ({"num_bits": 4, "type": "float", "group_size": 32}, 4 + 8 / 32),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 64]}, 8 + 32 / 64**2),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "64x128"}, 8 + 32 / (64 * 128)),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": None}, 8 + 32 / 128**2),
    ],
    ids=["w4a16", "asymmetric", "nvfp4", "mxfp4", "blocks", "blocks in words", "blocks of no size"],
)
def test_groups_of_compressed_tensors(weights: dict[str, Any], bits_per_weight: float) -> None:
    read = quantised(
        quant_method="compressed-tensors", config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}
    )
    assert read.weight_bytes == LINEAR * bits_per_weight / 8 + 2 * REST


@pytest.mark.parametrize("targets", [["Linear"], ["Linear", "re:.*down_proj"], ["Embedding", "Linear"]])
@pytest.mark.parametrize("size", [{}, {"group_size": None}, {"group_size": -1}])
def test_channels_of_compressed_tensors_have_a_16_bit_scale(targets: list[str], size: dict[str, int | None]) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", **size}
    read = quantised(quant_method="compressed-tensors", config_groups={"g": {"targets": targets, "weights": weights}})
    assert read.weight_bytes == LINEAR + 2 * ROWS + 2 * REST


@pytest.mark.parametrize(
    ("ignored", "kept"),
    [
        (["lm_head"], 0),
        (["model.layers.0.self_attn"], ATTENTION),
        (["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.o_proj"], 2 * 512 * 256),
        (["model.layers.*.self_attn"], 2 * ATTENTION),
        (["model.layers.0*"], ATTENTION + MLP),
        (["model.language_model.layers.0.mlp*"], MLP),
        (["language_model.model.layers.1.*"], ATTENTION + MLP),
        (["layers.0.ffn"], MLP),
        (["*.attn.*"], 2 * ATTENTION),
        (["down_proj"], 2 * 256 * 768),
        (["re:.*self_attn.*"], 2 * ATTENTION),
        (["re:.*mlp\\.(gate|up)_proj.*"], 2 * 2 * 256 * 768),
        (["re:model\\.layers\\.\\d+\\.mlp\\.down_proj$"], 2 * 256 * 768),
        (["model.layers.7.mlp", "visual.blocks.0"], 0),
    ],
)
def test_modules_that_a_config_leaves_out_stay_in_16_bits(ignored: list[str], kept: int) -> None:
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        read = quantised(quant_method="modelopt", quant_algo="NVFP4", **{key: ignored})
        assert read.weight_bytes == (LINEAR - kept) * 4.5 / 8 + 2 * (REST + kept)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
FOUR, EIGHT = (4 + 20 / 128) / 8, (8 + 24 / 128) / 8


@pytest.mark.parametrize(
    ("dynamic", "kept", "in_eight"),
    [
        ({"-:.*attn.*": {}, "-:.*shared_expert.*": {}, "lm_head": {}}, 2 * ATTENTION, 0),
        ({r"-:model\.layers\.0\.mlp": {}}, MLP, 0),
        ({r"-:.*\.(?:[1-9]|1[0-5])\..*": {}}, ATTENTION + MLP, 0),
        ({r"+:.*\.1\..*down_proj": {"bits": 8}}, 0, 256 * 768),
        # The first pattern that matches decides.
        ({r".*\.(0|7)\.mlp": {"bits": 8}, "-:.*mlp": {}}, MLP, MLP),
        # Neither pattern matches the beginning of a name.
        ({"-:mlp": {}, "attn": {"bits": 8}}, 0, 0),
    ],
)
def test_gptq_says_by_pattern_which_modules_differ(dynamic: dict[str, Any], kept: int, in_eight: int) -> None:
    read = quantised(**GPTQ, dynamic=dynamic)
    in_four = LINEAR - kept - in_eight
    assert read.weight_bytes == in_four * FOUR + in_eight * EIGHT + 2 * (kept + REST)
    assert not read.warnings


def test_gptq_patterns_in_turn_are_one_rule_and_rules_are_bounded() -> None:
    same = {f"+:model.layers.{layer}.mlp": {"bits": 8} for layer in range(300)}
    assert quantised(**GPTQ, dynamic=same).weight_bytes == 2 * ATTENTION * FOUR + 2 * MLP * EIGHT + 2 * REST
    turns = {f"+:model.layers.{layer}.mlp": {"bits": 4 + 4 * (layer % 2)} for layer in range(17)}
    with pytest.raises(UnsupportedModelError, match="at most 16 times") as caught:
        quantised(**GPTQ, dynamic=turns)
    assert caught.value.path == "quantization_config.dynamic.+:model.layers.16.mlp"


def test_a_gptq_pattern_that_cannot_be_read_counts_in_16_bits_and_says_so() -> None:
    read = quantised(**GPTQ, dynamic={"-:.*down_proj": {}, "+:(?!x).*": {"bits": 8}})
    assert read.weight_bytes == 2 * (LINEAR + REST)
    assert [warning for warning in read.warnings if "quantization_config.dynamic: a pattern" in warning]


@pytest.mark.parametrize(
    ("listed", "in_four"),
    [
        ([["self_attn.q_proj", "self_attn.o_proj"], ["mlp.down_proj"]], 2 * (2 * 512 * 256 + 256 * 768)),
        (["model.layers.1.mlp.up_proj"], 256 * 768),
        ([], LINEAR),
    ],
)
def test_gptq_quantises_the_listed_modules_of_a_block_alone(listed: list[Any], in_four: int) -> None:
    read = quantised(**GPTQ, modules_in_block_to_quantize=listed)
    assert read.weight_bytes == in_four * FOUR + 2 * (LINEAR - in_four + REST)


def test_a_quantised_head_is_a_head_of_few_bits() -> None:
    head = 1000 * 256
    assert quantised(**GPTQ, lm_head=True).weight_bytes == (LINEAR + head) * FOUR + 2 * (REST - head)


def test_groups_with_targets_of_their_own_come_before_the_general_one() -> None:
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    four = {"num_bits": 4, "type": "float", "group_size": 16}
    read = quantised(
        quant_method="modelopt",
        quant_algo="MIXED_PRECISION",
        config_groups={
            "a": {"targets": ["Linear"], "weights": four},
            "b": {"targets": ["re:.*self_attn.*"], "weights": eight},
        },
    )
    rows = 2 * (512 + 2 * 128 + 256)
    assert read.weight_bytes == 2 * MLP * 4.5 / 8 + 2 * ATTENTION + 2 * rows + 2 * REST
    assert read.quantisation == "modelopt (fp8/nvfp4)"


def test_layers_that_are_listed_with_a_format_each() -> None:
    listed = {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "W4A16_NVFP4"}}
    read = quantised(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=listed)
    down, head = 256 * 768, 1000 * 256
    assert read.weight_bytes == down + 4 + head * 4.5 / 8 + 2 * (LINEAR + REST - down - head)


def test_mxfp4_is_for_experts_alone() -> None:
    read = read_architecture(GPT_OSS)
    experts = 36 * 128 * 3 * 2880 * 2880
    assert read.weight_bytes == experts * 4.25 / 8 + 2 * (read.parameters - experts)
    # openai/gpt-oss-120b: the published checkpoint has 60.8 GiB = 65.2 GB.
    assert read.weight_bytes == pytest.approx(65.2e9, rel=0.005)


def test_experts_of_fewer_bits_among_eight_bit_layers() -> None:
    read = read_architecture(DEEPSEEK_V4)
    assert read.quantisation == "fp8 (mxfp4/fp8)"
    eight = read_architecture({key: value for key, value in DEEPSEEK_V4.items() if key != "expert_dtype"})
    experts = 43 * 256 * 3 * 4096 * 2048
    # A byte and 4 / 128² against 4.25 bits.
    assert eight.weight_bytes - read.weight_bytes == pytest.approx(experts * (1 + 4 / 128**2 - 4.25 / 8))


def test_norms_routers_and_encoders_are_not_quantised() -> None:
    plain = read_architecture(QWEN3_5_MOE)
    read = read_architecture({**QWEN3_5_MOE, "quantization_config": {"quant_method": "fp8"}})
    text = QWEN3_5_MOE["text_config"]
    encoder = plain.parameters - 34_660_610_688
    at_least = 2 * (encoder + 40 * 256 * text["hidden_size"] + 2 * text["vocab_size"] * text["hidden_size"])
    assert read.weight_bytes > plain.parameters + at_least / 2


def test_an_unknown_method_is_counted_as_16_bits_and_says_so() -> None:
    read = quantised(quant_method="quark-of-tomorrow", bits=2)
    assert read.weight_bytes == 2 * (LINEAR + REST)
    assert read.quantisation == "quark-of-tomorrow"
    assert any("'quark-of-tomorrow' is not known" in warning for warning in read.warnings)


def test_quantised_weights_change_nothing_about_the_cache() -> None:
    # Two layers of 2 KV heads of 64: 2 · 2 · 2 · 64 · 2 bytes.
    assert read_architecture(SMALL).kv_bytes_per_token == 1024
    read = quantised(quant_method="modelopt", quant_algo="FP8", kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert read.kv_bytes_per_token == 1024
    assert any("--kv-cache-dtype" in warning for warning in read.warnings)


@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
def test_the_method_may_stand_beside_the_decoder_or_at_the_top(place: str) -> None:
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    top = read_architecture({"text_config": SMALL, place: method})
    beside = read_architecture({"text_config": {**SMALL, place: method}})
    assert top.weight_bytes == beside.weight_bytes == quantised(**method).weight_bytes


@pytest.mark.parametrize("off", [None, {}, False, 0])
def test_a_method_that_is_switched_off_is_none(off: object) -> None:
    assert read_architecture({**SMALL, "quantization_config": off}).quantisation is None


@pytest.mark.parametrize(
    ("quantisation", "path"),
    [
        ({"bits": 4}, "quant_method"),
        ({"quant_method": 4}, "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size.[0]"),
        ({"quant_method": "awq", "group_size": 128}, "w_bit"),
        ({"quant_method": "awq", "bits": 7, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 4}, "q_group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -2}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"lm_head": 8}}, "dynamic.lm_head"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*mlp.*": {"bits": 7}}},
         "dynamic.+:.*mlp.*.bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": [["q_proj"], 5]},
         "modules_in_block_to_quantize[1]"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore"),
        ({"quant_method": "fp8", "ignore": ["lm_head", 5]}, "ignore[1]"),
        ({"quant_method": "fp8", "ignore": ["x*" * 200]}, "ignore[0]"),
        ({"quant_method": "fp8", "ignore": [f"*.{i}" for i in range(500)]}, "ignore"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED", "quantized_layers": {"lm_head": {}}},
         "quantized_layers.lm_head"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_its_whole_path(quantisation: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        quantised(**quantisation)
    assert caught.value.path == f"quantization_config.{path}"
    assert len(str(caught.value)) < 300


def test_patterns_are_bounded_over_all_lists_and_alternatives() -> None:
    groups = {
        f"g{i}": {"targets": [f"*.{i}.{j}" for j in "abcdefghij"], "weights": {"num_bits": 8, "type": "int"}}
        for i in "abcdefghij"
    }
    with pytest.raises(UnsupportedModelError, match="at most 64 patterns that span layers"):
        quantised(quant_method="compressed-tensors", config_groups=groups)
    with pytest.raises(UnsupportedModelError, match="at most 20,000 modules in all"):
        quantised(quant_method="fp8", ignore=[f"re:(a|b)(c|d)(e|f){i}" for i in range(3000)])


def test_a_pattern_that_could_run_for_ever_is_never_run() -> None:
    read = quantised(quant_method="fp8", ignore=["re:(a+)+$", "re:(?=x)model"])
    assert read.weight_bytes == quantised(quant_method="fp8").weight_bytes
    assert any("could not be read" in warning for warning in read.warnings)


def test_a_model_carries_its_method_and_its_warnings() -> None:
    model = parse_config({**SMALL, "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": "FP8"}})
    assert (model.kind, model.quantisation, len(model.warnings)) == ("dense", "fp8", 1)
    with pytest.raises(UnsupportedModelError):
        parse_config({**SMALL, "quantization_config": ["fp8"]})


def test_a_glob_that_ends_in_a_number_is_one_of_the_layers_that_begin_so() -> None:
    deep = {**SMALL, "num_hidden_layers": 80}
    method = {"quant_method": "modelopt", "quant_algo": "NVFP4"}

    def kept_by(*ignored: str) -> float:
        read = read_architecture({**deep, "quantization_config": {**method, "ignore": list(ignored)}})
        return (read.weight_bytes - read_architecture({**deep, "quantization_config": method}).weight_bytes) / (
            (ATTENTION + MLP) * (2 - 4.5 / 8)
        )

    # 1 and 10 to 19; and more layers by name than patterns may span layers.
    assert kept_by("model.layers.1*") == 11
    assert kept_by(*(f"model.layers.{layer}*" for layer in range(80))) == 80
    assert kept_by("model.layers.1*mlp*", "model.layers.1*attn*") == 11
    # Anywhere in a pattern a whole number is that of one layer.
    assert kept_by(*(f"*.{layer}.*" for layer in range(70))) == 70


@pytest.mark.parametrize(
    ("ignored", "remedy"),
    [
        (["re:model.*l.*l.*l.*l.*l.*l.*l.*l.*l"], "at most 9 pieces"),
        ([f"*w{number}" for number in range(17)], "at most 16 patterns with digits that span layers"),
        ([f"model.layers.1*{letter}" for letter in "abcdefghi"], "at most 8 patterns of one beginning"),
    ],
)
def test_the_work_that_patterns_make_is_bounded(ignored: list[str], remedy: str) -> None:
    with pytest.raises(UnsupportedModelError, match=remedy):
        quantised(quant_method="fp8", ignore=ignored)


def test_a_pattern_without_digits_is_compared_once_for_all_layers() -> None:
    names = read_names(Section(values={"ignore": ["*mlp.*down*"]}, notes=Notes()), ["ignore"])
    assert [name for name in (f"model.layers.{n}.mlp.{part}" for n in (0, 7, 12) for part in ("up", "down_proj"))
            if names.holds(name)] == [f"model.layers.{n}.mlp.down_proj" for n in (0, 7, 12)]  # fmt: skip
    assert names.compared == 2


def test_a_head_is_quantised_where_it_is_named_beside_the_linear_layers() -> None:
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    groups = {"a": {"targets": ["Linear", "lm_head"], "weights": weights}}
    read = quantised(quant_method="compressed-tensors", config_groups=groups)
    head = 1000 * 256
    assert read.weight_bytes == (LINEAR + head) * 4.5 / 8 + 2 * (REST - head)


def test_groups_that_quantise_nothing_say_so() -> None:
    weights = {"num_bits": 8, "type": "int"}
    groups = {"a": {"targets": ["re:.*nowhere.*"], "weights": weights}, "b": {"targets": ["Linear"]}}
    read = quantised(quant_method="compressed-tensors", config_groups=groups)
    assert read.weight_bytes == 2 * (LINEAR + REST)
    assert read.warnings == (
        "quantization_config.config_groups.b: the group names no weights, so it changes none",
        "quantization_config.config_groups.a.targets: no module is named so, so that none is counted in that format",
    )
