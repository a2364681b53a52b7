"""Every way in which a body can be wrong is a problem that names the JSON path, never a 500."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.conftest import QUESTION, Client


def with_value(path: str, value: object) -> dict[str, Any]:
    """QUESTION with the member at a dotted path replaced."""
    body = deepcopy(QUESTION)
    *parents, last = path.split(".")
    target: dict[str, Any] = body
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value
    return body


def refused(client: Client, body: object, *, status: int = 422) -> dict[str, Any]:
    """The problem that the body is answered with."""
    response = client.recommend(body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["details"], problem
    return problem


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workload.prompt_tokens", 0),
        ("workload.prompt_tokens", -1),
        ("workload.prompt_tokens", 1.5),
        ("workload.prompt_tokens", "512"),
        ("workload.prompt_tokens", True),
        ("workload.prompt_tokens", None),
        ("workload.prompt_tokens", [512]),
        ("workload.prompt_tokens", 10_000_001),
        ("workload.prompt_tokens", 10**400),
        ("workload.max_new_tokens", 0),
        ("workload.max_new_tokens", 10**9),
        ("workload.shared_prefix_ratio", -0.01),
        ("workload.shared_prefix_ratio", 1.01),
        ("workload.shared_prefix_ratio", "0.5"),
        ("workload.concurrency", 0),
        ("workload.concurrency", 100_001),
        ("workload.unknown", 1),
        ("workload", []),
        ("workload", None),
        ("gpu", 5),
        ("gpu", ""),
        ("engine_version", "latest"),
        ("engine_version", 0.28),
        ("slo.max_p95_ttft_ms", 0),
        ("slo.max_error_rate", 1.5),
        ("slo.max_p99_ttft_ms", 100),
        ("fixed.max_num_seqs", 0),
        ("fixed.gpu_memory_utilization", 1.5),
        ("fixed.enable_prefix_caching", 1),
        ("fixed.enforce_eager", True),
        ("model.name", ""),
        ("model.name", 8),
        ("model.revision", "main"),
        ("surprise", 1),
    ],
)
def test_a_wrong_value_is_named_by_its_path(client: Client, path: str, value: object) -> None:
    problem = refused(client, with_value(path, value))
    assert [detail["path"] for detail in problem["details"]] == [f"$.{path}"]
    assert problem["error"] == "invalid_request"


@pytest.mark.parametrize("missing", ["model", "workload", "workload.concurrency", "workload.shared_prefix_ratio"])
def test_a_missing_field_is_named_by_its_path(client: Client, missing: str) -> None:
    body = deepcopy(QUESTION)
    *parents, last = missing.split(".")
    target = body
    for parent in parents:
        target = target[parent]
    del target[last]
    detail = refused(client, body)["details"][0]
    assert (detail["path"], detail["value"]) == (f"$.{missing}", None)
    assert detail["message"].startswith("this field is required")


def test_an_unknown_field_is_refused_with_the_known_ones(client: Client) -> None:
    message = refused(client, with_value("fixed.max_num_seq", 128))["message"]
    assert "max_num_seqs, max_num_batched_tokens, gpu_memory_utilization, enable_prefix_caching" in message


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"foo": 1},
        {"name": "Qwen/Qwen3-8B", "config": {}},
        {"name": "Qwen/Qwen3-8B", "weight_gb": 16.4},
        {"config": {}, "num_layers": 36},
        "Qwen/Qwen3-8B",
        None,
        [],
    ],
)
def test_a_model_in_no_form_or_in_two_is_told_the_three_forms(client: Client, model: object) -> None:
    detail = refused(client, with_value("model", model))["details"][0]
    assert detail["path"] == "$.model"
    assert "exactly one of" in detail["message"]


def test_half_of_the_four_numbers_are_asked_for_the_other_half(client: Client) -> None:
    problem = refused(client, with_value("model", {"weight_gb": 16.4, "num_layers": 36}))
    assert [detail["path"] for detail in problem["details"]] == ["$.model.hidden_size", "$.model.kv_bytes_per_token"]


def test_an_unknown_model_is_refused_with_the_known_ones(client: Client) -> None:
    problem = refused(client, with_value("model.name", "Qwen/Qwen9-8B"))
    assert problem["error"] == "unknown_name"
    assert problem["details"][0]["path"] == "$.model.name"
    assert "Qwen/Qwen3-8B" in problem["details"][0]["message"]


def test_an_unknown_gpu_is_refused_with_the_known_ones(client: Client) -> None:
    problem = refused(client, with_value("gpu", "B400"))
    assert (problem["error"], problem["details"][0]["path"]) == ("unknown_name", "$.gpu")
    assert "known: B200" in problem["details"][0]["message"]
    assert "gpu_memory_gib" in problem["details"][0]["message"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"hidden_size": None}, "$.model.config.hidden_size"),
        ({"hidden_size": -4096}, "$.model.config.hidden_size"),
        ({"hidden_size": 4095, "head_dim": None}, "$.model.config.head_dim"),
        ({"num_hidden_layers": "36"}, "$.model.config.num_hidden_layers"),
        ({"num_key_value_heads": 7}, "$.model.config.num_key_value_heads"),
        ({"tie_word_embeddings": "no"}, "$.model.config.tie_word_embeddings"),
        ({"model_type": "mamba"}, "$.model.config.model_type"),
        ({"model_type": ["qwen3"]}, "$.model.config.model_type"),
        ({"num_experts": 128}, "$.model.config.num_experts"),
        ({"quantization_config": {"bits": 4}}, "$.model.config.quantization_config.quant_method"),
        (
            {"quantization_config": {"quant_method": "fp8", "ignore": ["lm_head", None]}},
            "$.model.config.quantization_config.ignore[1]",
        ),
        (
            {"text_config": {"model_type": "qwen3_moe", "hidden_size": 8}},
            "$.model.config.text_config.num_hidden_layers",
        ),
        # 1,000 layers of a million channels: each dimension is possible, the sum is not.
        ({"hidden_size": 10**6, "num_hidden_layers": 1000, "intermediate_size": 10**7}, "$.model.config"),
    ],
)
def test_a_config_that_cannot_be_sized_is_named_by_its_key(client: Client, change: dict[str, Any], path: str) -> None:
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
    problem = refused(client, with_value("model", {"config": {**config, **change}}))
    assert [detail["path"] for detail in problem["details"]] == [path]


def test_a_request_longer_than_the_context_is_refused(client: Client) -> None:
    problem = refused(client, with_value("workload.prompt_tokens", 40_960))
    assert problem["details"][0]["path"] == "$.workload.prompt_tokens"
    assert "40960-token context" in problem["message"]


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("path", ["workload.shared_prefix_ratio", "workload.concurrency", "slo.max_p95_ttft_ms"])
def test_what_is_no_number_in_json_is_named_by_its_path(client: Client, token: str, path: str) -> None:
    body = json.dumps(with_value(path, "HERE")).replace('"HERE"', token).encode()
    assert refused(client, body)["details"][0]["path"] == f"$.{path}"


def test_nan_is_found_inside_lists_and_foreign_configs(client: Client) -> None:
    body = json.dumps(with_value("model", {"config": {"rope": [1, {"a b": "HERE"}]}})).replace('"HERE"', "NaN")
    assert refused(client, body.encode())["details"][0]["path"] == "$.model.config.rope[1]['a b']"


def test_a_number_that_overflows_to_infinity_is_refused(client: Client) -> None:
    body = json.dumps(with_value("workload.shared_prefix_ratio", "HERE")).replace('"HERE"', "1e999").encode()
    assert refused(client, body)["details"][0]["path"] == "$.workload.shared_prefix_ratio"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"{} trailing",
        b'{"model": }',
        b"{'model': 1}",
        b"\xff\xfe{}",
        b'{"gpu": "\xff"}',
        b'{"gpu": "\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"gpu": "\x00"}',
        b'{"gpu": ' + b"9" * 5_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_json_is_a_400(client: Client, body: bytes) -> None:
    problem = refused(client, body, status=400)
    assert problem["error"] == "invalid_json"
    assert problem["details"][0]["path"] == "$"


@pytest.mark.parametrize("body", [b"null", b"1", b'"text"', b"[]", b"[{}]", b"true"])
def test_json_that_is_no_object_is_refused(client: Client, body: bytes) -> None:
    assert refused(client, body)["details"][0]["path"] == "$"


def test_a_key_that_stands_twice_is_refused(client: Client) -> None:
    body = b'{"workload": {"concurrency": 4, "concurrency": 64}}'
    assert "'concurrency' stands twice" in refused(client, body)["message"]


def test_nesting_up_to_the_limit_is_only_a_wrong_value(client: Client) -> None:
    body = b'{"surprise": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert "$.surprise" in {detail["path"] for detail in refused(client, body)["details"]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"surprise": ' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"a":' * 1_000 + b"1" + b"}" * 1_000,
        b"[" * 9_999,
        # A bracket in a string, behind an escaped quotation mark, is none.
        b'{"a": "\\"]]]]", "b": ' + b"[" * 64,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_deeper_nesting_is_refused_before_it_is_parsed(client: Client, body: bytes) -> None:
    assert refused(client, body)["message"] == "$: nest at most 64 levels of objects and lists"


def test_a_crowd_of_objects_is_refused_before_it_is_parsed(client: Client) -> None:
    for body in (b'{"a":[' + b"{}," * 10_000 + b"{}]}", b"[" + b"[]," * 10_000):
        assert refused(client, body)["message"] == "$: send at most 10,000 objects and lists at once"


def test_the_one_key_of_many_that_stands_twice_is_named(client: Client) -> None:
    members = b",".join(b'"k%d":0' % number for number in range(60_000))
    assert "'k59999' stands twice" in refused(client, b"{" + members + b',"k59999":0}')["message"]


def test_many_brackets_side_by_side_or_in_a_string_are_not_deep(client: Client) -> None:
    for value in (b"[" + b"{}," * 99 + b"{}]", b'"' + b"[" * 99 + b'"'):
        assert "nest" not in refused(client, b'{"surprise": ' + value + b"}")["message"]


def test_a_crowd_of_unknown_fields_is_cut_short(client: Client) -> None:
    problem = refused(client, {f"field{number}": number for number in range(50_000)})
    assert len(problem["details"]) == 1
    some = refused(client, {f"field{number}": number for number in range(200)})
    assert len(some["details"]) == 20


def test_hostile_text_comes_back_cut_and_intact(client: Client) -> None:
    problem = refused(client, with_value("gpu", "x\r\nSet-Cookie: a=b\u2028" * 4))
    assert len(json.dumps(problem)) < 2_000
    assert len(problem["details"][0]["value"]) <= 60


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(["model", "workload", "gpu", "slo", "fixed", "engine_version", "name", "config", "x"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(members, json_values | st.dictionaries(members, json_values, max_size=3), max_size=5))
def test_no_body_is_a_500(client: Client, body: dict[str, Any]) -> None:
    response = client.recommend(json.dumps(body).encode())
    assert response.status_code in (200, 400, 422)
    json.loads(response.text, parse_constant=lambda token: pytest.fail(f"{token} in the answer"))
