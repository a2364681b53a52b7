"""A collector of traces on 127.0.0.1 that takes OTLP over HTTP as the real one does and keeps what it got."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpCollector(ThreadingHTTPServer):
    """POST /v1/traces; bodies: as they came, without their compression. paths: of all that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @property
    def endpoint(self) -> str:
        """What MEMORYPOLICY_OTLP_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        """What came, read."""
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Span]:
        """All of them."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: OtlpCollector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        if known:
            self.server.bodies.append(body)
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """The test's own output is enough."""


@contextmanager
def collecting() -> Iterator[OtlpCollector]:
    """A collector that is gone afterwards."""
    with OtlpCollector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
