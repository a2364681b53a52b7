"""What an answer leaves behind, and that no answer leaves without it."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service.app import create_app
from service.domain.features import FEATURE_NAMES
from service.settings import Settings
from tests.service.conftest import QUESTION, Client

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
CONFIG = {
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


@pytest.fixture
def own(bundle_dir: Path, tmp_path: Path) -> Client:
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path), clock=lambda: 1_700_000_000.5))


def recorded(client: Client) -> list[dict[str, Any]]:
    with client.app.state.api.memory.database.transaction() as connection:
        rows = connection.execute(text("SELECT * FROM recommendations ORDER BY created_ms")).mappings().all()
    return [dict(row) for row in rows]


def test_an_answer_is_on_record_with_question_features_policy_and_caller(own: Client) -> None:
    headers = {"X-Caller": "metis", "X-Project-ID": "search/eu", "X-Endpoint-Name": "qwen3-8b"}
    answer = own.request("POST", "/v1/recommend?mode=shadow", json=QUESTION, headers=headers).json()
    (row,) = recorded(own)
    assert (row["id"], row["created_ms"]) == (answer["recommendation_id"], 1_700_000_000_500)
    assert (row["caller"], row["project"], row["endpoint"]) == ("metis", "search/eu", "qwen3-8b")
    assert (row["mode"], row["decision"], row["model"]) == ("shadow", "recommended", "Qwen/Qwen3-8B")
    assert (row["policy_version"], row["policy_sha256"]) == (answer["policy"]["version"], answer["policy"]["sha256"])
    assert json.loads(row["request"])["workload"] == QUESTION["workload"]
    features = json.loads(row["features"])
    assert list(features) == list(FEATURE_NAMES[:8])
    # log2(64), by hand.
    assert (features["log2_concurrency"], features["prompt_tokens"]) == (6.0, 512.0)
    kept = json.loads(row["answer"])
    assert kept["set"] == answer["set"]
    assert kept["ranked"] == [[r["config_id"], r["score"], r["feasible"]] for r in answer["ranked"]]


def test_a_range_is_on_record_as_it_was_understood(own: Client) -> None:
    workload = {"preset": "chat", "concurrency": [16, 64], "max_output_tokens": 1000}
    assert own.recommend({**QUESTION, "workload": workload, "explain": True}).status_code == 200
    (row,) = recorded(own)
    request = json.loads(row["request"])
    assert request["workload"] == {**QUESTION["workload"], "concurrency": 32}
    assert request["workload_range"]["concurrency"] == [16, 64]
    assert request["workload_range"]["prompt_tokens"] == [512, 512]
    assert request["longest_request_tokens"] == 1512
    assert request["assumed"]["workload.prompt_tokens"] == 512
    # What the question and the policy give again is not kept.
    assert not {"range", "holds_until", "explanation"} & set(json.loads(row["answer"]))


def test_nobody_in_particular_is_recorded_as_that(own: Client) -> None:
    assert own.recommend(QUESTION).status_code == 200
    (row,) = recorded(own)
    assert (row["caller"], row["project"], row["endpoint"], row["mode"]) == (None, None, None, "apply")


def test_of_a_config_only_the_numbers_are_kept(own: Client) -> None:
    config = {**CONFIG, "hf_token": "hf_planted_secret", "auto_map": {"x": "planted"}}
    assert own.recommend({**QUESTION, "model": {"config": config}}).status_code == 200
    (row,) = recorded(own)
    assert "planted" not in json.dumps(row)
    assert json.loads(row["request"])["model"]["kv_bytes_per_token"] == 147_456


def test_a_refused_question_leaves_no_record(own: Client) -> None:
    assert own.recommend({**QUESTION, "ttft_p95": 1}).status_code == 422
    assert recorded(own) == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("X-Project-ID", {"X-Project-ID": "a b"}),
        ("X-Caller", {"X-Caller": "x" * 129}),
        ("X-Endpoint-Name", {"X-Endpoint-Name": "'; DROP TABLE"}),
        ("?mode", {}),
    ],
)
def test_a_name_that_cannot_be_recorded_is_refused(own: Client, path: str, headers: dict[str, str]) -> None:
    query = "?mode=secret" if path == "?mode" else ""
    problem = own.request("POST", f"/v1/recommend{query}", json=QUESTION, headers=headers)
    assert (problem.status_code, problem.json()["details"][0]["path"]) == (422, path)


def test_with_the_database_away_answers_go_on_until_the_spool_is_full(bundle_dir: Path, tmp_path: Path) -> None:
    settings = Settings(bundle_dir=bundle_dir, data_dir=tmp_path, database_url=NOWHERE, spool_max_mib=0.006)
    client = Client(create_app(settings))
    answers = [client.recommend(QUESTION) for _ in range(8)]
    statuses = [answer.status_code for answer in answers]
    kept = statuses.count(200)
    # 0.006 MiB are 6,291 bytes; a record is between one and three kilobytes.
    assert 1 < kept < 7
    assert statuses == [200] * kept + [503] * (8 - kept)
    assert answers[-1].json()["error"] == "audit_full"
    assert int(answers[-1].headers["Retry-After"]) > 0
    counters = client.get("/metrics").text
    assert f'memorypolicy_audit_records_total{{outcome="spooled"}} {kept}' in counters
    assert f'memorypolicy_audit_records_total{{outcome="refused"}} {8 - kept}' in counters
    assert "memorypolicy_audit_database_away 1" in counters
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["error"]) == (503, "audit_full")


def test_without_an_audit_answers_leave_without_a_record(bundle_dir: Path, tmp_path: Path) -> None:
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, audit=False)))
    assert client.recommend(QUESTION).status_code == 200
    assert recorded(client) == []
    assert client.get("/readyz").json()["audit"] == "off"


def test_readiness_names_where_records_go(own: Client) -> None:
    own.recommend(QUESTION)
    assert own.get("/readyz").json()["audit"] == "database"
