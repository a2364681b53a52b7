"""The models that come with the service, and those that an operator mounts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.api.model_catalogue import BUILT_IN_DIR, built_in
from service.api.model_folder import inspected, with_models_dir
from service.app import create_app
from service.domain.catalogue import CATALOGUE, model_by_name
from service.domain.errors import ArtefactError, UnknownNameError
from service.settings import Settings
from tests.service.conftest import QUESTION, Client

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 8000, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
NUMBERS = {"weight_gb": 16.381, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147_456}
ADAPTER = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"], "base_model_name_or_path": "Qwen/Qwen3-8B"}
LISTED = [model for file in sorted(BUILT_IN_DIR.glob("*.json")) for model in json.loads(file.read_bytes())["models"]]

# Parameters in 1e9 as the publishers state them on the models' cards.
PUBLISHED = {
    "Qwen/Qwen3-235B-A22B": 235,
    "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32.5,
    "deepseek-ai/DeepSeek-V3": 671,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": 70.6,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.7,
    "mistralai/Mixtral-8x22B-v0.1": 141,
    "openai/gpt-oss-120b": 117,
    "meta-llama/Meta-Llama-3.1-405B": 405,
    "google/gemma-2-27b-it": 27.2,
    "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct": 7.8,
    "microsoft/Phi-3-mini-128k-instruct": 3.8,
    "bigcode/starcoder2-7b": 7.2,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32.0,
    "LGAI-EXAONE/EXAONE-4.0-1.2B": 1.28,
    "LGAI-EXAONE/K-EXAONE-236B-A23B": 236,
    "skt/A.X-K1": 519,
    "upstage/Solar-Open-100B": 102.6,
    "upstage/SOLAR-10.7B-v1.0": 10.73,
    "naver-hyperclovax/HyperCLOVAX-SEED-Think-32B": 32.6,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "mistralai/Mistral-Large-Instruct-2407": 123,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36.2,
    "zai-org/GLM-4.5-Air": 106.9,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 79.7,
    "google/gemma-3-27b-it": 27.4,
}


def write(folder: Path, **files: object) -> Path:
    """A folder of models; a key is a path in which `__` is a slash and `_json` an ending."""
    for name, content in files.items():
        file = folder / (name.replace("__", "/").removesuffix("_json") + ".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_every_model_is_sized_and_has_a_name_of_its_own() -> None:
    models = built_in().search("")
    assert len(models) >= 150
    assert len({entry.name.casefold() for entry, _ in models}) == len(models)
    assert all(model.architecture is not None and model.name == entry.name for entry, model in models)


def test_the_models_that_plans_are_made_of_keep_their_numbers() -> None:
    for entry in CATALOGUE:
        assert built_in().model(entry.name) == model_by_name(entry.name)


@pytest.mark.parametrize("model", LISTED, ids=lambda model: model["name"])
def test_each_names_a_public_file_at_its_revision_and_that_repository_s_licence(model: dict[str, Any]) -> None:
    source = model["source"]
    assert model.keys() == {"name", "config", "source"}
    assert source.keys() <= {"repository", "revision", "path", "licence", "sha256", "through"}
    assert re.fullmatch(r"[0-9a-f]{40}", source["revision"]) or "through" in source
    # The repository's; dimensions are facts, which need none.
    assert source["licence"] in ("Apache-2.0", "MIT", "not stated")
    assert source["path"]
    assert not source["path"].startswith("/")


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_those_that_the_publisher_states(name: str, billions: float) -> None:
    parameters = built_in().model(name).parameters
    assert parameters is not None
    assert parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", [entry.name for entry in built_in().entries])
def test_parameters_are_near_the_billions_in_the_model_s_name(name: str) -> None:
    # "30B-A3B" is 30; "8x7B" counts no experts' shares and "17B-128E" only what a token passes.
    stated = re.search(r"(?<![A-Za-z0-9.x])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9]|-\d+E)", name)
    parameters = built_in().model(name).parameters
    assert parameters is not None
    if stated:
        # An image encoder that is not counted, embeddings that the name leaves out.
        assert 0.75 < parameters / 1e9 / float(stated[1]) < 1.35


@pytest.mark.parametrize("name", [entry.name for entry in built_in().entries])
def test_weights_take_the_bytes_that_the_name_promises(name: str) -> None:
    model = built_in().model(name)
    assert model.parameters is not None
    bytes_each = model.weight_gb * 1e9 / model.parameters
    named = next((form for form in ("NVFP4", "FP8") if form in name.upper()), None)
    if model.quantisation is None:
        assert named is None
        assert bytes_each == pytest.approx(2)
    elif named == "NVFP4" or any(form in model.quantisation for form in ("int4", "fp4")):
        assert 0.5 < bytes_each < 1.3
    else:
        assert 1.0 <= bytes_each < 1.2


def test_an_unknown_name_is_answered_with_those_that_resemble_it() -> None:
    with pytest.raises(UnknownNameError) as caught:
        built_in().model("qwen/qwen3-8")
    assert "Qwen/Qwen3-8B" in caught.value.known
    assert len(caught.value.known) <= 8
    assert f"of {len(built_in().entries)} known names" in str(caught.value)


def test_an_operator_s_files_are_models_by_their_names(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        **{
            "acme--tiny_json": TINY,
            "numbers_json": NUMBERS,
            "acme__like_json": {"same_architecture_as": "Qwen/Qwen3-8B"},
            "acme__folder__config_json": TINY,
            "acme__folder__tokenizer_json": "no JSON at all",
            "plain__config_json": TINY,
            "acme__lora__adapter_config_json": ADAPTER,
        },
    )
    (folder / "notes.txt").write_text("not a model")
    write(folder, **{"..2026__hidden_json": "a ConfigMap's own copy"})
    models = with_models_dir(folder)
    own = {entry.name: entry for entry in models.entries if entry.origin == "operator"}
    assert set(own) == {"acme/tiny", "numbers", "acme/like", "acme/folder", "plain", "acme/lora"}
    assert models.model("ACME/Tiny").name == "acme/tiny"
    like = models.model("acme/like")
    assert (like.name, like.parameters) == ("acme/like", 8_190_735_360)
    assert models.model("numbers").kv_bytes_per_token == 147_456
    assert models.model("acme/lora").adapter is not None
    assert len(models.entries) == len(built_in().entries) + len(own)
    assert models.sha256 != with_models_dir(write(folder, numbers_json={**NUMBERS, "num_layers": 37})).sha256


def test_what_refers_to_another_model_may_refer_to_any_of_the_folder(tmp_path: Path) -> None:
    files = {
        # In the order of names each comes before what it refers to.
        "a_json": {"same_architecture_as": "B"},
        "b_json": {"same_architecture_as": "z/tiny"},
        "lora__adapter_config_json": {**ADAPTER, "base_model_name_or_path": "z/tiny"},
        "qwen--qwen3-8b_json": {"same_architecture_as": "Qwen/Qwen3-8B"},
        "z--tiny_json": TINY,
    }
    models = with_models_dir(write(tmp_path, **files))
    tiny = models.model("z/tiny")
    assert models.model("a").parameters == models.model("b").parameters == tiny.parameters
    assert models.model("lora").weight_gb > tiny.weight_gb
    # Of its own name it means the built-in one.
    assert models.model("qwen/qwen3-8b").parameters == 8_190_735_360
    assert [entry.name for entry in models.entries[:5]] == ["a", "b", "lora", "qwen/qwen3-8b", "z/tiny"]


def test_an_adapter_beside_its_model_applies_by_name(tmp_path: Path) -> None:
    plain = with_models_dir(write(tmp_path, both__config_json=TINY))
    folder = write(tmp_path, both__adapter_config_json={**ADAPTER, "base_model_name_or_path": None})
    adapted = with_models_dir(folder)
    assert adapted.model("both").adapter == "LoRA of rank 16, 1 at once"
    assert adapted.model("both").weight_gb > plain.model("both").weight_gb
    assert adapted.sha256 != plain.sha256
    assert inspected(folder / "both", adapted).weight_gb == adapted.model("both").weight_gb


def test_an_operator_s_model_stands_in_the_place_of_a_built_in_one(tmp_path: Path) -> None:
    models = with_models_dir(write(tmp_path, **{"qwen--QWEN3-8b_json": TINY}))
    assert models.model("Qwen/Qwen3-8B").hidden_size == 256
    assert len(models.entries) == len(built_in().entries)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"broken_json": "{"}, r"broken\.json: the body is not JSON"),
        ({"twice_json": '{"a": 1, "a": 2}'}, r"twice\.json: .*stands twice"),
        ({"acme__bad__config_json": {"model_type": "llama"}}, r"acme/bad/config\.json: hidden_size: None"),
        ({"three_json": {"weight_gb": 1.0, "num_layers": 3, "hidden_size": 4}}, r"three\.json: kv_bytes_per_token"),
        ({"more_json": {**NUMBERS, "vocab_size": 3}}, r"more\.json: vocab_size: 3 cannot be used; known here"),
        ({"negative_json": {**NUMBERS, "num_layers": -1}}, r"negative\.json: num_layers: -1"),
        ({"like_json": {"same_architecture_as": "nobody/nothing"}}, r"like\.json: same_architecture_as: 'nobody/"),
        ({"lora__adapter_config_json": {**ADAPTER, "r": 9999}}, r"lora/adapter_config\.json: r: 9999"),
        (
            {"lora__config_json": TINY, "lora__adapter_config_json": {**ADAPTER, "r": 9999}},
            r"adapter_config\.json: r: ",
        ),
        (
            {"a_json": {"same_architecture_as": "b"}, "b_json": {"same_architecture_as": "a"}},
            r"a\.json: a and b refer to",
        ),
        ({"a--b_json": TINY, "a__b_json": TINY}, r"a/b is models_dir:.* already; rename one of them"),
        ({"bad name;_json": TINY}, r"'bad name;' cannot name a model"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_refuses_the_start(
    tmp_path: Path, bundle_dir: Path, files: dict[str, object], message: str
) -> None:
    folder = write(tmp_path / "models", **files)
    with pytest.raises(ArtefactError, match=message):
        create_app(Settings(bundle_dir=bundle_dir, models_dir=folder, data_dir=tmp_path / "var"))


@pytest.mark.parametrize("file", ["{}_json", "acme__{}__config_json", "{}__tiny_json"])
def test_a_secret_in_the_name_of_a_file_refuses_the_start_and_is_not_repeated(tmp_path: Path, file: str) -> None:
    secret = "hf_" + "a1" * 12
    with pytest.raises(ArtefactError, match="looks like a secret; rename it") as caught:
        with_models_dir(write(tmp_path, **{file.format(secret): TINY}))
    assert secret not in str(caught.value)


def test_a_folder_that_is_not_there_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no such folder; mount it"):
        with_models_dir(tmp_path / "missing")


@pytest.fixture
def own(tmp_path: Path, bundle_dir: Path) -> Client:
    """A service with an operator's models."""
    folder = write(
        tmp_path / "models", **{"acme--chat_json": {"same_architecture_as": "Qwen/Qwen3-8B"}, "n_json": NUMBERS}
    )
    settings = Settings(bundle_dir=bundle_dir, models_dir=folder, data_dir=tmp_path / "var", audit=False)
    return Client(create_app(settings))


def test_an_operator_s_model_is_answered_by_name_and_listed_first(own: Client, client: Client) -> None:
    answer = own.recommend({**QUESTION, "model": {"name": "Acme/Chat"}}).json()
    built = client.recommend(QUESTION).json()
    assert answer["ranked"] == built["ranked"]
    assert answer["command"].startswith("vllm serve acme/chat ")
    listed = own.get("/v1/models").json()["models"]
    assert [(entry["id"], entry["origin"]) for entry in listed[:3]] == [
        ("acme/chat", "operator"), ("n", "operator"), ("Qwen/Qwen3-0.6B", "built_in"),
    ]  # fmt: skip
    assert (listed[1]["family"], listed[1]["parameters"], listed[1]["max_context"]) == (None, None, None)
    assert own.get("/v1/models?q=operator").json()["total"] == 2


def test_a_batch_may_name_an_operator_s_model(own: Client) -> None:
    items = [{**QUESTION, "model": {"name": "acme/chat"}}, {**QUESTION, "model": {"name": "acme/other"}}]
    response = own.request("POST", "/v1/recommend:batch", json={"items": items})
    answered, refused = response.json()["items"]
    assert answered["answer"]["command"].startswith("vllm serve acme/chat ")
    assert refused["error"]["error"] == "unknown_name"
