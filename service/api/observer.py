"""What is noted of each request when it is over: it is counted, timed, and logged in one line without its content."""

import logging
from collections.abc import Callable, Collection, Iterable

from fastapi import APIRouter
from starlette.routing import Route
from starlette.types import Scope

from service.api.gate import PROBES
from service.api.metrics import Metrics
from service.api.trace_context import TraceContext
from service.logs import AccessLog

UNMATCHED = "unmatched"
# Asked every few seconds by machines; their successes would be most of the log.
QUIET = PROBES | {"/metrics"}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observer:
    """paths: the templates of the routes. trace_id: of the present request, where traces are recorded."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        access: AccessLog | None,
        paths: Collection[str],
        trace_id: Callable[[], str] | None = None,
    ) -> None:
        self._metrics, self._access, self._trace_id = metrics, access, trace_id
        self._paths = frozenset(paths)

    def finished(
        self, scope: Scope, *, status: int, seconds: float, request_id: str, trace: TraceContext | None
    ) -> None:
        """A request is over. status: 0 if the client left before an answer; seconds: since its head was there."""
        route, method = self.route(scope), scope["method"]
        if method not in _METHODS:
            method = "other"
        self._metrics.observe_request(route, method, status, seconds)
        if self._access is not None:
            trace_id = self._trace_id() if self._trace_id else trace.trace_id if trace else ""
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
        level = logging.DEBUG if route in QUIET and status < 400 else logging.ERROR if status >= 500 else logging.INFO
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
        access.write(level, fields)

    def route(self, scope: Scope) -> str:
        """The template: a path may hold anything, and each would be a series of its own."""
        # A request that was refused before it was routed has its path alone.
        route = scope.get("route")
        path = getattr(route, "path", None) or scope["path"]
        return path if path in self._paths else UNMATCHED


def templates(routers: Iterable[APIRouter]) -> frozenset[str]:
    """The paths as they are declared, `{name}` where anything may stand."""
    return frozenset(route.path for router in routers for route in router.routes if isinstance(route, Route))
