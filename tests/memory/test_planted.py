"""Secrets planted wherever a caller could put one, on a real server that asks for tokens: none is found again."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import inspect, text

from service.api.token import token_entry
from service.db.database import open_database
from tests.memory.server import PATIENCE_S, Server
from tests.service.conftest import QUESTION
from tests.service.hooking import creation
from tests.service.test_outcomes import REPORT

# What has a known form, and what is one only by the name of its field.
FORMED = "hf_PlantedPlantedPlanted"
NAMED = "planted-without-a-form"
TOKEN = "mpt_PlantedPlantedPlantedPlanted"
NOWHERE = "postgresql://someone:PlantedPassword@127.0.0.1:1/none"
PLANTED = (FORMED, NAMED, TOKEN, "PlantedPassword")
Planted = tuple[str, str, Any, dict[str, str]]


def planted() -> Iterator[Planted]:
    """(method, path, body, headers); the body is JSON unless it is bytes."""
    recommend = "/v1/recommend"
    for body in (
        {**QUESTION, "hf_token": NAMED},
        {**QUESTION, FORMED: FORMED},
        {**QUESTION, "gpu": FORMED},
        {**QUESTION, "engine_version": FORMED},
        {**QUESTION, "model": {"name": FORMED}},
        {**QUESTION, "model": {"name": "Qwen/Qwen3-8B", "token": NAMED}},
        {**QUESTION, "model": {"config": {"model_type": FORMED, "hf_token": NAMED}}},
        {**QUESTION, "workload": {**QUESTION["workload"], "concurrency": FORMED}},
        {**QUESTION, "fixed": {"api_key": NAMED, "max_num_seqs": FORMED}},
        {**QUESTION, "slo": {FORMED: 1}},
        f'{{"gpu": "{FORMED}", "gpu": "{FORMED}"}}'.encode(),
        f'{{"gpu": "{FORMED}'.encode(),
        f"{FORMED}".encode(),
    ):
        yield "POST", recommend, body, {}
    yield "POST", f"{recommend}?mode={FORMED}", QUESTION, {}
    for header in ("X-Caller", "X-Project-ID", "X-Endpoint-Name", "X-Request-ID", "traceparent", "Content-Type"):
        yield "POST", recommend, QUESTION, {header: FORMED}
    yield "POST", recommend, QUESTION, {"Authorization": f"Bearer {FORMED}"}
    yield "POST", recommend, QUESTION, {"Authorization": f"Basic {NAMED}"}
    yield "POST", recommend, QUESTION, {"Cookie": f"session={FORMED}", "Content-Encoding": FORMED}
    for changes in (
        {"engine_args": {"api_key": NAMED, "hf_overrides": FORMED}, "recommendation_id": "none"},
        {"project": FORMED, "endpoint": "e"},
        {"project": "p", "endpoint": FORMED},
        {"recommendation_id": FORMED},
        {"recommendation_id": "none", "report_id": FORMED},
        {"recommendation_id": "none", "password": NAMED},
    ):
        yield "POST", "/v1/outcomes", {**REPORT, **changes}, {}
    verified = {
        "schema_version": 1, "recommendation_id": None, "verdict": "confirmed", "evidence": "measured-cpu",
        "model": FORMED, "gpu": FORMED, "workload": {"token": NAMED, "x": [FORMED]},
        "arms": {"recommended": {"arm": "recommended", "engine_args": {"hf_token": NAMED}, "visits": [
            {"output_throughput_tps": 1.0, "run": {"invalid_cause": FORMED}}]}},
    }  # fmt: skip
    yield "POST", "/v1/outcomes", verified, {}
    yield "POST", "/v1/hooks/endpoint-creation", creation(request={"hf_token": NAMED, "name": FORMED}), {}
    yield "POST", "/webhooks/v1/mutate-inferenceservice", {"request": {"uid": FORMED, "object": FORMED}}, {}
    for path in ("/v1/models?q=", "/v1/outcomes/report?project=", "/v1/outcomes/report?days=", "/docs/assets/", "/"):
        yield "GET", path + quote(FORMED), None, {}
    yield FORMED, "/v1/policy", None, {}


def seen_by_the_caller(port: int, plant: Planted) -> str:
    """Status, headers and body of the answer."""
    method, path, body, headers = plant
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
    for name, value in {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", **headers}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return f"{response.status} {response.headers} {response.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers} {error.read().decode()}"


@pytest.mark.parametrize("database_url", [None, NOWHERE], ids=["database", "spool"])
def test_no_planted_secret_is_in_an_answer_a_log_a_record_or_a_spool(tmp_path: Path, database_url: str | None) -> None:
    tokens_file = tmp_path / "tokens.toml"
    tokens_file.write_text(f"schema_version = 1\n{token_entry('operator', TOKEN, ['admin'])}")
    data = tmp_path / "data"
    with Server(
        data, tokens_file=tokens_file, log_level="debug", hook_deadline_ms=60_000, database_url=database_url or ""
    ) as server:
        statuses = set()
        for plant in planted():
            seen = seen_by_the_caller(server.port, plant)
            statuses.add(seen[:3])
            # An admission review must be answered under the uid that it came with.
            if plant[1].startswith("/webhooks"):
                continue
            assert [secret for secret in PLANTED if secret in seen] == [], (plant, seen)
        server.stop()
        assert [secret for secret in PLANTED if secret in server.log] == []
    assert {"200", "400", "401", "404", "415", "422"} <= statuses
    if database_url is None:
        database = open_database(None, data_dir=data)
        with database.transaction() as connection:
            tables = inspect(connection).get_table_names()
            content = repr([connection.execute(text(f"SELECT * FROM {table}")).all() for table in tables])
        database.dispose()
        assert "operator" in content
        assert [secret for secret in PLANTED if secret in content] == []
    for file in data.rglob("*"):
        if file.is_file():
            assert [secret for secret in PLANTED if secret.encode() in file.read_bytes()] == [], file
