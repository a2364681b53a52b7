"""POST /v1/models:inspect, and /v1/recommend about models that no policy was trained for."""

import json
import logging
from typing import Any

import httpx
import pytest

from service.api.examples import INSPECT_EXAMPLES
from service.api.response_schemas import InspectAnswer, RecommendAnswer
from tests.domain.mutated_configs import mutated
from tests.domain.reduced_configs import ALL, DEEPSEEK_V3, GEMMA2, MIXTRAL, Config
from tests.service.conftest import QUESTION, Client

QWEN3_8B: Config = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "tie_word_embeddings": False, "max_position_embeddings": 40960,
}  # fmt: skip


def inspected(client: Client, body: object, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return client.request("POST", "/v1/models:inspect", content=content, headers=headers, **options)


def answer(client: Client, body: object) -> dict[str, Any]:
    response = inspected(client, body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    InspectAnswer.model_validate(found)
    return found


def refusal(client: Client, body: object) -> dict[str, Any]:
    response = inspected(client, body)
    assert response.status_code == 422, response.text
    problem: dict[str, Any] = response.json()
    return problem


@pytest.mark.parametrize("name", INSPECT_EXAMPLES)
def test_the_documented_examples_work(client: Client, name: str) -> None:
    answer(client, INSPECT_EXAMPLES[name]["value"])


def test_it_answers_size_cache_and_context(client: Client) -> None:
    found = answer(client, {"config": MIXTRAL, "at_tokens": [1, 8192]})
    assert (found["kind"], found["parameters"], found["num_layers"]) == ("moe", 46_702_792_704, 32)
    assert (found["kv_bytes_per_token"], found["max_context"], found["hidden_size"]) == (131_072, 32_768, 4096)
    assert found["weight_gb"] == pytest.approx(93.405585408)
    # 131,072 bytes · 8,192 tokens = 2^30.
    assert found["kv_gib_at"] == {"1": 131_072 / 2**30, "8192": 1.0}
    assert "= 46,702,792,704" not in found["formulas"]["kv_bytes_per_token"]


def test_a_window_bends_the_line(client: Client) -> None:
    found = answer(client, {"config": GEMMA2, "at_tokens": [4096, 8192]})
    # 26 layers of 4,096 bytes to the window's end, then 13 of them.
    assert found["kv_gib_at"]["8192"] == 1.5 * found["kv_gib_at"]["4096"]


def test_without_lengths_it_picks_some_up_to_the_context(client: Client) -> None:
    assert list(answer(client, {"config": MIXTRAL})["kv_gib_at"]) == ["4096", "32768"]
    assert list(answer(client, {"config": QWEN3_8B})["kv_gib_at"]) == ["4096", "32768", "40960"]
    assert answer(client, {"config": QWEN3_8B, "at_tokens": []})["kv_gib_at"] == {}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "$.config"),
        ({"config": []}, "$.config"),
        ({"config": MIXTRAL, "at": [1]}, "$.at"),
        ({"config": MIXTRAL, "at_tokens": [0]}, "$.at_tokens[0]"),
        ({"config": MIXTRAL, "at_tokens": [4096.5]}, "$.at_tokens[0]"),
        ({"config": MIXTRAL, "at_tokens": [1] * 65}, "$.at_tokens"),
        ({"config": {**MIXTRAL, "hidden_size": None}}, "$.config.hidden_size"),
        ({"config": {"text_config": {**MIXTRAL, "num_local_experts": "8"}}}, "$.config.text_config.num_local_experts"),
        ({"config": {**MIXTRAL, "hidden_size": 10**6}}, "$.config"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(client: Client, body: object, path: str) -> None:
    assert refusal(client, body)["details"][0]["path"] == path


def test_a_field_that_is_not_known_is_told_the_known_ones(client: Client) -> None:
    assert "known here: config, at_tokens" in refusal(client, {"config": MIXTRAL, "tokens": 5})["message"]


# --- recommending ---


@pytest.mark.parametrize(
    ("name", "kind", "quantised"),
    [
        ("Mixtral-8x7B", "moe", None),
        ("Qwen3-30B-A3B", "moe", None),
        ("Gemma-2-2B", "sliding", None),
        ("Nemotron-3-Nano", "hybrid", None),
        ("gpt-oss-120b", "moe", "mxfp4"),
        ("DeepSeek-V3", "mla", "fp8"),
    ],
)
def test_other_architectures_are_answered_and_left_at_the_engines_default(
    client: Client, name: str, kind: str, quantised: str | None
) -> None:
    body = {**QUESTION, "model": {"config": ALL[name]}}
    found = client.recommend(body).json()
    RecommendAnswer.model_validate(found)
    outside = {entry["feature"]: entry for entry in found["support"]["out_of_range"]}
    assert not found["support"]["in_distribution"]
    assert (outside["architecture"]["value"], outside["architecture"]["trained_for"]) == (kind, "dense")
    assert outside.get("quantisation", {}).get("value") == quantised
    if found["decision"] != "none_feasible":
        assert (found["decision"], found["reason"], found["set"]) == ("keep_engine_default", "out_of_support", {})
        assert f"architecture is {kind}, trained for dense" in found["summary"]
    assert len(found["ranked"]) == 15


def test_quantised_weights_of_a_dense_model_are_outside_too(client: Client) -> None:
    config = {**QWEN3_8B, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found = client.recommend({**QUESTION, "model": {"config": config}}).json()
    outside = {entry["feature"]: entry["value"] for entry in found["support"]["out_of_range"]}
    assert outside["quantisation"] == "fp8"
    assert "architecture" not in outside
    assert found["decision"] == "keep_engine_default"


def test_a_dense_model_by_config_is_answered_as_by_name(client: Client) -> None:
    by_config = client.recommend({**QUESTION, "model": {"config": QWEN3_8B}}).json()
    by_name = client.recommend(QUESTION).json()
    assert [row["score"] for row in by_config["ranked"]] == [row["score"] for row in by_name["ranked"]]
    assert by_config["support"] == by_name["support"]


def test_what_was_not_counted_is_a_warning_of_the_answer(client: Client) -> None:
    found = client.recommend({**QUESTION, "model": {"config": DEEPSEEK_V3}}).json()
    assert any("num_nextn_predict_layers" in warning for warning in found["warnings"])


# --- bad input ---


def test_faulty_configs_are_answered_or_refused_and_leave_nothing_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    statuses = set()
    for config in mutated(300, seed=2):
        # What JSON cannot carry is another test's; lone surrogates and NaN are escaped or sent as they are.
        response = inspected(client, {"config": config})
        statuses.add(response.status_code)
        if response.status_code != 200:
            problem = response.json()
            assert problem["details"][0]["path"].startswith("$"), problem
            assert problem["details"][0]["message"], problem
            assert len(response.content) < 20_000
    assert statuses <= {200, 400, 422}
    assert {200, 422} <= statuses
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b'{"config": {"hidden_size": 1, "hidden_size": 2}}', 422, "stands twice"),
        (b'{"config": {"hidden_size": NaN}}', 422, "finite number"),
        (b'{"config": {"rope_scaling": {"factor": Infinity}}}', 422, "finite number"),
        (b'{"config": ' + b'{"text_config": ' * 500 + b"1" + b"}" * 501, 422, "nest at most"),
        (b'{"config": {"hidden_size": ' + b"9" * 100_000 + b"}}", 400, "not JSON"),
        (b'{"config": {"x": "' + b"x" * 10_000_000 + b'"}}', 413, "larger than"),
        (b'{"config": {"hidden_size": 1}', 400, "not JSON"),
        (b"", 400, "empty"),
        (b"[]", 422, "object"),
    ],
    ids=["twice", "NaN", "Infinity", "deep", "long number", "10 MB", "cut off", "empty", "a list"],
)
def test_bodies_that_are_no_question_are_problems(
    client: Client, caplog: pytest.LogCaptureFixture, body: bytes, status: int, what: str
) -> None:
    response = inspected(client, body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert what in response.text
    assert len(response.content) < 5_000
    assert "Traceback" not in caplog.text
