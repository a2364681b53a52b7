"""The outermost ASGI layer: ids, who may ask, how much and how long, and an answer for what nobody foresaw."""

import asyncio
import logging
import re
import time
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.drain import Drain
from service.api.gate import Gate
from service.api.observer import Observer
from service.api.problem import RefusedError
from service.api.problem_response import problem_response
from service.api.secret import resembles_secret
from service.api.trace_context import TraceContext, read_traceparent
from service.logs import log_without_values

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
# Where more is needed than one question takes.
MAX_BODY_BYTES_AT = {"/v1/recommend:batch": 8 * 2**20}
# Ids end up in logs and headers: nothing that could forge a line or a header passes.
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLOSE = (b"connection", b"close")


class RequestBoundary:
    """Wraps the application. Plain ASGI: a BaseHTTPMiddleware would cost more than the ranking itself."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        gate: Gate,
        observer: Observer,
        drain: Drain,
        body_timeout_s: float,
    ) -> None:
        self._app = app
        self._new_id, self._clock = new_id, clock
        self._gate, self._observer, self._drain = gate, observer, drain
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.perf_counter()
        request_id, trace, declared_bytes = self._read_headers(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                if self._drain.begun:
                    message["headers"].append(_CLOSE)
            await send(message)

        try:
            self._gate.admit(scope)
            await self._app(scope, self._limited(scope, receive, declared_bytes), send_with_id)
        except ClientDisconnect:
            logger.info("client left during request %s", request_id)
        except RefusedError as refusal:
            if status:
                raise
            await problem_response(refusal, scope=scope, unix_seconds=self._clock())(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # Its time is over: the process ends.
            if not status:
                cut = RefusedError("draining", "this process stopped before it could answer; ask another")
                await problem_response(cut, scope=scope, unix_seconds=self._clock())(scope, receive, send_with_id)
            raise
        except Exception as error:
            log_without_values(error, "the service", request_id=request_id)
            if status:
                raise
            failure = RefusedError("internal_error", f"the service failed; its log has the cause under {request_id}")
            await problem_response(failure, scope=scope, unix_seconds=self._clock())(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begun_s
            self._observer.finished(scope, status=status, seconds=seconds, request_id=request_id, trace=trace)

    def _read_headers(self, scope: Scope) -> tuple[str, TraceContext | None, int]:
        request_id, traceparent, declared_bytes = "", None, 0
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = value.decode("latin-1")
            elif name == b"traceparent":
                traceparent = value
            elif name == b"content-length" and value.isdigit():
                declared_bytes = int(value[:20])
        if not _SAFE_ID.fullmatch(request_id) or resembles_secret(request_id):
            request_id = self._new_id()
        return request_id, read_traceparent(traceparent), declared_bytes

    def _limited(self, scope: Scope, receive: Receive, declared_bytes: int) -> Receive:
        """receive that refuses a body that is too large (before it is read, where it says so) or too slow."""
        most_bytes = MAX_BODY_BYTES_AT.get(scope["path"], MAX_BODY_BYTES)
        received = 0
        complete = False
        deadline_s = 0.0

        async def limited() -> Message:
            nonlocal received, complete, deadline_s
            _check(max(declared_bytes, received), most_bytes)
            if complete:
                # What is waited for from now on is the client's leaving.
                return await receive()
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            deadline_s = deadline_s or loop.time() + self._body_timeout_s
            # asyncio.timeout does the same for three times the cost, which nearly every request would pay in vain.
            timer = loop.call_at(deadline_s, task.cancel)
            try:
                message = await receive()
            except asyncio.CancelledError:
                if loop.time() < deadline_s or task.uncancel():
                    raise
                raise self._too_slow() from None
            finally:
                timer.cancel()
            complete = not message.get("more_body")
            received += len(message.get("body", b""))
            _check(received, most_bytes)
            return message

        return limited

    def _too_slow(self) -> RefusedError:
        message = f"the body did not arrive within {self._body_timeout_s:g} s; send it at once"
        # What still comes of it would be read as the next request.
        return RefusedError("request_timeout", message, headers={"Connection": "close"})


def _check(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise RefusedError("payload_too_large", f"the body is larger than {most_bytes:,} bytes; send less")
