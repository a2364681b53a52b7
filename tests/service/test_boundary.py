"""The outermost layer on its own: a body that comes too slowly, not at all, or after the client has left."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope

from service.api.boundary import RequestBoundary
from service.api.drain import Drain
from service.api.gate import Gate
from service.api.observer import Observer
from service.api.trace_context import TraceContext
from service.app import create_app
from service.settings import Settings
from tests.service.conftest import QUESTION, Client

OPEN = Gate(tokens=None, open_routes=(), rate=None)


class Notes(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, str, TraceContext | None]] = []

    def finished(
        self, scope: Scope, *, status: int, seconds: float, request_id: str, trace: TraceContext | None
    ) -> None:
        """Status, id and trace."""
        assert seconds >= 0
        self.noted.append((status, request_id, trace))


def bounded(app: Any, notes: Observer | None = None, **changes: Any) -> RequestBoundary:
    """The boundary around an application."""
    options: dict[str, Any] = {
        "new_id": lambda: "new", "clock": lambda: 1.0, "gate": OPEN, "observer": notes or Notes(), "drain": Drain(),
        "body_timeout_s": 0.05,
    }  # fmt: skip
    return RequestBoundary(app, **(options | changes))


def exchange(boundary: RequestBoundary, arriving: Iterator[Message], **headers: str) -> list[Message]:
    """What is sent for a POST whose body arrives so; when nothing more arrives, it hangs as a stalled client does."""
    sent: list[Message] = []

    async def receive() -> Message:
        try:
            return next(arriving)
        except StopIteration:
            await asyncio.Event().wait()
            raise

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http", "method": "POST", "path": "/v1/recommend", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    asyncio.run(boundary(scope, receive, send))
    return sent


async def reading(scope: Scope, receive: Any, send: Any) -> None:
    """Answers with 204 once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def chunk(more: bool = True) -> Message:
    """A part of a body."""
    return {"type": "http.request", "body": b"x", "more_body": more}


@pytest.mark.parametrize("arriving", [[], [chunk()], [chunk(), chunk()]], ids=len)
def test_a_body_that_stalls_is_a_408_and_the_connection_ends(arriving: list[Message]) -> None:
    notes = Notes()
    start, body = exchange(bounded(reading, notes), iter(arriving))
    assert start["status"] == 408
    assert (b"connection", b"close") in [(name.lower(), value) for name, value in start["headers"]]
    assert b'"error":"request_timeout"' in body["body"]
    assert notes.noted == [(408, "new", None)]


def test_a_body_that_arrives_in_time_is_not_timed_afterwards() -> None:
    async def waiting_on(scope: Scope, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.2)
        # What comes now is that the client leaves; an application may wait for it as long as it likes.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), timeout=0.2)
        await send({"type": "http.response.start", "status": 204, "headers": []})

    assert exchange(bounded(waiting_on), iter([chunk(more=False)]))[0]["status"] == 204


def test_a_draining_process_ends_its_connections() -> None:
    drain = Drain()
    boundary = bounded(reading, drain=drain)

    def closes() -> bool:
        start = exchange(boundary, iter([chunk(more=False)]))[0]
        return (b"connection", b"close") in start["headers"]

    assert not closes()
    drain.begun = True
    assert closes()


def test_a_request_that_is_cut_off_at_the_end_is_a_503_problem() -> None:
    async def endless(scope: Scope, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def cut() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Scope = {"type": "http", "method": "GET", "path": "/v1/policy", "headers": [], "client": None}
        task = asyncio.create_task(bounded(endless)(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sent

    start, body = asyncio.run(cut())
    assert start["status"] == 503
    assert b'"error":"draining"' in body["body"]


def test_whatever_becomes_of_a_request_is_noted_once() -> None:
    async def failing(scope: Scope, receive: Any, send: Any) -> None:
        raise RuntimeError

    notes = Notes()
    exchange(bounded(reading, notes), iter([chunk(more=False)]), x_request_id="mine")
    exchange(bounded(failing, notes), iter([]))
    assert [(status, request_id) for status, request_id, _ in notes.noted] == [(204, "mine"), (500, "new")]


def test_a_traceparent_is_read_and_a_broken_one_is_none() -> None:
    notes = Notes()
    boundary = bounded(reading, notes)
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    exchange(boundary, iter([chunk(more=False)]), traceparent=f"00-{trace_id}-{parent_id}-01")
    exchange(boundary, iter([chunk(more=False)]), traceparent=f"00-{trace_id}-01")
    assert notes.noted[0][2] == TraceContext(trace_id=trace_id, parent_id=parent_id, flags="01")
    assert notes.noted[1][2] is None


def test_readiness_ends_where_draining_begins(bundle_dir: Any) -> None:
    app: FastAPI = create_app(Settings(bundle_dir=bundle_dir))
    client = Client(app)
    assert client.get("/readyz").status_code == 200
    app.state.drain.begun = True
    refused = client.get("/readyz")
    assert (refused.status_code, refused.json()["error"]) == (503, "draining")
    # What is asked all the same is answered.
    assert client.recommend(QUESTION).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_a_body_in_another_encoding_is_a_415_problem(client: Client, encoding: str) -> None:
    refused = client.recommend(QUESTION, headers={"Content-Encoding": encoding})
    assert (refused.status_code, refused.json()["error"]) == (415, "unsupported_media_type")
    assert "Content-Encoding" in refused.json()["message"]
