"""One keep-alive connection to the server, and one request and its answer on it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import httptools

from bench_runner.request_log import NEVER, Outcome
from bench_runner.token_stream import TokenStream

TEXT_BYTES = 300


class Exchange:
    """A request and what has come back for it so far."""

    __slots__ = (
        "client",
        "due_ns",
        "error",
        "first_chunk_tokens",
        "first_ns",
        "last_byte_ns",
        "last_ns",
        "outcome",
        "sent_ns",
        "stream",
    )

    def __init__(self, client: int, due_ns: int) -> None:
        self.client = client
        self.due_ns = due_ns
        self.sent_ns = NEVER
        self.first_ns = NEVER
        self.last_ns = NEVER
        self.last_byte_ns = time.monotonic_ns()
        self.first_chunk_tokens = 0
        self.stream = TokenStream()
        self.outcome = Outcome.UNFINISHED
        self.error: str | None = None

    def received(self, tokens: int, now_ns: int) -> None:
        """Tokens have come. What shares a read with the first token shares its time, and counts as the first chunk."""
        if self.first_ns == NEVER:
            self.first_ns = now_ns
        if self.first_ns == now_ns:
            self.first_chunk_tokens += tokens
        self.last_ns = now_ns

    def judge(self, *, asked_tokens: int) -> None:
        """Says what a whole answer with status 200 is worth."""
        stream = self.stream
        stream.finish()
        if stream.error:
            self.outcome, self.error = Outcome.HTTP_ERROR, f"the stream reports {stream.error}"
        elif stream.problem:
            self.outcome, self.error = Outcome.GARBAGE, stream.problem
        elif stream.tokens == 0:
            self.outcome, self.error = Outcome.NO_TOKENS, "the answer ended without a token"
        elif stream.tokens < asked_tokens:
            self.outcome, self.error = Outcome.SHORT, f"{stream.tokens} tokens came, {asked_tokens} were asked for"
        elif stream.tokens > asked_tokens:
            self.outcome, self.error = Outcome.GARBAGE, f"{stream.tokens} tokens came, {asked_tokens} were asked for"
        else:
            self.outcome = Outcome.COMPLETED

    def row(self) -> tuple[Any, ...]:
        """Fields of request_log.ROW."""
        cached = self.stream.cached_tokens
        return (
            self.client,
            self.due_ns,
            self.sent_ns,
            self.first_ns,
            self.last_ns,
            self.stream.tokens,
            self.first_chunk_tokens,
            NEVER if cached is None else cached,
            int(self.outcome),
        )


class Tally:
    """Tokens that have come, and those of them that came in the timed region [start_ns, end_ns)."""

    __slots__ = ("end_ns", "in_window", "start_ns", "total")

    def __init__(self) -> None:
        self.start_ns = 0
        self.end_ns = 0
        self.total = 0
        self.in_window = 0

    def add(self, tokens: int, now_ns: int) -> None:
        """Counts tokens that came now."""
        self.total += tokens
        if self.start_ns <= now_ns < self.end_ns:
            self.in_window += tokens


class Connection(asyncio.Protocol):
    """`on_end` is called once for each exchange: its answer is whole, or will never be."""

    def __init__(self, tally: Tally, *, asked_tokens: int, on_end: Callable[[Exchange], None]) -> None:
        self.open = False
        self.idle_since_ns = time.monotonic_ns()
        self._tally = tally
        self._asked_tokens = asked_tokens
        self._on_end = on_end
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._text = b""
        self._now_ns = 0

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Hands a request to the socket."""
        self._exchange = exchange
        exchange.sent_ns = exchange.last_byte_ns = time.monotonic_ns()
        self._transport.write(request)

    def abort(self) -> None:
        """Closes at once; a request on the way gets no answer and no call of on_end."""
        self._exchange = None
        self.open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # Not a subclass in uvloop, though it has all of its methods.
        self._transport = cast(asyncio.Transport, transport)
        # Without a buffer, write() hands the bytes to the socket before it returns.
        self._transport.set_write_buffer_limits(high=0)
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Called by the loop with whatever one read has found."""
        exchange = self._exchange
        if exchange is None:
            # Nothing was asked: what comes here would be taken for the next answer.
            return self.abort()
        self._now_ns = exchange.last_byte_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._exchange is not None:
                self._end(Outcome.GARBAGE, f"not an HTTP answer: {data[:60]!r} ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self.open = False
        exchange = self._exchange
        if exchange is None:
            return
        if self._status == 200 and exchange.stream.done:
            self._end_of_answer(exchange)
        else:
            self._end(Outcome.CUT, f"the connection ended before the answer did{f': {error}' if error else ''}")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._status = self._parser.get_status_code()
        self._text = b""

    def on_body(self, body: bytes) -> None:
        """Called by the parser, for each chunk or piece of one."""
        exchange = self._exchange
        if exchange is None:
            return
        if self._status != 200:
            self._text = (self._text + body)[:TEXT_BYTES]
            return
        tokens = exchange.stream.feed(body)
        if tokens:
            exchange.received(tokens, self._now_ns)
            self._tally.add(tokens, self._now_ns)
        elif exchange.stream.problem:
            self._end(Outcome.GARBAGE, exchange.stream.problem)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange = self._exchange
        if exchange is None:
            return
        if not self._parser.should_keep_alive():
            self.open = False
            self._transport.close()
        if self._status == 200:
            self._end_of_answer(exchange)
        else:
            text = self._text.decode(errors="replace")
            self._finish(exchange, Outcome.HTTP_ERROR, f"HTTP {self._status}: {text}")

    def _end_of_answer(self, exchange: Exchange) -> None:
        exchange.judge(asked_tokens=self._asked_tokens)
        self._finish(exchange, exchange.outcome, exchange.error)

    def _end(self, outcome: Outcome, text: str) -> None:
        """The answer is over and the connection with it."""
        exchange = self._exchange
        assert exchange is not None
        self.abort()
        self._finish(exchange, outcome, text)

    def _finish(self, exchange: Exchange, outcome: Outcome, text: str | None) -> None:
        self._exchange = None
        self._status = 0
        self.idle_since_ns = time.monotonic_ns()
        exchange.outcome, exchange.error = outcome, text
        self._on_end(exchange)
