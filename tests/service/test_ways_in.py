"""Each way to say which model is meant, through the API, the hook and the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import CREATION, creation, decided, requesting
from tests.service.test_cli import WORKLOAD, answer, failure, without_id
from tests.service.test_model_catalogue import ADAPTER, NUMBERS, TINY
from tests.service.test_problems import check_problem

PEFT = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]}


@pytest.fixture(autouse=True)
def _configured(bundle_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(bundle_dir))


def asked(client: Client, **parts: Any) -> dict[str, Any]:
    """The answer to the usual question with other parts."""
    return client.answer({**QUESTION, **parts})


def test_a_fine_tuned_model_is_ranked_as_the_model_it_was_made_from(client: Client) -> None:
    base = asked(client)
    tuned = asked(client, model={"same_architecture_as": "qwen/qwen3-8b", "name": "acme/chat"})
    assert tuned["ranked"] == base["ranked"]
    assert tuned["command"] == base["command"].replace("Qwen/Qwen3-8B", "acme/chat")
    assert tuned["assumed"]["model.max_model_len"] == 40_960
    nameless = asked(client, model={"same_architecture_as": "Qwen/Qwen3-8B"})
    assert nameless["command"].startswith("vllm serve MODEL ")


@pytest.mark.parametrize(
    ("model", "error", "path"),
    [
        ({"same_architecture_as": "nobody/nothing"}, "unknown_name", "$.model.same_architecture_as"),
        ({"same_architecture_as": "Qwen/Qwen3-8B", "name": "x; rm -rf /"}, "invalid_request", "$.model.name"),
        ({"same_architecture_as": "Qwen/Qwen3-8B", "name": "--flag"}, "invalid_request", "$.model.name"),
        ({"same_architecture_as": "Qwen/Qwen3-8B", "config": TINY}, "invalid_request", "$.model"),
        ({"same_architecture_as": "Qwen/Qwen3-8B", "weight_gb": 1.0}, "invalid_request", "$.model"),
        ({"same_architecture_as": "Qwen/Qwen3-8B", "revision": "x"}, "invalid_request", "$.model.revision"),
        ({"name": "Qwen/Qwen3-8B", "config": TINY}, "invalid_request", "$.model"),
        ({"same_architecture_as": ""}, "invalid_request", "$.model.same_architecture_as"),
    ],
)
def test_exactly_one_form_of_a_model_is_taken(client: Client, model: dict[str, Any], error: str, path: str) -> None:
    problem = check_problem(client.recommend({**QUESTION, "model": model}), status=422, error=error)
    assert problem["details"][0]["path"] == path


def test_a_model_s_own_name_that_looks_like_a_secret_is_refused_and_not_repeated(client: Client) -> None:
    secret = "hf_" + "a1" * 12
    model = {"same_architecture_as": "Qwen/Qwen3-8B", "name": f"acme/{secret}"}
    response = client.recommend({**QUESTION, "model": model, "render": ["yaml"]})
    problem = check_problem(response, status=422, error="invalid_request")
    assert problem["details"][0]["path"] == "$.model.name"
    assert "looks like a secret" in problem["details"][0]["message"]
    assert secret not in response.text
    decision = decided(client, creation(model_arch=model))
    assert (decision["decision"], decision["reason"]) == ("skip", "unsupported_model")
    assert secret not in json.dumps(decision)


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"adapter": {"rank": 8, "target_modules": ["SECRET"]}}, "$.adapter.target_modules"),
        ({"adapter": {"config": {**PEFT, "target_modules": ["SECRET"]}}}, "$.adapter.config.target_modules"),
        (
            {"model": {"config": {**TINY, "quantization_config": {"quant_method": "SECRET"}}}},
            "$.model.config.quantization_config",
        ),
    ],
)
def test_a_secret_that_the_answer_would_repeat_is_refused(client: Client, parts: dict[str, Any], path: str) -> None:
    secret = "hf_" + "a1" * 12
    response = client.recommend({**QUESTION, **json.loads(json.dumps(parts).replace("SECRET", secret))})
    assert secret not in response.text
    problem = check_problem(response, status=422, error="invalid_request")
    assert problem["details"][0]["path"] == path
    # Any other name is merely not known.
    named = client.recommend({**QUESTION, **json.loads(json.dumps(parts).replace("SECRET", "unheard-of"))})
    assert named.status_code == 200
    assert "unheard-of" in named.text


@pytest.mark.parametrize("adapter", [{"config": PEFT}, {"rank": 16}, {"rank": 16, "target_modules": ["q_proj"]}])
def test_an_adapter_is_counted_and_out_of_support(client: Client, adapter: dict[str, Any]) -> None:
    answered = asked(client, adapter={**adapter, "max_loras": 4})
    assert (answered["decision"], answered["set"]) == ("keep_engine_default", {})
    outside = {entry["feature"]: entry for entry in answered["support"]["out_of_range"]}
    assert outside["adapter"]["value"] == "LoRA of rank 16, 4 at once"
    assert outside["adapter"]["trained_for"] == "no adapter"
    assert any("--enable-lora --max-loras=4 --max-lora-rank=16" in warning for warning in answered["warnings"])


def test_adapters_can_be_what_does_not_fit(client: Client) -> None:
    # 16.4 GB of weights fit 24 GiB; 16 adapters of rank 512 take 46 GB more.
    model = {**QUESTION, "gpu": "NVIDIA-A100-SXM4-40GB"}
    assert client.recommend(model).json()["decision"] != "none_feasible"
    answered = client.recommend({**model, "adapter": {"rank": 512, "max_loras": 16}}).json()
    assert answered["decision"] == "none_feasible"


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"adapter": {}}, "$.adapter"),
        ({"adapter": {"rank": 8, "config": PEFT}}, "$.adapter"),
        ({"adapter": {"rank": 0}}, "$.adapter.rank"),
        ({"adapter": {"rank": 513}}, "$.adapter.rank"),
        ({"adapter": {"rank": 8, "max_loras": 0}}, "$.adapter.max_loras"),
        ({"adapter": {"rank": 8, "alpha": 2}}, "$.adapter.alpha"),
        ({"adapter": {"config": {**PEFT, "r": -1}}}, "$.adapter.config.r"),
        ({"adapter": {"config": {**PEFT, "target_modules": ["a", 1]}}}, "$.adapter.config.target_modules[1]"),
        ({"adapter": {"config": {**PEFT, "use_dora": True}}}, "$.adapter.config.use_dora"),
        ({"adapter": {"rank": 8}, "model": NUMBERS}, "$.adapter"),
    ],
)
def test_an_adapter_that_cannot_be_sized_is_refused_by_its_path(
    client: Client, parts: dict[str, Any], path: str
) -> None:
    problem = check_problem(client.recommend({**QUESTION, **parts}), status=422, error="invalid_request")
    assert problem["details"][0]["path"] == path


def test_a_measured_quantity_beside_an_adapter_is_refused_and_inside_its_config_is_foreign_text(client: Client) -> None:
    body = {**QUESTION, "adapter": {"rank": 8, "ttft_p95": 1}}
    check_problem(client.recommend(body), status=422, error="measured_field")
    assert asked(client, adapter={"config": {**PEFT, "error_rate": 0.1}})["decision"] == "keep_engine_default"


def test_the_hook_takes_another_model_s_architecture(client: Client) -> None:
    body = {**requesting(model="acme/chat"), "model_arch": {"same_architecture_as": "Qwen/Qwen3-8B"}}
    found, usual = decided(client, body), decided(client, CREATION)
    assert (found["decision"], found["engine_args"]) == ("apply", usual["engine_args"])
    unknown = decided(client, creation(model_arch={"same_architecture_as": "nobody/nothing"}))
    assert (unknown["decision"], unknown["reason"]) == ("skip", "unknown_model")


def test_the_command_line_takes_a_folder_with_a_config(
    capsys: pytest.CaptureFixture[str], client: Client, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    from_cli = answer(capsys, "--config", str(tmp_path), "--gpu", "NVIDIA-B200")
    assert without_id(from_cli) == without_id(asked(client, model={"config": TINY}))


def test_the_command_line_takes_the_folder_of_an_adapter(
    capsys: pytest.CaptureFixture[str], client: Client, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    expected = without_id(asked(client, adapter={"config": ADAPTER, "max_loras": 2}))
    named = answer(capsys, "--config", str(tmp_path), "--max-loras", "2", "--gpu", "NVIDIA-B200")
    assert without_id(named) == expected
    apart = answer(
        capsys, "--model", "Qwen/Qwen3-8B", "--adapter", str(tmp_path), "--max-loras", "2", "--gpu", "NVIDIA-B200"
    )
    assert without_id(apart) == expected


def test_an_adapter_s_folder_may_hold_or_name_the_folder_of_its_model(
    capsys: pytest.CaptureFixture[str], client: Client, tmp_path: Path
) -> None:
    base, lora = tmp_path / "base", tmp_path / "lora"
    base.mkdir()
    lora.mkdir()
    (base / "config.json").write_text(json.dumps(TINY))
    adapter = {**PEFT, "base_model_name_or_path": str(base)}
    (lora / "adapter_config.json").write_text(json.dumps(adapter))
    expected = without_id(asked(client, model={"config": TINY}, adapter={"config": adapter}))
    assert without_id(answer(capsys, "--config", str(lora), "--gpu", "NVIDIA-B200")) == expected
    (lora / "config.json").write_text(json.dumps(TINY))
    assert without_id(answer(capsys, "--config", str(lora), "--gpu", "NVIDIA-B200")) == expected


def test_the_command_line_takes_another_model_s_architecture_and_a_rank(
    capsys: pytest.CaptureFixture[str], client: Client
) -> None:
    like = ("--same-architecture-as", "Qwen/Qwen3-8B", "--model", "acme/chat", "--gpu", "NVIDIA-B200")
    model = {"same_architecture_as": "Qwen/Qwen3-8B", "name": "acme/chat"}
    assert without_id(answer(capsys, *like)) == without_id(asked(client, model=model))
    ranked = answer(capsys, *like, "--lora-rank", "8")
    assert without_id(ranked) == without_id(asked(client, model=model, adapter={"rank": 8}))


def test_what_the_command_line_cannot_use_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(PEFT))
    status, line = failure(capsys, "recommend", "--config", str(tmp_path), *WORKLOAD)
    assert status == 1
    assert "base_model_name_or_path is missing; give the model by --model and the folder as --adapter" in line
    status, line = failure(capsys, "recommend", "--model", "Qwen/Qwen3-8B", "--max-loras", "2", *WORKLOAD)
    assert (status, "$.adapter: give either" in line) == (2, True)
    status, line = failure(capsys, "recommend", "--config", str(tmp_path / "nowhere"), *WORKLOAD)
    assert (status, "nowhere" in line) == (1, True)


def test_an_operator_s_folder_serves_the_command_line_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme--chat.json").write_text(json.dumps({"same_architecture_as": "Qwen/Qwen3-8B"}))
    monkeypatch.setenv("MEMORYPOLICY_MODELS_DIR", str(tmp_path))
    assert answer(capsys, "--model", "acme/chat")["command"].startswith("vllm serve acme/chat ")
    request = tmp_path.parent / "request.json"
    request.write_text(json.dumps(requesting(model="acme/chat")))
    assert main(["hook", "--file", str(request), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "apply"
