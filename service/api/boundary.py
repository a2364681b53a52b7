"""The outermost ASGI layer: request ids, the body limit, and an answer for errors that nobody foresaw."""

import logging
import re
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problem import RefusedError
from service.api.problem_response import problem_response

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
# By path; everywhere else MAX_BODY_BYTES.
BODY_LIMITS = {"/v1/recommend:batch": 8 * 2**20}
# Ids end up in logs and headers: nothing that could forge a line or a header passes.
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestBoundary:
    """Wraps the application. Plain ASGI: a BaseHTTPMiddleware would cost more than the ranking itself."""

    def __init__(self, app: ASGIApp, *, new_id: Callable[[], str], clock: Callable[[], float]) -> None:
        self._app = app
        self._new_id = new_id
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, declared_bytes = self._read_headers(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(
                scope,
                _limited(receive, declared_bytes, limit=BODY_LIMITS.get(scope["path"], MAX_BODY_BYTES)),
                send_with_id,
            )
        except ClientDisconnect:
            logger.info("client left during request %s", request_id)
        except Exception:
            logger.exception("request %s failed", request_id)
            if started:
                raise
            refusal = RefusedError("internal_error", f"the service failed; its log has the cause under {request_id}")
            await problem_response(refusal, scope=scope, unix_seconds=self._clock())(scope, receive, send_with_id)

    def _read_headers(self, scope: Scope) -> tuple[str, int]:
        request_id, declared_bytes = "", 0
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = value.decode("latin-1")
            elif name == b"content-length" and value.isdigit():
                declared_bytes = int(value[:20])
        return (request_id if _SAFE_ID.fullmatch(request_id) else self._new_id()), declared_bytes


def _limited(receive: Receive, declared_bytes: int, *, limit: int) -> Receive:
    """receive that raises payload_too_large, before reading where the length is declared, else while reading."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        _check(declared_bytes, limit=limit)
        message = await receive()
        received += len(message.get("body", b""))
        _check(received, limit=limit)
        return message

    return limited


def _check(size: int, *, limit: int) -> None:
    if size > limit:
        raise RefusedError("payload_too_large", f"the body is larger than {limit:,} bytes; send less")
