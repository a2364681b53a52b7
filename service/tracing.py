"""OpenTelemetry, for who asks for it: a span for each request that is sampled, and one for its ranking."""

import time
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id

from service import __version__

EXPORT_TIMEOUT_S = 2.0
# What the instrumentation reads from headers, query and peer, by the names that it uses.
_FOREIGN = (
    "http.url", "http.target", "http.host", "http.server_name", "http.user_agent", "net.peer.ip", "net.peer.port",
    "url.full", "url.query", "url.path", "server.address", "user_agent.original", "client.address", "client.port",
)  # fmt: skip
Scope = Any
_FAILED = "memorypolicy.failed"


class Tracing:
    """One per application; nothing of it is global. Spans are sent in the background, and the last at `close`."""

    def __init__(self, *, endpoint: str, sample_ratio: float) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create({SERVICE_NAME: "memorypolicy", SERVICE_VERSION: __version__}),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("memorypolicy", __version__)

    def wrap(self, app: Any, *, route: Callable[[Scope], str]) -> Any:
        """An ASGI application, with a span around each request that is named by its route."""

        async def within(scope: Scope, receive: Any, send: Any) -> None:
            async def named(message: Any) -> None:
                # The route is known now; behind the last of the answer the span is over.
                if message["type"] == "http.response.start":
                    _name_span(scope, route(scope))
                await send(message)

            try:
                await app(scope, receive, named)
            except Exception as error:
                # The instrumentation would put its text into the span.
                trace.get_current_span().set_status(Status(StatusCode.ERROR, type(error).__name__))
                scope[_FAILED] = error

        instrumented = self._instrumented(within)

        async def around(scope: Scope, receive: Any, send: Any) -> None:
            await instrumented(scope, receive, send)
            if _FAILED in scope:
                raise scope.pop(_FAILED)

        return around

    def _instrumented(self, app: Any) -> OpenTelemetryMiddleware:
        instrumented = OpenTelemetryMiddleware(
            app,
            default_span_details=_span_details,
            server_request_hook=_hide_what_was_sent,
            tracer_provider=self._provider,
            meter_provider=NoOpMeterProvider(),
            exclude_spans=["receive", "send"],
        )
        # Variables of the whole fleet may ask for headers, and an empty list is taken for a question to them.
        instrumented.http_capture_headers_server_request = None
        instrumented.http_capture_headers_server_response = None
        return instrumented

    def trace_id(self) -> str:
        """That of the request that is being answered; "" where there is none."""
        context = trace.get_current_span().get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else ""

    def ranked(self, seconds: float) -> None:
        """A child span for a ranking that has just ended."""
        if trace.get_current_span().is_recording():
            end_ns = time.time_ns()
            span = self._tracer.start_span("rank", start_time=end_ns - int(seconds * 1e9), kind=SpanKind.INTERNAL)
            span.end(end_ns)

    def close(self) -> None:
        """Sends what waits, for EXPORT_TIMEOUT_S at most, and ends the thread."""
        self._provider.shutdown()


def _name_span(scope: Scope, route: str) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.update_name(f"{scope['method']} {route}")
        span.set_attributes({"http.route": route, "memorypolicy.request_id": scope["state"]["request_id"]})


def _span_details(scope: Scope) -> tuple[str, dict[str, Any]]:
    # The route is not known yet, and a path may hold anything.
    return "request", {}


def _hide_what_was_sent(span: Span, scope: Scope) -> None:
    """Paths, queries and headers stay out of traces as they stay out of logs; the route is added at the end."""
    if span.is_recording():
        known = getattr(span, "attributes", None) or {}
        span.set_attributes({name: "" for name in _FOREIGN if name in known})
