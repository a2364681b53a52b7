"""The command line gives the API's answer, and one line where it cannot."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from tests.service.bundles import write_bundle
from tests.service.conftest import QUESTION, Client

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = [
    *("--prompt-tokens", "512", "--max-new-tokens", "256"),
    *("--shared-prefix-ratio", "0", "--concurrency", "64"),
]


@pytest.fixture(autouse=True)
def _configured(bundle_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(bundle_dir))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON that `recommend` prints."""
    assert main(["recommend", *arguments, *WORKLOAD, "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one line on stderr."""
    status = main(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return status, captured.err


def without_id(body: dict[str, Any]) -> dict[str, Any]:
    """Two answers to one question differ in their ids only."""
    return {name: value for name, value in body.items() if name != "recommendation_id"}


def test_it_prints_the_body_of_the_api(capsys: pytest.CaptureFixture[str], client: Client) -> None:
    from_api = client.recommend(QUESTION).json()
    from_cli = answer(capsys, "--model", "Qwen/Qwen3-8B", "--gpu", "NVIDIA-B200")
    assert without_id(from_cli) == without_id(from_api)


def test_every_optional_part_means_the_same_as_in_the_api(capsys: pytest.CaptureFixture[str], client: Client) -> None:
    optional = {
        "engine_version": "0.21.0",
        "slo": {"max_p95_ttft_ms": 500.0, "max_error_rate": 0.1},
        "fixed": {"max_num_seqs": 128, "enable_prefix_caching": True},
    }
    from_api = client.recommend({**QUESTION, **optional}).json()
    from_cli = answer(
        capsys,
        *("--model", "Qwen/Qwen3-8B", "--gpu", "NVIDIA-B200", "--engine-version", "0.21.0"),
        *("--max-p95-ttft-ms", "500", "--max-error-rate", "0.1"),
        *("--fixed", "max-num-seqs=128", "--fixed", "enable_prefix_caching=true"),
    )
    assert without_id(from_cli) == without_id(from_api)


def test_a_config_file_and_four_numbers_are_models_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
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
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    numbers = ["--weight-gb", "16.38147072", "--num-layers", "36", "--hidden-size", "4096"]
    by_name = answer(capsys, "--model", "Qwen/Qwen3-8B")["ranked"]
    assert answer(capsys, "--config", str(path))["ranked"] == by_name
    assert answer(capsys, *numbers, "--kv-bytes-per-token", "147456")["ranked"] == by_name


def test_without_json_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--model", "Qwen/Qwen3-8B", *WORKLOAD]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == "recommended"
    # The command stays on one line, to be copied.
    assert any(line.strip().startswith("vllm serve Qwen/Qwen3-8B --max-num-seqs=") for line in lines)
    assert sum(line.rstrip().endswith("yes") for line in lines) == 15
    assert "simulated evidence" in lines[-1]


def test_the_table_says_why_rows_cannot_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["recommend", "--model", "Qwen/Qwen3-8B", "--gpu", "L40S", "--fixed", "max_num_seqs=128", *WORKLOAD]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "no: fixed is another" in printed
    assert "no: needs 24.4" in printed
    assert "keep_engine_default (out_of_support)" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "Qwen/Qwen9"], "$.model.name: 'Qwen/Qwen9' cannot be used; of "),
        (["--model", "Qwen/Qwen3-8B", "--gpu", "B400"], "$.gpu: 'B400' cannot be used; known: B200"),
        (["--model", "Qwen/Qwen3-8B", "--num-layers", "3"], "$.model: give exactly one of"),
        ([], "$.model: give exactly one of"),
        (["--model", "Qwen/Qwen3-8B", "--fixed", "max_seqs=1"], "$.fixed.max_seqs: unknown field"),
        (["--model", "Qwen/Qwen3-8B", "--fixed", "max_num_seqs=0"], "$.fixed.max_num_seqs"),
        (["--model", "Qwen/Qwen3-8B", "--fixed", "ttft_p95=1"], "exists only after launch"),
        (["--model", "Qwen/Qwen3-8B", "--max-error-rate", "nan"], "$.slo.max_error_rate"),
    ],
)
def test_a_question_that_is_refused_is_bad_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, line = failure(capsys, "recommend", *arguments, *WORKLOAD)
    assert status == 2
    assert message in line


def test_a_question_without_a_workload_is_told_what_a_workload_is(capsys: pytest.CaptureFixture[str]) -> None:
    status, line = failure(capsys, "recommend", "--model", "Qwen/Qwen3-8B")
    assert status == 2
    assert "$.workload.prompt_tokens: this field is required, or a preset (and 3 more)" in line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["recommend", *WORKLOAD, "--concurrency", "many"],
        ["recommend", *WORKLOAD, "--concurrency", "1:2:3"],
        ["recommend", *WORKLOAD, "--prompt-tokens", "1.5:2"],
        ["recommend", *WORKLOAD, "--fixed", "max_num_seqs"],
        ["bundle"],
        ["serve", "--port", "http"],
    ],
)
def test_bad_flags_exit_with_two(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["recommend"],
        ["openapi"],
        *(["bundle", *action] for action in ([], ["list"], ["verify"], ["activate"], ["rollback"])),
        *(["db", *action] for action in ([], ["migrate"], ["status"], ["prune"], ["delete-project"])),
        *(["outcomes", *action] for action in ([], ["post"], ["collect"], ["report"])),
    ],
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: python -m service" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"a": 1, "a": 2}'])
def test_a_config_file_that_cannot_be_read_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    status, line = failure(capsys, "recommend", "--config", str(path), *WORKLOAD)
    assert status == 1
    assert str(path) in line


def test_a_bundle_is_verified_by_name_and_hash(capsys: pytest.CaptureFixture[str], bundle_dir: Path) -> None:
    assert main(["bundle", "verify", str(bundle_dir)]) == 0
    assert "ok: test-bundle 1.2.3" in capsys.readouterr().out
    assert main(["bundle", "verify", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["evidence"], facts["files"]) == ("simulated", ["evaluation.json", "model.onnx"])


@pytest.mark.parametrize("command", [["bundle", "verify"], ["recommend", "--model", "Qwen/Qwen3-8B", *WORKLOAD]])
def test_a_damaged_bundle_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    write_bundle(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(tmp_path))
    status, line = failure(capsys, *command)
    assert status == 1
    assert "model.onnx: sha256 is" in line
    assert "make train" in line


def test_a_setting_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORYPOLICY_PORT", "http")
    status, line = failure(capsys, "bundle", "verify")
    assert status == 2
    assert "setting port" in line


def imported_by(code: str) -> set[str]:
    """Top-level names of the modules that are loaded after `code` ran in a fresh interpreter."""
    probe = (
        f"import contextlib, io, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n    {code}\nprint(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_a_question_on_the_command_line_loads_no_web_framework() -> None:
    arguments = ["recommend", "--model", "Qwen/Qwen3-8B", *WORKLOAD, "--json"]
    loaded = imported_by(f"from service.__main__ import main; assert main({arguments!r}) == 0")
    assert not loaded & {"fastapi", "starlette", "uvicorn", "rich", "sqlalchemy", "alembic"}


def test_the_service_loads_nothing_of_training_or_the_engine(bundle_dir: Path) -> None:
    settings = f"Settings(bundle_dir={str(bundle_dir)!r})"
    loaded = imported_by(
        f"from service.settings import Settings; from service.app import create_app; create_app({settings})"
    )
    assert not loaded & {"torch", "pandas", "lightgbm", "vllm", "onnx", "pyarrow", "numba", "matplotlib", "offline"}


def test_a_context_further_arguments_and_forms_mean_the_same_as_in_the_api(
    capsys: pytest.CaptureFixture[str], client: Client
) -> None:
    further = {"max_model_len": 8192, "extra_args": "--enforce-eager", "render": ["helm", "vllm"]}
    from_cli = answer(
        capsys,
        *("--model", "Qwen/Qwen3-8B", "--gpu", "NVIDIA-B200", "--max-model-len", "8192"),
        *("--extra-args=--enforce-eager", "--render", "helm", "--render", "vllm"),
    )
    assert without_id(from_cli) == without_id(client.recommend({**QUESTION, **further}).json())


def test_a_form_alone_can_go_to_a_file_and_what_limits_it_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["recommend", "--model", "Qwen/Qwen3-8B", "--gpu", "B200", *WORKLOAD, "--extra-args=--enforce-eager"]
    assert main([*asked, "--render", "vllm"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("vllm serve Qwen/Qwen3-8B --max-num-seqs=")
    assert shown.out.endswith(" --enforce-eager\n")
    assert shown.out.count("\n") == 1
    assert "memorypolicy: warning: --enforce-eager is set" in shown.err
    assert main([*asked, "--render", "helm"]) == 0
    assert json.loads(capsys.readouterr().out)["vllmConfig"]["extraArgs"][-1] == "--enforce-eager"
    assert main([*asked, "--render", "yaml"]) == 0
    assert capsys.readouterr().out.startswith('model: "Qwen/Qwen3-8B"\nmax-num-seqs: ')


def test_where_nothing_starts_no_form_is_printed_but_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    # 131.4 GiB of weights and 40 for the whole context: too much for 0.90 of 178 GiB; 768 tokens need next to nothing.
    asked = ["recommend", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "B200", *WORKLOAD]
    status, message = failure(capsys, *asked, "--render", "yaml")
    assert status == 1
    assert "174.9 GiB" in message
    assert "--max-model-len=768" in message
    assert main([*asked, "--render", "yaml", "--max-model-len", "768"]) == 0
    assert capsys.readouterr().out.endswith("max-model-len: 768\n")


def test_an_unknown_form_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    status, message = failure(capsys, "recommend", "--model", "Qwen/Qwen3-8B", *WORKLOAD, "--render", "docker")
    assert status == 2
    assert "'kserve'" in message


ASKING = ["recommend", "--model", "Qwen/Qwen3-8B", "--gpu", "B200", "--json"]
WORDS = {"preset": "rag", "prompt_tokens": [4000, 8000], "max_output_tokens": 600, "concurrency": 100, "replicas": 4}


def test_a_workload_comes_from_flags_a_file_or_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: Client
) -> None:
    by_api = without_id(client.recommend({**QUESTION, "gpu": "B200", "workload": WORDS}).json())
    assert by_api["range"]["ends"]["concurrency"] == [25, 25]
    flags = [
        "--preset=rag",
        "--prompt-tokens=4000:8000",
        "--max-output-tokens=600",
        "--concurrency=100",
        "--replicas=4",
    ]
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps({"workload": {name: WORDS[name] for name in ("preset", "prompt_tokens", "replicas")}}))
    from_file = ["--workload", str(kept), "--max-output-tokens=600", "--concurrency=100"]
    for words in (flags, from_file, ["--workload=-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(WORDS).encode())))
        assert main([*ASKING, *words]) == 0
        assert without_id(json.loads(capsys.readouterr().out)) == by_api


def test_a_config_comes_from_standard_input_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True}
    config |= {"max_position_embeddings": 8192}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    by_file = answer(capsys, "--config", str(file))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert without_id(answer(capsys, "--config", "-")) == without_id(by_file)


def test_a_number_in_a_file_and_in_a_flag_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "load.json"
    kept.write_text('{"preset": "chat", "concurrency": 4}')
    status, line = failure(capsys, *ASKING, "--workload", str(kept), "--concurrency", "8")
    assert status == 1
    assert f"{kept}: workload.concurrency is 4 there and 8 in --concurrency; leave one of them out" in line


KEPT = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "gpu": "H200",
    "gpu_shared": True,
    "slo": {"max_p95_ttft_ms": 900.0},
    "fixed": {"max_num_seqs": 128},
    "extra_args": "--seed 3",
    "explain": True,
    "workload": {"preset": "chat", "concurrency": 4},
}


def test_a_question_that_is_kept_in_a_file_is_asked_as_it_is(
    capsys: pytest.CaptureFixture[str], client: Client, tmp_path: Path
) -> None:
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps(KEPT))
    by_api = without_id(client.recommend(KEPT).json())
    assert main(["recommend", "--workload", str(kept), "--json"]) == 0
    assert without_id(json.loads(capsys.readouterr().out)) == by_api
    # What a flag repeats is no contradiction, and what it adds is added.
    more = ["--gpu", "H200", "--max-p95-tpot-ms", "20", "--fixed", "enable_prefix_caching=true", "--replicas", "2"]
    assert main(["recommend", "--workload", str(kept), "--json", *more]) == 0
    added: dict[str, Any] = {
        **KEPT,
        "slo": {"max_p95_ttft_ms": 900.0, "max_p95_tpot_ms": 20.0},
        "fixed": {"max_num_seqs": 128, "enable_prefix_caching": True},
        "workload": {"preset": "chat", "concurrency": 4, "replicas": 2},
    }
    assert without_id(json.loads(capsys.readouterr().out)) == without_id(client.recommend(added).json())


def test_forms_that_a_kept_question_asks_for_are_all_that_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps({**KEPT, "render": ["vllm"]}))
    assert main(["recommend", "--workload", str(kept)]) == 0
    assert capsys.readouterr().out.startswith("vllm serve Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("flags", "both"),
    [
        (
            ["--model", "Qwen/Qwen3-0.6B"],
            "model is {'name': 'Qwen/Qwen3-8B'} there and {'name': 'Qwen/Qwen3-0.6B'} in the flags of the model",
        ),
        (["--gpu", "H100"], "gpu is 'H200' there and 'H100' in --gpu"),
        (["--max-p95-ttft-ms", "800"], "slo.max_p95_ttft_ms is 900.0 there and 800.0 in --max-p95-ttft-ms"),
        (["--fixed", "max_num_seqs=64"], "fixed.max_num_seqs is 128 there and 64 in --fixed max_num_seqs=…"),
        (["--extra-args=--seed 4"], "extra_args stands there and, another one, in --extra-args; leave one of them out"),
        (["--preset", "rag"], "workload.preset is 'chat' there and 'rag' in --preset"),
    ],
)
def test_a_flag_that_contradicts_a_kept_question_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str], both: str
) -> None:
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps(KEPT))
    status, line = failure(capsys, "recommend", "--workload", str(kept), *flags)
    assert status == 1
    assert f"{kept}: {both}" in line


def test_what_is_no_member_of_a_question_is_refused_in_a_file_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "question.json"
    kept.write_text(json.dumps({**KEPT, "colour": "red"}))
    status, line = failure(capsys, "recommend", "--workload", str(kept))
    assert (status, "$.colour: unknown field" in line) == (2, True)
    kept.write_text(json.dumps({**KEPT, "workload": 3}))
    status, line = failure(capsys, "recommend", "--workload", str(kept), "--preset", "chat")
    assert status == 1
    assert "workload is 3 there" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "email", "--concurrency", "4"], "$.workload.preset"),
        (
            ["--preset", "chat", "--concurrency", "8:4"],
            "$.workload.concurrency[0] (8) and $.workload.concurrency[1] (4) contradict",
        ),
        (["--preset", "chat", "--concurrency", "4", "--requests-per-second", "2"], "$.workload.requests_per_second"),
        (["--preset", "chat", "--requests-per-second", "2"], "give concurrency instead"),
    ],
)
def test_words_that_are_refused_are_bad_usage(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    status, line = failure(capsys, *ASKING, *words)
    assert status == 2
    assert message in line
