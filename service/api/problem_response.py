"""Refusals and the framework's own errors as HTTP answers."""

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from service.api.problem import MEDIA_TYPE, Detail, RefusedError, problem_body

ExceptionHandlers = dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]


def problem_response(refusal: RefusedError, *, scope: Scope, unix_seconds: float) -> Response:
    """The problem for a request whose id the boundary has put into scope."""
    body = problem_body(
        refusal,
        instance=quote(scope["path"], safe="/:", errors="replace"),
        request_id=scope["state"]["request_id"],
        unix_seconds=unix_seconds,
    )
    headers = {"Cache-Control": "no-store", **refusal.headers}
    return Response(to_json(body), status_code=refusal.status, media_type=MEDIA_TYPE, headers=headers)


def exception_handlers(clock: Callable[[], float]) -> ExceptionHandlers:
    """For the application: every foreseen exception type -> its problem."""

    async def handle(request: Request, error: Exception) -> Response:
        return problem_response(_as_refusal(request, error), scope=request.scope, unix_seconds=clock())

    return dict.fromkeys((RefusedError, HTTPException, RequestValidationError), handle)


def _as_refusal(request: Request, error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RequestValidationError):
        details = [
            Detail(path=f"?{item['loc'][-1]}", message=item["msg"], value=item["input"]) for item in error.errors()
        ]
        return RefusedError("invalid_request", f"{details[0].path}: {details[0].message}", details=details)
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return RefusedError(
            "method_not_allowed", f"{request.method} is not possible here; use {allowed}", headers=error.headers
        )
    if isinstance(error, HTTPException) and error.status_code == 404:
        return RefusedError("not_found", "nothing is served at this path; /docs lists what is")
    # The framework knows more statuses, but nothing that is used here raises them.
    raise error
