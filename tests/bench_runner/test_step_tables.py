import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_runner import step_table_generator as generator
from bench_runner.step_time import DENSE_TABLES_PATHS, STEP_TABLES_PATH, load_step_tables
from service.domain.catalogue import CATALOGUE, model_by_name
from service.domain.errors import ArtefactError, UnsupportedModelError
from service.domain.reference import REFERENCE_MODELS

SYSTEMS = ("b200_sxm", "h200_sxm", "h100_sxm")
CONFIGS = {entry.name: entry.config for entry in CATALOGUE}
CONTENTS: dict[str, Any] = {system: json.loads(path.read_bytes()) for system, path in DENSE_TABLES_PATHS.items()}
MODELS = tuple(CONTENTS["b200_sxm"]["models"])
SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
}


def test_three_systems_hold_the_same_models() -> None:
    assert tuple(CONTENTS) == SYSTEMS
    assert all(tuple(content["models"]) == MODELS for content in CONTENTS.values())


def test_the_models_are_sixteen_or_more_of_six_or_more_families_from_half_a_billion_to_34_billion_parameters() -> None:
    sizes = [model_by_name(model).parameters or 0 for model in MODELS]
    assert len(MODELS) >= 16
    assert len({CONFIGS[model]["model_type"] for model in MODELS}) >= 6
    assert len({model.split("/")[0] for model in MODELS}) >= 6
    assert 0.4e9 < min(sizes) < 0.6e9
    assert 30e9 < max(sizes) < 35e9


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_wide_file_names_its_source_and_licence_and_stays_small(system: str) -> None:
    assert CONTENTS[system]["system"] == system
    assert CONTENTS[system]["source"] == "aiconfigurator-core 0.12.0, vllm 0.24.0 kernels"
    assert CONTENTS[system]["licence"] == "Apache-2.0 (aiconfigurator-core)"
    assert DENSE_TABLES_PATHS[system].stat().st_size < 2_000_000


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_wide_tables_load_as_positive_times_of_the_grid_s_shape(system: str) -> None:
    tables = load_step_tables(system=system)
    assert tables.system == system
    assert tables.sha256 == sha256(DENSE_TABLES_PATHS[system].read_bytes()).hexdigest()
    for model in MODELS:
        table = tables.of(model)
        assert len(table.dense_ms) == 16384 + 1
        assert len(table.head_ms) == 1024 + 1
        assert table.context_ms.shape == (len(table.context_new), len(table.context_past))
        assert table.generation_ms.shape == (len(table.generation_sequences), len(table.generation_context))
        for times in (table.dense_ms, table.head_ms, table.context_ms, table.generation_ms):
            assert np.isfinite(times).all()
            assert (times > 0).all()


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("model", MODELS)
def test_more_work_takes_longer(system: str, model: str) -> None:
    """Kernels switch their tiling below 512 tokens, so there only the ends are ordered; 2 % is their noise above."""
    table = load_step_tables(system=system).of(model)
    large = table.dense_ms[512:]
    assert (large >= 0.98 * np.maximum.accumulate(large)).all()
    assert table.dense_ms[16384] > 4 * table.dense_ms[2048] > 4 * table.dense_ms[256]
    # A prompt of 16,384 after nothing and a decode of 1,024 sequences at 32,768, against a tenth or less of the work.
    assert table.context_ms[-1, 0] > table.context_ms[list(table.context_new).index(1024), 0]
    assert table.generation_ms[-1, -1] > 5 * table.generation_ms[list(table.generation_sequences).index(64), -1]


@pytest.mark.parametrize("model", MODELS)
def test_a_hopper_gpu_is_slower_than_a_b200_on_large_gemms(model: str) -> None:
    """Dense bf16 peaks: B200 2,250 TFLOP/s, H100 and H200 989: a factor 2.3 at most where only they count."""
    b200, h200, h100 = (load_step_tables(system=system).of(model).dense_ms[1024:] for system in SYSTEMS)
    for hopper in (h100, h200):
        assert (hopper > 1.4 * b200).all()
        assert (hopper < 2.5 * b200).all()


@pytest.mark.parametrize("model", MODELS)
def test_the_gpu_with_less_memory_bandwidth_decodes_large_batches_slower(model: str) -> None:
    """B200 7.7, H200 4.8, H100 3.35 TB/s."""
    b200, h200, h100 = (load_step_tables(system=system).of(model).generation_ms[-1, -1] for system in SYSTEMS)
    assert b200 < h200 < h100


@pytest.mark.parametrize("model", REFERENCE_MODELS)
def test_the_wide_table_of_the_b200_repeats_the_reference_table(model: str) -> None:
    reference = json.loads(STEP_TABLES_PATH.read_bytes())
    assert CONTENTS["b200_sxm"]["grid"] == reference["grid"]
    assert CONTENTS["b200_sxm"]["models"][model] == reference["models"][model]


def test_the_reference_tables_are_the_file_that_the_committed_cells_name() -> None:
    tables = load_step_tables()
    assert tables.sha256 == "8e3b9a47372678f07b7740b07e49ff28f2b6a617323debb4e17d4fb830ec7704"
    assert set(tables.by_model) == set(REFERENCE_MODELS)


def test_a_system_without_tables_is_refused_with_the_list_of_those_that_have_some() -> None:
    with pytest.raises(ArtefactError, match=r"'a100_sxm'; there are b200_sxm, h200_sxm, h100_sxm"):
        load_step_tables(system="a100_sxm")


def test_a_file_of_another_system_is_refused() -> None:
    with pytest.raises(ArtefactError, match=r"dense_h100_sxm\.json: tables of 'h100_sxm', not of 'b200_sxm'"):
        load_step_tables(DENSE_TABLES_PATHS["h100_sxm"], system="b200_sxm")


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_files_say_which_models_are_outside_the_measurements(system: str) -> None:
    notes = {name: generator.pricing(CONFIGS[name]) for name in MODELS}
    keys = ("priced_as", "attention_between")
    written = CONTENTS[system]["models"]
    assert {name: {key: written[name][key] for key in keys if key in written[name]} for name in MODELS} == notes
    assert {name: note["priced_as"] for name, note in notes.items() if "priced_as" in note} == {
        "mistralai/Mistral-7B-Instruct-v0.3": "LlamaForCausalLM",
        "allenai/OLMo-2-7B": "Qwen3ForCausalLM",
        "allenai/OLMo-2-32B": "Qwen3ForCausalLM",
        "microsoft/Phi-3.5-mini-instruct": "LlamaForCausalLM",
    }
    # head_dim 96 is half way from 64 to 128; every other model is measured where it is.
    assert [name for name, note in notes.items() if "attention_between" in note] == ["microsoft/Phi-3.5-mini-instruct"]
    assert notes["microsoft/Phi-3.5-mini-instruct"]["attention_between"] == [
        {"kv_heads": 32, "head_dim": 64, "weight": 0.5},
        {"kv_heads": 32, "head_dim": 128, "weight": 0.5},
    ]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "expected"),
    [
        (32, 8, 128, {(8, 128): 1.0}),
        (32, 32, 64, {(32, 64): 1.0}),
        (9, 3, 64, {(2, 64): 0.5, (4, 64): 0.5}),
        (40, 16, 128, {(8, 128): 0.75, (40, 128): 0.25}),
        (12, 4, 256, {(4, 256): 1.0}),
        (8, 3, 96, {(2, 64): 0.25, (2, 128): 0.25, (4, 64): 0.25, (4, 128): 0.25}),
        (8, 8, 32, {(8, 64): 1.0}),
    ],
)
def test_attention_between_measured_shapes_is_weighted_by_distance(
    heads: int, kv_heads: int, head_dim: int, expected: dict[tuple[int, int], float]
) -> None:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    assert generator.attention_weights(shape) == expected


def test_a_head_dim_above_the_measured_ones_is_refused() -> None:
    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 256}
    with pytest.raises(UnsupportedModelError, match="with 8 KV heads attention is measured up to head_dim 128"):
        generator.attention_weights(shape)


def test_the_tool_is_given_every_dimension_that_a_config_leaves_out() -> None:
    bare = {key: value for key, value in SMOL.items() if key != "num_key_value_heads"}
    shape = generator.tool_shape({**bare, "head_dim": None, "num_experts": 0})
    assert (shape["num_key_value_heads"], shape["head_dim"]) == (9, 64)
    assert "num_experts" not in shape


def test_a_config_is_read_from_a_file_or_its_folder_beside_catalogue_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    files = [("folder", tmp_path), ("file", tmp_path / "config.json")]
    assert list(generator.wanted_configs(names=["Qwen/Qwen3-8B"], files=files)) == ["Qwen/Qwen3-8B", "folder", "file"]
    assert tuple(generator.wanted_configs(names=[], files=[])) == REFERENCE_MODELS
    assert tuple(generator.catalogue_models()) == MODELS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "mixtral"}, "model_type: 'mixtral' cannot be used"),
        ({"num_local_experts": 8}, "a mixture of experts cannot be sized for this family"),
        ({"sliding_window": 128}, "windows and quantised weights have no price"),
        ({"quantization_config": {"quant_method": "fp8"}}, "windows and quantised weights have no price"),
        ({"head_dim": 512}, "attention is measured up to head_dim 256"),
        (None, "cannot be read as JSON"),
    ],
)
def test_a_config_that_cannot_be_priced_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any] | None, reason: str
) -> None:
    config, output = tmp_path / "config.json", tmp_path / "tables.json"
    config.write_text("{" if change is None else json.dumps(SMOL | change))
    assert generator.main(["--config", str(config), "--name", "x", "--output", str(output)]) == 1
    message = capsys.readouterr().err
    assert reason in message
    assert message.count("\n") == 1
    assert not output.exists()


def test_a_model_outside_the_catalogue_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--model", "nobody/nothing", "--output", "unused"]) == 1
    assert capsys.readouterr().err.startswith("--model: 'nobody/nothing' cannot be used; known: Qwen/Qwen3-0.6B")
