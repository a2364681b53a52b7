"""`python -m service inspect`: one config.json, or a folder of them against an index."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from tests.domain.reduced_configs import DEEPSEEK_V4, GEMMA3_TEXT, MIXTRAL, NEMOTRON_H, QWEN3_MOE

HEADER = "file,params_from_config,kv_bytes_per_token_bf16_incl_sliding_unsaturated,note\n"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) in (1, 2)
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four configs that can be read, two that cannot, and a file that is none."""
    place = tmp_path / "configs"
    place.mkdir()
    written(place / "mixtral.json", MIXTRAL)
    written(place / "moe.json", QWEN3_MOE)
    written(place / "gemma.json", GEMMA3_TEXT)
    written(place / "v4.json", DEEPSEEK_V4)
    written(place / "cut.json", '{"model_type": ')
    written(place / "silent.json", {key: value for key, value in MIXTRAL.items() if key != "vocab_size"})
    written(place / "notes.txt", "no config")
    return place


def test_a_model_of_the_catalogue_is_inspected_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--model", "Qwen/Qwen3-8B", "--at-tokens", "4096,40960")
    assert "parameters: 8,190,735,360\n" in text
    assert "weights: 16.381 GB in 16 bits\n" in text
    # 147,456 bytes · 4,096 tokens = 0.5625 GiB.
    assert "  at 4,096 tokens: 0.562 GiB\n" in text
    assert "2 · 36 full layers · 8 KV heads · 128 · 2 bytes = 147,456 bytes" in text


def test_a_file_and_its_folder_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "config.json", MIXTRAL)
    by_file = as_json(capsys, "--config", str(file))
    assert by_file == as_json(capsys, "--config", str(tmp_path))
    assert (by_file["kind"], by_file["parameters"]) == ("moe", 46_702_792_704)


def test_a_folder_may_hold_the_method_of_its_weights_in_a_file_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written(tmp_path / "config.json", MIXTRAL)
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    written(tmp_path / "hf_quant_config.json", beside)
    found = as_json(capsys, "--config", str(tmp_path))
    assert found["quantisation"] == "modelopt (nvfp4)"
    assert found["weight_gb"] < 30


def test_what_published_files_hold_beside_json_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = json.dumps({**NEMOTRON_H, "time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    assert as_json(capsys, "--config", str(written(tmp_path / "config.json", text)))["kind"] == "hybrid"


def test_a_config_that_cannot_be_read_is_one_line_with_the_file_and_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = {**MIXTRAL, "num_hidden_layers": "32"}
    message = failed(capsys, "--config", str(written(tmp_path / "config.json", broken)))
    assert f"{tmp_path / 'config.json'}: num_hidden_layers: '32' cannot be used" in message
    assert "no-such-file" in failed(capsys, "--config", str(tmp_path / "no-such-file"))
    assert "--config-dir" in failed(capsys, "--config", str(tmp_path), "--index", "x.csv")


@pytest.mark.parametrize("lengths", ["", "0", "4096,", "many", "-1"])
def test_lengths_are_whole_numbers(capsys: pytest.CaptureFixture[str], lengths: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", "--model", "Qwen/Qwen3-8B", f"--at-tokens={lengths}"])
    assert caught.value.code == 2
    assert "whole numbers from 1" in capsys.readouterr().err


def test_a_folder_is_a_table_with_refusals_and_a_summary(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    text = printed(capsys, "--config-dir", str(folder))
    assert "notes.txt" not in text
    assert "refused silent.json: vocab_size: None cannot be used; the config must name this dimension; add it\n" in text
    assert "refused cut.json: the body is not JSON" in text
    assert text.splitlines()[-1] == "6 files: 4 read, 2 refused"


def test_a_folder_is_compared_with_an_index(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    index = HEADER + (
        "mixtral.json,46702792704,131072,\nmoe.json,30000000000,98305,\ngemma.json,,26624,\n"
        'v4.json,,88064,"the plain formula is NOT exact"\n'
    )
    found = as_json(capsys, "--config-dir", str(folder), "--index", str(written(tmp_path / "index.csv", index)))
    rows = {row["file"]: row for row in found["files"]}
    assert (rows["mixtral.json"]["off_percent"], rows["mixtral.json"]["kv"]) == (0.0, "equal")
    # 30,532,122,624 against 30 billion.
    assert rows["moe.json"]["off_percent"] == pytest.approx(1.774, abs=0.001)
    assert rows["moe.json"]["kv"] == "differs (98,305)"
    assert (rows["gemma.json"]["off_percent"], rows["gemma.json"]["kv"]) == (None, "equal")
    assert rows["v4.json"]["kv"] == "index not exact (88,064)"
    assert found["summary"] == (
        "6 files: 4 read, 2 refused; parameters within 1 % of the index in 1 of 2; KV bytes equal in 2 of 3, "
        "1 where the index is not exact"
    )


def test_an_index_without_its_columns_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    index = written(tmp_path / "index.csv", "file,note\n")
    assert "no column 'params_from_config'" in failed(capsys, "--config-dir", str(folder), "--index", str(index))


def test_a_folder_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no-such-folder" in failed(capsys, "--config-dir", str(tmp_path / "no-such-folder"))


def test_an_operator_s_model_is_inspected_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "acme--mix.json", MIXTRAL)
    written(tmp_path / "bare.json", {"weight_gb": 1.0, "num_layers": 3, "hidden_size": 64, "kv_bytes_per_token": 1024})
    monkeypatch.setenv("MEMORYPOLICY_MODELS_DIR", str(tmp_path))
    assert as_json(capsys, "--model", "acme/mix") == as_json(capsys, "--config", str(tmp_path / "acme--mix.json"))
    assert "four numbers in the operator's folder" in failed(capsys, "--model", "bare")
    assert "--model: 'acme/mixed' cannot be used" in failed(capsys, "--model", "acme/mixed")


def test_the_folder_of_an_adapter_is_its_model_with_room_for_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    adapter = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"], "base_model_name_or_path": "Qwen/Qwen3-8B"}
    written(tmp_path / "adapter_config.json", adapter)
    found, base = (as_json(capsys, *which) for which in (("--config", str(tmp_path)), ("--model", "Qwen/Qwen3-8B")))
    assert found["parameters"] == base["parameters"]
    # 16 · (inputs + outputs of all layers) · 2 bytes: q 4096+4096, k and v 4096+1024, o 4096+4096, gate, up and down
    # 4096+12288 in 36 layers; embedding and head 4096+151936.
    widths = 36 * (2 * 8192 + 2 * 5120 + 3 * 16384) + 2 * 156_032
    assert found["weight_gb"] - base["weight_gb"] == pytest.approx(16 * widths * 2 / 1e9)
    assert any("--max-lora-rank=16" in warning for warning in found["warnings"])
    written(tmp_path / "adapter_config.json", {**adapter, "base_model_name_or_path": "nobody/nothing"})
    assert "base_model_name_or_path: 'nobody/nothing' cannot be used" in failed(capsys, "--config", str(tmp_path))
