"""Errors outside a body's content, request ids, and what stays out of every answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.settings import Settings
from tests.service.conftest import QUESTION, Client

MEMBERS = {
    *("type", "title", "status", "detail", "instance"),
    *("error", "message", "request_id", "timestamp", "details"),
}


def check_problem(response: httpx.Response, *, status: int, error: str) -> dict[str, Any]:
    """Every problem has all members, repeats its status and its request id, and is not cached."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    problem: dict[str, Any] = response.json()
    assert set(problem) == MEMBERS
    assert (problem["status"], problem["error"]) == (status, error)
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["timestamp"] == 1_700_000_000
    assert problem["message"] == problem["detail"]
    return problem


@pytest.mark.parametrize(
    "path", ["/page", "/v1/nothing", "/v1/recommend/", "/docs/assets/index.html", "/page/index.html", "/v1/%2e%2e%ff"]
)
def test_an_unknown_path_is_a_404_problem(client: Client, path: str) -> None:
    check_problem(client.get(path), status=404, error="not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/recommend", "POST"),
        ("DELETE", "/v1/recommend", "POST"),
        ("POST", "/v1/configs", "GET"),
        ("PUT", "/docs", "GET"),
    ],
)
def test_a_wrong_method_is_a_405_problem_with_the_allowed_ones(
    client: Client, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path)
    check_problem(response, status=405, error="method_not_allowed")
    assert response.headers["allow"] == allowed


def test_a_large_body_is_a_413_problem(client: Client) -> None:
    problem = check_problem(client.recommend(b" " * (2**20 + 1)), status=413, error="payload_too_large")
    assert "1,048,576 bytes" in problem["message"]


def test_a_body_of_exactly_the_limit_is_read(client: Client) -> None:
    assert client.recommend(b" " * 2**20).status_code == 400


def test_a_large_body_in_chunks_without_a_length_is_a_413_problem(client: Client) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b" " * 2**16

    headers = {"Content-Type": "application/json"}
    response = client.request("POST", "/v1/recommend", content=chunks(), headers=headers)
    assert "content-length" not in response.request.headers
    check_problem(response, status=413, error="payload_too_large")
    # 16 chunks are the limit; the 17th exceeds it and the rest is not waited for.
    assert sent <= 18


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/json; charset=latin-1", ""],
)
def test_a_body_that_is_not_declared_as_json_is_a_415_problem(client: Client, content_type: str) -> None:
    response = client.recommend(QUESTION, headers={"Content-Type": content_type})
    check_problem(response, status=415, error="unsupported_media_type")


def test_a_body_without_a_content_type_is_a_415_problem(client: Client) -> None:
    response = client.request("POST", "/v1/recommend", content=b"{}")
    check_problem(response, status=415, error="unsupported_media_type")


def test_a_query_parameter_that_is_too_long_is_a_422_problem(client: Client) -> None:
    problem = check_problem(client.get(f"/v1/models?q={'x' * 201}"), status=422, error="invalid_request")
    assert problem["details"][0]["path"] == "?q"


def test_an_unforeseen_error_is_a_500_problem_without_its_cause(
    bundle_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str:
        raise RuntimeError("the secret cause")

    app = create_app(Settings(bundle_dir=bundle_dir), clock=lambda: 1_700_000_000.0, new_id=broken)
    with caplog.at_level(logging.ERROR):
        response = Client(app).recommend(QUESTION, headers={"X-Request-ID": "trace-7"})
    check_problem(response, status=500, error="internal_error")
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-request-id"] == "trace-7"
    assert "trace-7" in caplog.text
    assert "RuntimeError in test_problems.broken" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("request_id", ["abc", "0af7651916cd43dd8448eb211c80319c", "a.b:c_d-e", "x" * 128])
def test_a_usable_request_id_comes_back(client: Client, request_id: str) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": request_id}).headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 129, "id\tforged", "é", "<script>", '"'])
def test_an_unusable_request_id_is_replaced(client: Client, request_id: str) -> None:
    response = client.get("/healthz", headers={"X-Request-ID": request_id.encode("latin-1")})
    assert len(response.headers["x-request-id"]) == 36


def test_requests_get_ids_of_their_own(client: Client) -> None:
    ids = {client.get("/healthz").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_client_that_leaves_is_no_error(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError(f"nobody listens to {message}")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/recommend",
        "raw_path": b"/v1/recommend",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("service", 80),
        "client": ("test", 1),
        "asgi": {"version": "3.0"},
    }
    with caplog.at_level(logging.WARNING):
        asyncio.run(app(scope, receive, send))
    assert not caplog.records
