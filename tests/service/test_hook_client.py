"""The client in one file: no dependency, half a second, one attempt, and the request as it was on any failure."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from service.hook_client import ask, merge_patch, patched
from tests.service.hooking import CREATION
from tests.service.serving import free_port

CLIENT = Path(__file__).parents[2] / "service" / "hook_client.py"


@contextmanager
def answering(status: int, body: bytes, *, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[Any]]]:
    """A real server with one answer for everything; what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_is_taken_as_it_is_and_its_patch_applied() -> None:
    answer = {"decision": "apply", "request_patch": {"workload_config": {"extra_args": "--x"}}}
    with answering(200, json.dumps(answer).encode()) as (url, asked):
        # Patience for a busy machine; the default is half a second.
        found = ask(f"{url}/", CREATION, token="t", idempotency_key="k", timeout_s=20)
    assert found == answer
    ((path, headers, body),) = asked
    assert (path, body) == ("/v1/hooks/endpoint-creation", CREATION)
    assert (headers["Authorization"], headers["Idempotency-Key"]) == ("Bearer t", "k")
    after = patched(CREATION["request"], found)
    assert after["workload_config"] == {"max_model_len": 8192, "extra_args": "--x"}
    assert "extra_args" not in CREATION["request"]["workload_config"]


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b"{}", "refused"),
        (422, b"{}", "refused"),
        (204, b"", "refused"),
        (302, b"", "refused"),
        (200, b"", "unreadable"),
        (200, b"<html>", "unreadable"),
        (200, b"[]", "unreadable"),
        (200, b'{"decision": "apply"}', "unreadable"),
        (200, b'{"decision": "force", "request_patch": {}}', "unreadable"),
        (200, b"[" * 100_000, "unreadable"),
        (200, b" " * (2**20 + 1), "unreadable"),
    ],
)
def test_anything_else_is_a_skip_after_one_attempt(status: int, body: bytes, reason: str) -> None:
    with answering(status, body, headers={"Location": "http://127.0.0.1:1/"}) as (url, asked):
        found = ask(url, CREATION, timeout_s=20)
    assert (found["decision"], found["reason"], len(asked)) == ("skip", reason, 1)
    assert patched(CREATION["request"], found) == CREATION["request"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "nonsense", "http://[::1", "http://no.such.host.invalid"])
def test_nobody_there_is_a_skip(url: str) -> None:
    found = ask(url.format(port=free_port()), CREATION, timeout_s=20)
    assert found["decision"] == "skip"


def test_an_event_that_is_no_json_is_a_skip() -> None:
    assert ask("http://127.0.0.1:1", {"x": object()}, timeout_s=20)["reason"] == "unreadable"


def test_a_shadow_and_a_skip_change_nothing_whatever_patch_they_carry() -> None:
    for decision in ("shadow", "skip"):
        assert patched({"a": 1}, {"decision": decision, "request_patch": {"a": 2}}) == {"a": 1}


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        # RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_merge_is_the_one_of_the_rfc(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged


def test_the_file_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "hook_client.py").write_bytes(CLIENT.read_bytes())
    script = "import hook_client; print(hook_client.ask('http://127.0.0.1:1', {}, timeout_s=20)['decision'])"
    # No site-packages, no environment.
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "skip"
