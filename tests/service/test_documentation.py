"""openapi.json is what is committed and what is true; /docs needs nobody else's host."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.api.response_schemas import (
    BatchAnswer,
    ConfigsAnswer,
    Health,
    ModelsAnswer,
    PolicyAnswer,
    Problem,
    Readiness,
    RecommendAnswer,
    Version,
)
from service.app import openapi_text
from tests.service.conftest import Client

COMMITTED = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The parsed document."""
    parsed: dict[str, Any] = json.loads(openapi_text())
    return parsed


def test_the_committed_document_is_the_one_that_is_served(client: Client) -> None:
    committed = COMMITTED.read_text(encoding="utf-8")
    assert openapi_text() == committed, "run 'make openapi' and commit openapi/openapi.json"
    assert client.get("/openapi.json").text == committed


def test_the_document_uses_no_word_of_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.0.3"
    text = json.dumps(document)
    assert '"const"' not in text
    assert '"type": "null"' not in text
    assert '"prefixItems"' not in text


def test_every_operation_has_a_name_a_tag_and_problems(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation["operationId"])
        assert len(operation["tags"]) == 1
        assert "application/problem+json" in operation["responses"]["500"]["content"]
        assert "422" not in operation["responses"] or "application/json" not in operation["responses"]["422"]["content"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))):
        node = document
        for step in reference.split("/"):
            node = node[step]


def test_the_request_is_a_choice_of_four_model_forms(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    forms = schemas["RecommendRequest"]["properties"]["model"]["oneOf"]
    assert [form["$ref"].rsplit("/", 1)[1] for form in forms] == [
        *("ModelByName", "ModelLike", "ModelByConfig", "ModelByNumbers")
    ]
    assert schemas["RecommendRequest"]["additionalProperties"] is False
    number, both_ends = schemas["WorkloadPart"]["properties"]["concurrency"]["oneOf"]
    assert number["maximum"] == both_ends["items"]["maximum"] == 100_000
    assert (both_ends["minItems"], both_ends["maxItems"]) == (2, 2)


def test_every_example_works_as_it_stands(client: Client, document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]["application/json"]
    assert len(body["examples"]) >= 3
    for name, example in body["examples"].items():
        answer = client.recommend(example["value"])
        assert answer.status_code == 200, f"{name}: {answer.text}"
        RecommendAnswer.model_validate_json(answer.content)


def test_every_example_of_a_batch_is_answered_as_documented(client: Client, document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/recommend:batch"]["post"]["requestBody"]["content"]["application/json"]
    statuses = {}
    for name, example in body["examples"].items():
        answer = client.request("POST", "/v1/recommend:batch", json=example["value"])
        assert answer.status_code == 200, f"{name}: {answer.text}"
        statuses[name] = [item.status for item in BatchAnswer.model_validate_json(answer.content).items]
    assert statuses == {"two": [200, 200], "one_is_refused": [200, 422]}


def test_every_answer_is_as_documented(client: Client) -> None:
    ConfigsAnswer.model_validate_json(client.get("/v1/configs").content)
    ModelsAnswer.model_validate_json(client.get("/v1/models").content)
    PolicyAnswer.model_validate_json(client.get("/v1/policy").content)
    Health.model_validate_json(client.get("/healthz").content)
    Readiness.model_validate_json(client.get("/readyz").content)
    Version.model_validate_json(client.get("/version").content)
    Problem.model_validate_json(client.get("/nowhere").content)
    Problem.model_validate_json(client.recommend({"gpu": 5}).content)


def test_the_page_and_what_it_loads_come_from_our_own_origin(client: Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(addresses) == 4
    for address in addresses:
        loaded = client.get(f"/{address}")
        assert loaded.status_code == 200, address
        assert loaded.content
    # An inline script would need a weaker policy.
    assert "<script>" not in page.text
    start = client.get("/docs/assets/start.js").text
    assert "validatorUrl: null" in start
    assert "http" not in start


def test_the_packaged_page_can_render_the_version_of_the_document(client: Client) -> None:
    bundle = client.get("/docs/assets/swagger-ui-bundle.js").text
    # Swagger UI 4 renders 2.0 and 3.0.x only; with 5 the document could be 3.1.
    assert re.search(r'"4\.\d+\.\d+"', bundle)
