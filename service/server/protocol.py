"""One connection: uvicorn's, with an end to waiting for a head, a limit of its size, and problems instead of text."""

import asyncio
import time
import uuid
from typing import Any
from weakref import WeakSet

import httptools
from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.api.problem import MEDIA_TYPE, RefusedError, problem_body
from service.server.listener import is_readable

MAX_HEAD_BYTES = 2**16
# Long enough for a client that is still sending to read why it was refused; a reset would take the answer from it.
LINGER_S = 2.0
# A client that has just connected is about to say something; one that has said nothing for so long may be sent away.
FIRST_WORD_S = 2.0
_WISHES = (b"upgrade", b"http2-settings")


class ServiceProtocol(HttpToolsProtocol):
    """A client has `head_timeout_s` for each head; its body is the application's business.

    newcomers: holds whoever is accepted and has not ended its TLS handshake; uvicorn knows nobody before that.
    """

    def __init__(self, *, head_timeout_s: float, newcomers: "WeakSet[ServiceProtocol]", **given: Any) -> None:
        super().__init__(**given)
        self._head_timeout_s = head_timeout_s
        self._newcomers = newcomers
        newcomers.add(self)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._heard = False
        self._head_bytes = 0
        self._chunk_bytes = 0
        self._wishes_upgrade = False
        self._refusal: RefusedError | None = None
        self._opened_s = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first head."""
        self._newcomers.discard(self)
        super().connection_made(transport)
        # Of a TLS connection the handshake may have taken long.
        self._opened_s = self.loop.time()
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._untime_head()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True, which keeps our half open, while a client that has sent its last request waits for the answer."""
        if self._under_way and not self.cycle.more_body and self.transport.can_write_eof():
            self.cycle.keep_alive = False
            return True
        return None

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, but nobody is cut off in the middle of an answer because of what comes after the question."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        self._chunk_bytes = len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(RefusedError("invalid_http", "this is not a request in HTTP/1.1; the connection is closed"))
            return
        if self._head_begun or not self._under_way:
            self._wait_on()

    @property
    def is_expected(self) -> bool:
        """Of a newcomer: whether its handshake may still end. Nobody says so when one fails."""
        return self.loop.time() - self._opened_s < self._head_timeout_s

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long; unless it is just being asked, as a close would answer that with a reset."""
        if not is_readable([self._descriptor]):
            super().timeout_keep_alive_handler()

    def retire(self) -> None:
        """Closes the connection as soon as nobody loses anything by it; called until it is closed."""
        if self._under_way:
            self.cycle.keep_alive = False
        elif not (
            self._head_begun
            or self._refusal is not None
            or self.transport.is_closing()
            or (not self._heard and self.loop.time() - self._opened_s < FIRST_WORD_S)
            or is_readable([self._descriptor])
        ):
            self.transport.close()

    @property
    def _descriptor(self) -> int:
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        return descriptor

    @property
    def _under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _feed(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser takes what follows for another protocol. We speak none, so the request is read again
                # without the wish, and what follows is its body.
                self._wishes_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(self._head_without_wish())
                data = memoryview(data)[upgrade.args[0] :]

    def _head_without_wish(self) -> bytes:
        request_line = (self.scope["method"].encode(), self.url, self.scope["http_version"].encode())
        lines = [b"%s %s HTTP/%s" % request_line]
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _WISHES]
                value = b",".join(kept)
            if value and name not in _WISHES:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Of the parser: a head has begun."""
        self._heard = self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Of the parser. Whatever is raised here makes the parser report an error."""
        self._head_begun = False
        if self._head_timer is not None:
            self._untime_head()
        if self._head_bytes + self._chunk_bytes > MAX_HEAD_BYTES:
            self._measure_head()
        self._head_bytes = 0
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            if self.scope["method"] == "CONNECT":
                raise ValueError("nothing is reached through this server")
            self.scope["http_version"] = self.parser.get_http_version()
            self._wishes_upgrade = True
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Of the parser."""
        if not self._wishes_upgrade:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own way to refuse, in our form."""
        self._refuse(RefusedError("invalid_http", msg))

    def _wait_on(self) -> None:
        """Something came, and still no whole head."""
        if self._head_begun:
            self._head_bytes += self._chunk_bytes
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_too_large())
                return
        if self._head_timer is None:
            self._time_head()

    def _measure_head(self) -> None:
        """What came may be a body for the most part."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(_too_large())
            raise ValueError("refused")

    def _time_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_timeout_s, self._head_is_late)

    def _untime_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_begun:
            message = f"the head did not arrive within {self._head_timeout_s:g} s; send it at once"
            self._refuse(RefusedError("request_timeout", message))
        elif self._under_way:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _refuse(self, refusal: RefusedError) -> None:
        """Nothing more is read. Questions that came whole are answered; only then is the connection closed."""
        if self._refusal is not None:
            return
        self._refusal = refusal
        self._untime_head()
        if self._under_way:
            if self.pipeline or not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            # The application waits for the rest of a body that cannot be read.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self.logger.info("a connection is refused: %s", refusal.error)
        self.transport.write(self._problem(refusal))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _problem(self, refusal: RefusedError) -> bytes:
        request_id = str(uuid.uuid4())
        body = to_json(
            problem_body(refusal, instance=f"urn:uuid:{request_id}", request_id=request_id, unix_seconds=time.time())
        )
        headers = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        return STATUS_LINE[refusal.status] + head + b"\r\n" + body


def _too_large() -> RefusedError:
    return RefusedError("head_too_large", f"the head is larger than {MAX_HEAD_BYTES:,} bytes; send less")
