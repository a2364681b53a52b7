"""POST /v1/recommend:batch: each question is answered as it would be alone, and a wrong one refuses itself only."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.api.response_schemas import BatchAnswer
from service.app import create_app
from service.settings import Settings
from tests.service.conftest import QUESTION, Client

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
LIMIT = 8 * 2**20


def send(client: Client, items: object, *, path: str = "/v1/recommend:batch", **headers: str) -> httpx.Response:
    """POST with {"items": items}; bytes go as they are."""
    content = items if isinstance(items, bytes) else json.dumps({"items": items}).encode()
    return client.request("POST", path, content=content, headers={"Content-Type": "application/json", **headers})


def answered(client: Client, items: list[Any]) -> dict[str, Any]:
    response = send(client, items)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    BatchAnswer.model_validate_json(response.content)
    answer: dict[str, Any] = response.json()
    assert [entry["index"] for entry in answer["items"]] == list(range(len(items)))
    return answer


def at(concurrency: int, **changes: Any) -> dict[str, Any]:
    """QUESTION for that many clients."""
    return {**QUESTION, "workload": {**QUESTION["workload"], "concurrency": concurrency}, **changes}


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "recommendation_id"}


@pytest.fixture
def own(bundle_dir: Path, tmp_path: Path) -> Client:
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path), clock=lambda: 1_700_000_000.5))


def recorded(client: Client) -> dict[str, dict[str, Any]]:
    """Rows of the audit by id."""
    with client.app.state.api.memory.database.transaction() as connection:
        return {row["id"]: dict(row) for row in connection.execute(text("SELECT * FROM recommendations")).mappings()}


def test_each_question_is_answered_as_it_is_alone(client: Client) -> None:
    questions = [
        QUESTION,
        at(4, gpu="L40S"),
        at(16, gpu="H100", model={"name": "meta-llama/Llama-3.1-70B-Instruct"}),
        at(64, fixed={"max_num_batched_tokens": 8192}),
        at(2048),
    ]
    batch = answered(client, questions)
    assert (batch["answered"], batch["refused"]) == (5, 0)
    alone = [client.recommend(question).json() for question in questions]
    assert len({answer["decision"] for answer in alone}) == 3
    for entry, answer in zip(batch["items"], alone, strict=True):
        assert (entry["status"], entry["error"]) == (200, None)
        assert without_id(entry["answer"]) == without_id(answer)


def test_every_answer_has_an_id_of_its_own(client: Client) -> None:
    ids = {entry["answer"]["recommendation_id"] for entry in answered(client, [QUESTION] * 256)["items"]}
    assert len(ids) == 256


def test_a_measured_field_in_one_question_refuses_that_one_only(client: Client) -> None:
    leaking = {**QUESTION, "workload": {**QUESTION["workload"], "ttft_p95_ms": 812.0}}
    batch = answered(client, [QUESTION, leaking, QUESTION])
    assert (batch["answered"], batch["refused"]) == (2, 1)
    assert [entry["status"] for entry in batch["items"]] == [200, 422, 200]
    refused = batch["items"][1]
    assert refused["answer"] is None
    assert refused["error"]["error"] == "measured_field"
    assert refused["error"]["details"][0]["path"] == "$.workload.ttft_p95_ms"
    assert refused["error"]["instance"] == "/v1/recommend:batch#/items/1"


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ({}, "invalid_request"),
        (None, "invalid_request"),
        ([QUESTION], "invalid_request"),
        (at(64, model={"name": "nobody/nothing"}), "unknown_name"),
        (at(64, model={"config": {"model_type": "mamba"}}), "unsupported_model"),
        (at(0), "invalid_request"),
        ({**QUESTION, "extra": dict.fromkeys(map(str, range(300)), 0)}, "invalid_request"),
    ],
)
def test_a_question_gets_the_problem_that_it_would_get_alone(client: Client, item: object, error: str) -> None:
    batch = answered(client, [item, QUESTION])
    assert [entry["status"] for entry in batch["items"]] == [422, 200]
    problem = batch["items"][0]["error"]
    alone = client.recommend(json.dumps(item).encode()).json()
    assert (problem["error"], problem["details"]) == (error, alone["details"])


def test_where_every_question_is_refused_the_batch_still_answers(client: Client) -> None:
    batch = answered(client, [{}, {}])
    assert (batch["answered"], batch["refused"]) == (0, 2)


def test_the_problems_of_a_batch_carry_its_request_id_and_time(client: Client) -> None:
    response = send(client, [{}], **{"X-Request-ID": "batch-7"})
    problem = response.json()["items"][0]["error"]
    assert (problem["request_id"], problem["timestamp"]) == ("batch-7", 1_700_000_000)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "$.items"),
        (b'{"items": null}', "$.items"),
        (b'{"items": {}}', "$.items"),
        (b'{"items": []}', "$.items"),
        (json.dumps({"items": [{}] * 257}).encode(), "$.items"),
        (b'{"items": [{}], "policy": "x"}', "$.policy"),
        (b"[]", "$"),
    ],
    ids=["nothing", "null", "an object", "an empty list", "257", "a foreign member", "a list"],
)
def test_a_batch_that_is_none_is_a_422_problem(client: Client, body: bytes, path: str) -> None:
    response = send(client, body)
    assert response.status_code == 422
    assert response.json()["details"][0]["path"] == path


def test_a_measured_field_beside_the_questions_refuses_the_batch(client: Client) -> None:
    response = send(client, json.dumps({"items": [QUESTION], "tpot_p95": 3}).encode())
    assert (response.status_code, response.json()["error"]) == (422, "measured_field")


def test_a_body_of_exactly_the_limit_is_read_and_a_byte_more_is_a_413_problem(client: Client) -> None:
    assert send(client, b" " * LIMIT).status_code == 400
    response = send(client, b" " * (LIMIT + 1))
    assert (response.status_code, response.json()["error"]) == (413, "payload_too_large")
    assert "8,388,608 bytes" in response.json()["message"]


def test_a_single_question_may_still_have_one_mebibyte_only(client: Client) -> None:
    assert client.recommend(b" " * (2**20 + 1)).status_code == 413


def test_every_answer_of_a_batch_is_on_record_and_no_refusal_is(own: Client) -> None:
    headers = {"X-Caller": "planner", "X-Project-ID": "search", "X-Endpoint-Name": "fleet"}
    response = send(own, [at(4), {}, at(64)], path="/v1/recommend:batch?mode=shadow", **headers)
    first, _, third = (entry["answer"] for entry in response.json()["items"])
    rows = recorded(own)
    assert set(rows) == {first["recommendation_id"], third["recommendation_id"]}
    row = rows[third["recommendation_id"]]
    assert (row["caller"], row["project"], row["endpoint"], row["mode"]) == ("planner", "search", "fleet", "shadow")
    assert (row["created_ms"], row["policy_sha256"]) == (1_700_000_000_500, third["policy"]["sha256"])
    # log2(64), by hand.
    assert json.loads(row["features"])["log2_concurrency"] == 6.0


def test_a_batch_of_256_is_one_transaction(own: Client) -> None:
    answered(own, [QUESTION] * 256)
    counts = own.app.state.api.memory.journal.counts
    assert (counts.committed, counts.transactions) == (256, 1)
    assert len(recorded(own)) == 256


@pytest.mark.parametrize("header", [{"X-Caller": "a b"}, {"X-Project-ID": "é"}])
def test_a_caller_that_cannot_be_recorded_is_refused_as_for_one_question(
    client: Client, header: dict[str, str]
) -> None:
    encoded = {name: value.encode("latin-1") for name, value in header.items()}
    response = client.request("POST", "/v1/recommend:batch", json={"items": [QUESTION]}, headers=encoded)
    assert response.status_code == 422


def test_what_cannot_be_put_on_record_is_not_answered(bundle_dir: Path, tmp_path: Path) -> None:
    settings = Settings(bundle_dir=bundle_dir, data_dir=tmp_path, database_url=NOWHERE, spool_max_mib=1e-6)
    response = send(Client(create_app(settings)), [QUESTION, QUESTION])
    assert (response.status_code, response.json()["error"]) == (503, "audit_full")
    assert response.headers["retry-after"] == "5"


def test_a_batch_larger_than_a_transaction_is_answered_after_the_last_one(bundle_dir: Path, tmp_path: Path) -> None:
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, audit_group_size=10)))
    answered(client, [QUESTION] * 35)
    # Read at once: nothing is on its way any more.
    assert len(recorded(client)) == 35
