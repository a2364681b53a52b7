"""One way of answering in a process of its own, asked in memory: `python -m tests.service_bench.variant NAME`.

Reads a number of requests a line from stdin and writes the CPU seconds that they took, all threads of the process.
A process of its own, because a session with the default thread pool goes on burning CPU after it has answered.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from starlette.types import ASGIApp, Message, Scope

from service.app import create_app
from service.logs import configure
from service.policies import load_policy
from service.settings import Settings
from tests.service_bench.baselines import bare_starlette, naive_fastapi, unobserved
from tests.service_bench.questions import questions

DIFFERENT = 500
Bodies = Iterator[bytes]


def main() -> None:
    """Until stdin ends."""
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(_serve_stdin(APPS[sys.argv[1]](Path(folder))))


async def _serve_stdin(app: ASGIApp) -> None:
    bodies = itertools.cycle([json.dumps(question).encode() for question in questions(DIFFERENT)])
    for line in sys.stdin:
        print(await cpu_s_of(app, bodies, int(line)), flush=True)


async def cpu_s_of(app: ASGIApp, bodies: Bodies, count: int) -> float:
    """CPU seconds of that many requests, one after another; each must be answered with 200."""
    begun_s = time.process_time()
    for body in itertools.islice(bodies, count):
        await ask(app, body)
    return time.process_time() - begun_s


async def ask(app: ASGIApp, body: bytes) -> None:
    """One request as a server would hand it over."""
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    await app(scope(len(body)), receive, send)
    if status != 200:
        raise AssertionError(f"answered with {status}")


def scope(size: int) -> Scope:
    """Of a POST /v1/recommend with a body of that many bytes."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/recommend",
        "raw_path": b"/v1/recommend",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"gzip, deflate"),
            (b"user-agent", b"planner/1.0"),
            (b"content-type", b"application/json"),
            (b"content-length", str(size).encode()),
        ],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


def _settings(folder: Path, **changes: Any) -> Settings:
    return Settings(data_dir=folder, **changes)


def _policy(folder: Path) -> Any:
    return load_policy(_settings(folder).bundle_dir)


def _shipped(folder: Path, **changes: Any) -> ASGIApp:
    settings = _settings(folder, **changes)
    # Without it no line of a request would be written.
    configure(log_format=settings.log_format, level=settings.log_level)
    return create_app(settings)


APPS: dict[str, Callable[[Path], ASGIApp]] = {
    "shipped": lambda folder: _shipped(folder, audit=False),
    "shipped with audit": _shipped,
    "unobserved": lambda folder: unobserved(create_app(_settings(folder, audit=False))),
    "bare Starlette": lambda folder: bare_starlette(_policy(folder)),
    "naive FastAPI": lambda folder: naive_fastapi(_policy(folder)),
}


if __name__ == "__main__":
    main()
