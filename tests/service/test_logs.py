"""What is written to stderr: a line for each thing that happens, and nothing of what a request held."""

import asyncio
import io
import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.settings import Settings
from tests.memory.server import PATIENCE_S, Server
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import creation
from tests.service.logged import Logged

SECRET = "hf_planted0123456789abcdefghijklmnopq"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def own(logged: Logged, bundle_dir: Path, tmp_path: Path) -> Client:
    """A client of an application whose requests are logged."""
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path, hook_deadline_ms=60_000)))


def requests(logged: Logged) -> list[dict[str, Any]]:
    """The lines about requests."""
    return [line for line in logged.lines if line["logger"] == "service.access"]


def fail() -> None:
    """Raises what holds a secret, from another error that holds it too."""
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(f"not {SECRET}") from error


def test_a_request_is_one_object_with_its_route_status_time_and_ids(logged: Logged, own: Client) -> None:
    headers = {"X-Request-ID": "mine-7", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    assert own.recommend(QUESTION, headers=headers).status_code == 200
    (line,) = requests(logged)
    # It took some time, and less than a quarter of an hour.
    assert 0 < line.pop("ms") < 900_000
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "logger": "service.access",
        "level": "info",
        "event": "request",
        "method": "POST",
        "route": "/v1/recommend",
        "status": 200,
        "request_id": "mine-7",
        "trace_id": TRACE,
    }


def test_no_line_holds_a_body_a_header_a_query_or_a_path(logged: Logged, own: Client) -> None:
    planted = {"model": {"name": SECRET}, SECRET: SECRET, "workload": {SECRET: 1}}
    headers = {
        "Authorization": f"Bearer {SECRET}",
        "X-Caller": SECRET,
        "User-Agent": SECRET,
        "X-Request-ID": f"/{SECRET}",
    }
    own.recommend(planted, headers=headers)
    own.recommend({**QUESTION, "model": {"name": SECRET}}, headers=headers)
    own.recommend(f'{{"{SECRET}'.encode(), headers=headers)
    own.get(f"/v1/models?q={SECRET}")
    own.get(f"/{SECRET}/{SECRET}")
    own.get(f"/docs/assets/{SECRET}")
    own.request("POST", "/v1/hooks/endpoint-creation", json=creation(f"--hf-token {SECRET}"))
    own.request("POST", "/webhooks/v1/mutate-inferenceservice", json={"request": {"uid": SECRET, "object": SECRET}})
    own.request("POST", "/v1/outcomes", json={SECRET: SECRET})
    assert len(requests(logged)) == 9
    assert SECRET not in logged.text


def test_a_failure_is_logged_by_its_kind_and_place(logged: Logged, bundle_dir: Path, tmp_path: Path) -> None:
    def broken() -> str:
        raise RuntimeError(SECRET)

    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path), new_id=broken))
    response = client.recommend(QUESTION, headers={"X-Request-ID": "mine-8"})
    assert response.status_code == 500
    failure, access = logged.lines[-2:]
    assert failure["event"].startswith("request mine-8: the service failed with RuntimeError in test_logs.broken:")
    assert (failure["level"], failure["request_id"]) == ("error", "mine-8")
    assert (access["status"], access["level"]) == (500, "error")
    assert SECRET not in logged.text


def test_an_exception_leaves_its_types_and_frames_but_no_text(logged: Logged) -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger("service.somewhere").exception("it failed")
    (line,) = logged.lines
    assert (line["event"], line["error"]) == ("it failed", "ValueError from KeyError")
    assert line["frames"][0].startswith("test_logs.fail:")
    assert SECRET not in logged.text


def test_a_task_that_nobody_waits_for_leaves_no_text(logged: Logged) -> None:
    async def forgotten() -> None:
        fail()

    async def main() -> None:
        task = asyncio.create_task(forgotten())
        await asyncio.wait({task})
        del task

    asyncio.run(main())
    (line,) = logged.lines
    assert (line["event"], line["logger"]) == ("Task exception was never retrieved", "asyncio")
    assert SECRET not in logged.text


def test_a_thread_that_fails_leaves_no_text(logged: Logged) -> None:
    thread = threading.Thread(target=fail, name="some-thread")
    thread.start()
    thread.join()
    (line,) = logged.lines
    assert line["event"].startswith("the thread some-thread failed with ValueError from KeyError in test_logs.fail:")
    assert SECRET not in logged.text


def test_a_warning_leaves_its_category_and_place(logged: Logged) -> None:
    warnings.showwarning(UserWarning(SECRET), UserWarning, __file__, 7)
    (line,) = logged.lines
    assert (line["event"], line["level"]) == ("UserWarning in test_logs:7", "warning")


def test_what_others_say_below_a_warning_is_not_written(logged: Logged) -> None:
    logged.configure(level="debug")
    for name in ("sqlalchemy.engine", "httpx", "alembic.runtime"):
        logging.getLogger(name).info(SECRET)
    logging.getLogger("service.somewhere").debug("ours")
    assert [line["event"] for line in logged.lines] == ["ours"]


def test_nobody_forges_a_line(logged: Logged) -> None:
    for log_format in ("json", "text"):
        logged.configure(log_format=log_format)
        logging.getLogger("service.somewhere").warning("one\nlevel=error forged\r\nagain")
    assert len(logged.text.splitlines()) == 2


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["/v1/models", "/healthz"]), ("info", ["/v1/models"]), ("warning", []), ("error", [])],
)
def test_probes_are_logged_for_who_looks_closely(
    logged: Logged, bundle_dir: Path, tmp_path: Path, level: str, expected: list[str]
) -> None:
    logged.configure(level=level)
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path)))
    client.get("/v1/models")
    client.get("/healthz")
    assert [line["route"] for line in requests(logged)] == expected


def test_a_probe_that_is_refused_is_logged(logged: Logged, own: Client) -> None:
    own.app.state.drain.begun = True
    own.get("/readyz")
    assert [(line["route"], line["status"], line["level"]) for line in requests(logged)] == [("/readyz", 503, "error")]


def test_text_is_for_a_person(logged: Logged, bundle_dir: Path, tmp_path: Path) -> None:
    logged.configure(log_format="text")
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path)))
    client.get("/v1/models")
    logging.getLogger("service.somewhere").warning("a word to you")
    request, word = logged.text.splitlines()[-2:]
    assert "route=/v1/models" in request
    assert "a word to you" in word
    with pytest.raises(json.JSONDecodeError):
        json.loads(request)


class Closed(io.StringIO):
    """What stderr is when its reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, f"Broken pipe, for {text}")


def test_a_log_that_nobody_reads_fails_no_request(logged: Logged, bundle_dir: Path, tmp_path: Path) -> None:
    logged.stream = Closed()
    logged.configure()
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path)))
    logging.getLogger("service.somewhere").error("lost")
    assert client.recommend(QUESTION).status_code == 200


def test_without_a_configuration_requests_are_not_logged(
    bundle_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path)))
    client.get("/v1/models")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("processes", [1, 2])
def test_every_line_of_a_real_server_is_an_object_and_none_holds_a_secret(
    bundle_dir: Path, tmp_path: Path, processes: int
) -> None:
    settings: dict[str, Any] = {"bundle_dir": bundle_dir, "log_level": "debug", "workers": processes, "drain_s": 0}
    with Server(tmp_path, **settings) as server:
        url = f"http://127.0.0.1:{server.port}"
        headers = {"X-Caller": SECRET, "Authorization": f"Bearer {SECRET}"}
        httpx.post(f"{url}/v1/recommend?mode={SECRET}", json={SECRET: 1}, headers=headers, timeout=PATIENCE_S)
        httpx.get(f"{url}/{SECRET}", timeout=PATIENCE_S)
        assert server.stop() == 0
    lines = [line for line in server.log.splitlines() if not line.startswith("serving on ")]
    loggers = {json.loads(line)["logger"] for line in lines}
    assert {"service.access", "service.db.schema", "uvicorn.error"} <= loggers
    assert SECRET not in server.log
