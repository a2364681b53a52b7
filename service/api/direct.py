"""Enters raw routes without the framework's layers, of which they use none: those cost more than the network."""

from collections.abc import Callable, Iterable

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problem import RefusedError
from service.api.problem_response import problem_response
from service.api.routes import RawRoute


class Direct:
    """Between RequestBoundary and the framework, which still gets whatever is not exactly a raw route's."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[BaseRoute], clock: Callable[[], float]) -> None:
        self._app = app
        self._clock = clock
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, RawRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            await route.app(scope, receive, send)
        except RefusedError as refusal:
            await problem_response(refusal, scope=scope, unix_seconds=self._clock())(scope, receive, send)
