"""What is measured after launch is refused by name wherever a request could smuggle it in."""

from copy import deepcopy
from typing import Any

import pytest

from service.api.request_schemas import PART_BY_LOCATION
from service.domain.leakage import measured_field
from tests.service.conftest import QUESTION, Client

SPELLINGS = [
    ("ttft_p95", "ttft_p95"),
    ("TTFT-p95-ms", "ttft_p95"),
    ("ttft_p50_ms", "ttft_p50"),
    ("kv_cache_usage", "kv_cache_usage"),
    ("vllm:kv_cache_usage_perc", "kv_cache_usage"),
    ("slo_met", "slo_met"),
    ("num_requests_running", "running_queue_length"),
    ("num_requests_waiting", "waiting_queue_length"),
    ("prefix_cache_hit_rate", "prefix_cache_hit_rate"),
    ("tpot_p95_ms", "tpot_p95"),
    ("outputThroughput", "output_throughput"),
    ("preemptions", "preemptions"),
    ("error_rate", "error_rate"),
    ("completed", "completed_requests"),
    ("server_started", "server_started"),
]


def place(parents: tuple[str, ...], name: str) -> dict[str, Any]:
    """QUESTION with a measured field below those parents."""
    body: dict[str, Any] = deepcopy(QUESTION)
    target = body
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = 0.5
    return body


@pytest.mark.parametrize("parents", [(), ("workload",), ("model",), ("fixed",), ("extra",), ("extra", "deep")])
@pytest.mark.parametrize(("name", "quantity"), SPELLINGS)
def test_a_measured_field_is_refused_by_name_and_told_why(
    client: Client, parents: tuple[str, ...], name: str, quantity: str
) -> None:
    response = client.recommend(place(parents, name))
    assert response.status_code == 422
    problem = response.json()
    assert problem["error"] == "measured_field"
    detail = problem["details"][0]
    assert name in detail["path"]
    assert all(parent in detail["path"] for parent in parents)
    assert quantity in detail["message"]
    assert "exists only after launch" in detail["message"]


def test_a_measured_field_in_a_list_is_found_with_its_index(client: Client) -> None:
    problem = client.recommend({**QUESTION, "history": [{}, {"ttft_p95": 1}]}).json()
    assert problem["details"][0]["path"] == "$.history[1].ttft_p95"


def test_every_measured_field_is_listed(client: Client) -> None:
    body = {**QUESTION, "slo_met": True, "workload": {**QUESTION["workload"], "tpot_p95": 5}}
    paths = {detail["path"] for detail in client.recommend(body).json()["details"]}
    assert paths == {"$.slo_met", "$.workload.tpot_p95"}


def test_it_wins_over_other_faults_of_the_same_request(client: Client) -> None:
    assert client.recommend({"ttft_p95": 1}).json()["error"] == "measured_field"


def test_a_config_is_foreign_text_and_an_slo_names_goals(client: Client) -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
        "error_rate": 1,
        "a": {"ttft_p95": 2},
    }
    body = {**QUESTION, "model": {"config": config}, "slo": {"max_p95_ttft_ms": 3000, "max_error_rate": 0.01}}
    assert client.recommend(body).status_code == 200
    # Inside slo a measured name is no goal of ours: unknown, but not a leak.
    assert client.recommend({**QUESTION, "slo": {"ttft_p95": 1}}).json()["error"] == "invalid_request"


def test_no_name_that_the_schema_knows_is_a_measured_quantity() -> None:
    # A body is guarded only where the schema refuses it, so the schema itself must not let one in.
    guarded = [part for location, part in PART_BY_LOCATION.items() if location != ("slo",)]
    assert len(guarded) == 9
    names = {name for part in guarded for name in part.model_fields}
    assert {name: measured_field(name) for name in names if measured_field(name)} == {}
    assert all(part.model_config["extra"] == "forbid" for part in PART_BY_LOCATION.values())
