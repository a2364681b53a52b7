"""Traces go to a collector that somebody names, and hold no more of a request than the logs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from service.tracing import Tracing
from tests.memory.server import PATIENCE_S, Server
from tests.service.conftest import QUESTION
from tests.service.otlp_collector import OtlpCollector, collecting
from tests.service.serving import ROOT, free_port

SECRET = "hf_planted0123456789abcdefghijklmnopq"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def ask(server: Server, path: str = "/v1/recommend", **headers: str) -> httpx.Response:
    """One question to a real process."""
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", json=QUESTION, headers=headers, timeout=PATIENCE_S)


def attributes(span: Span) -> dict[str, Any]:
    return {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes}


def test_a_request_and_its_ranking_are_spans_of_the_callers_trace(bundle_dir: Path, tmp_path: Path) -> None:
    with collecting() as collector:
        with Server(tmp_path, bundle_dir=bundle_dir, otlp_endpoint=collector.endpoint, trace_sample_ratio=0) as server:
            assert ask(server, **SAMPLED, **{"X-Request-ID": "mine-9"}).status_code == 200
            # Whoever called decides: neither this one nor one without a trace is sampled.
            assert ask(server, traceparent=f"00-{TRACE[::-1]}-{PARENT}-00").status_code == 200
            assert ask(server).status_code == 200
            assert server.stop() == 0
        by_name = {span.name: span for span in collector.spans}
        assert len(collector.spans) == 2
        request, rank = by_name["POST /v1/recommend"], by_name["rank"]
        assert request.kind == Span.SPAN_KIND_SERVER
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
        assert (rank.trace_id.hex(), rank.parent_span_id) == (TRACE, request.span_id)
        assert request.start_time_unix_nano <= rank.start_time_unix_nano
        assert rank.end_time_unix_nano <= request.end_time_unix_nano
        held = attributes(request)
        assert (held["http.route"], held["memorypolicy.request_id"]) == ("/v1/recommend", "mine-9")
        (resource,) = {
            item.value.string_value
            for got in collector.requests
            for part in got.resource_spans
            for item in part.resource.attributes
            if item.key == "service.name"
        }
        assert resource == "memorypolicy"


def test_a_sampled_request_without_a_trace_begins_one_which_its_log_line_names(
    bundle_dir: Path, tmp_path: Path
) -> None:
    with collecting() as collector:
        with Server(tmp_path, bundle_dir=bundle_dir, otlp_endpoint=collector.endpoint, trace_sample_ratio=1) as server:
            assert ask(server).status_code == 200
            assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        (line,) = [line for line in lines if line.get("route") == "/v1/recommend"]
        assert {span.trace_id.hex() for span in collector.spans if span.name != "GET /readyz"} == {line["trace_id"]}


def test_no_trace_holds_a_body_a_header_a_query_or_a_path(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Somebody sets these for a whole fleet.
    for direction in ("REQUEST", "RESPONSE"):
        monkeypatch.setenv(f"OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_{direction}", ".*")
    with collecting() as collector:
        with Server(tmp_path, bundle_dir=bundle_dir, otlp_endpoint=collector.endpoint, trace_sample_ratio=1) as server:
            headers = {
                "User-Agent": SECRET,
                "Authorization": f"Bearer {SECRET}",
                "Host": f"{SECRET}.example",
                "X-Caller": SECRET,
                "baggage": f"token={SECRET}",
                "tracestate": f"vendor={SECRET}",
                "X-Forwarded-For": SECRET,
                **SAMPLED,
            }
            assert ask(server, f"/v1/recommend?mode={SECRET}", **headers).status_code == 422
            assert ask(server, f"/{SECRET}/{SECRET}?{SECRET}", **headers).status_code == 404
            assert server.stop() == 0
        names = {span.name for span in collector.spans}
        assert {"POST /v1/recommend", "POST unmatched"} <= names
        for span in collector.spans:
            # The caller's own tracing put its state there, for whoever continues the trace.
            span.trace_state = ""
            assert SECRET.encode() not in span.SerializeToString()


def test_a_collector_that_is_away_costs_no_answer(bundle_dir: Path, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with Server(tmp_path, bundle_dir=bundle_dir, otlp_endpoint=nobody, trace_sample_ratio=1) as server:
        assert ask(server).status_code == 200
        assert server.stop() == 0
    assert all(json.loads(line) for line in server.log.splitlines() if line.startswith("{"))
    assert "Traceback" not in server.log


def traced(collector: OtlpCollector, app: Any) -> None:
    """One request to an ASGI application that is traced."""
    tracing = Tracing(endpoint=collector.endpoint, sample_ratio=1)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "scheme": "http"}

    async def nothing(*_: object) -> dict[str, Any]:
        return {}

    try:
        asyncio.run(tracing.wrap(app, route=lambda _: "/")(scope, nothing, nothing))
    finally:
        tracing.close()


def test_an_application_that_fails_leaves_the_kind_of_its_failure_and_no_text() -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    with collecting() as collector:
        with pytest.raises(RuntimeError, match=SECRET):
            traced(collector, broken)
        (span,) = collector.spans
        assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "RuntimeError")
        assert not span.events
        assert SECRET.encode() not in collector.bodies[0]


def test_who_asks_for_no_traces_imports_nothing_of_them(bundle_dir: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; "
        "from service.app import create_app; from service.settings import Settings; "
        "create_app(Settings(bundle_dir=Path(sys.argv[1]), data_dir=Path(sys.argv[2]))); "
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    command = [sys.executable, "-c", program, str(bundle_dir), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_but_the_setting_starts_traces(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        # What turns the framework's own telemetry on.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
        with Server(tmp_path, bundle_dir=bundle_dir) as server:
            assert ask(server, **SAMPLED).status_code == 200
            assert server.stop() == 0
        assert collector.paths == []
