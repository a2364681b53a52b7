"""Raw routes are entered without the framework, with the route in scope and refusals as problems all the same."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from service.api.direct import Direct
from service.api.routes import RawRoute


class Elsewhere:
    """Stands where the framework does."""

    def __init__(self) -> None:
        self.reached = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached += 1


def asked(app: FastAPI, method: str, path: str) -> tuple[Scope, list[Message], Elsewhere]:
    """A request without a body and without headers: the scope afterwards, what was sent, who else was reached."""
    sent: list[Message] = []
    elsewhere = Elsewhere()
    state = {"request_id": "abc"}
    scope: Scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "state": state}

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope["app"] = app
    asyncio.run(Direct(elsewhere, routes=app.routes, clock=lambda: 1_700_000_000.9)(scope, receive, send))
    return scope, sent, elsewhere


@pytest.mark.parametrize(
    "path", ["/v1/recommend", "/v1/recommend:batch", "/v1/outcomes", "/v1/hooks/endpoint-creation"]
)
def test_a_raw_route_is_entered_and_refuses_with_a_problem(app: FastAPI, path: str) -> None:
    scope, sent, elsewhere = asked(app, "POST", path)
    assert elsewhere.reached == 0
    assert isinstance(scope["route"], RawRoute)
    assert scope["route"].path == path
    assert sent[0]["status"] == 415
    problem: dict[str, Any] = json.loads(sent[1]["body"])
    assert (problem["error"], problem["request_id"]) == ("unsupported_media_type", "abc")
    assert (problem["instance"], problem["timestamp"]) == (path, 1_700_000_000)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/recommend"),
        ("HEAD", "/v1/policy"),
        ("POST", "/v1/recommend/"),
        ("POST", "/V1/recommend"),
        ("GET", "/v1/configs"),
        ("GET", "/nowhere"),
    ],
)
def test_whatever_is_not_exactly_a_raw_route_s_goes_to_the_framework(app: FastAPI, method: str, path: str) -> None:
    _, sent, elsewhere = asked(app, method, path)
    assert (elsewhere.reached, sent) == (1, [])


def test_what_is_no_http_goes_to_the_framework(app: FastAPI) -> None:
    elsewhere = Elsewhere()

    async def receive() -> Message:
        raise AssertionError("nobody should ask")

    async def send(message: Message) -> None:
        raise AssertionError(f"nobody listens to {message}")

    asyncio.run(Direct(elsewhere, routes=app.routes, clock=lambda: 0.0)({"type": "lifespan"}, receive, send))
    assert elsewhere.reached == 1
