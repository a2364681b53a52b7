"""What is noted of each request when it is over: it is counted, timed, and logged in one line without its content."""

from collections.abc import Callable, Collection, Iterable

from fastapi import APIRouter
from starlette.routing import Route
from starlette.types import Scope

from service.api.metrics import Metrics
from service.api.trace_context import TraceContext
from service.logs import AccessLog

UNMATCHED = "unmatched"
# Asked every few seconds by machines; their successes would be most of the log.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Names the span of the request that is being answered, and tells its trace id: "" where none is recorded.
NameSpan = Callable[[str, str, str], str]


class Observer:
    """paths: the templates of the routes, for requests that are refused before they are routed."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        access: AccessLog | None,
        paths: Collection[str],
        name_span: NameSpan | None = None,
    ) -> None:
        self._metrics, self._access, self._name_span = metrics, access, name_span
        self._paths = frozenset(paths)

    def finished(
        self, scope: Scope, *, status: int, seconds: float, request_id: str, trace: TraceContext | None
    ) -> None:
        """A request is over. status: 0 if the client left before an answer; seconds: since its head was there."""
        route, method = self._route(scope), scope["method"]
        if method not in _METHODS:
            method = "other"
        self._metrics.observe_request(route, method, status, seconds)
        trace_id = trace.trace_id if trace is not None else ""
        if self._name_span is not None:
            trace_id = self._name_span(method, route, request_id) or trace_id
        if self._access is not None:
            self._log(self._access, scope, route, method, status, seconds, request_id, trace_id)

    def _log(
        self,
        access: AccessLog,
        scope: Scope,
        route: str,
        method: str,
        status: int,
        seconds: float,
        request_id: str,
        trace_id: str,
    ) -> None:
        write = access.debug if route in PROBES and status < 400 else access.error if status >= 500 else access.info
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            "request_id": request_id,
        }
        if trace_id:
            fields["trace_id"] = trace_id
        # Set where tokens are asked for: the token's name, never the token.
        caller = scope.get("state", {}).get("caller")
        if caller is not None:
            fields["caller"] = str(caller)
        write("request", **fields)

    def _route(self, scope: Scope) -> str:
        """The template: a path may hold anything, and each would be a series of its own."""
        route = scope.get("route")
        path = getattr(route, "path", None) or scope["path"]
        return path if path in self._paths else UNMATCHED


def templates(routers: Iterable[APIRouter]) -> frozenset[str]:
    """The paths as they are declared, `{name}` where anything may stand."""
    return frozenset(route.path for router in routers for route in router.routes if isinstance(route, Route))
