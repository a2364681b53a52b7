"""The clients of one worker process: when each sends, and what happens after an answer or a failure."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.load import LoadSpec
from bench_runner.load_connection import Connection, Exchange, Tally
from bench_runner.prompts import RequestWriter
from bench_runner.request_log import ROW, Outcome

# After a failure a client of a closed loop pauses: one that fails at once would otherwise be all the load there is.
PAUSE_AFTER_FAILURE_S = 0.1
# Servers close connections that idle for some seconds; one that may just be closing is not used again.
LONGEST_IDLE_NS = 2_000_000_000
GIVE_UP_NS = 3_000_000_000
CHECK_S = 0.1
MOST_ERRORS = 5


class Client:
    """A place for one request at a time: its connection, its random numbers, its next request."""

    def __init__(self, number: int, clients: "Clients") -> None:
        self.number = number
        self.connection: Connection | None = None
        self.exchange: Exchange | None = None
        self._clients = clients
        self._generator = clients.writer.generator(number)
        self._written = 0
        self._next: bytes | None = None

    def prepare(self) -> None:
        """Writes the next request, if that is not done yet."""
        if self._next is None:
            self._next = self._clients.writer.request(self._generator, client=self.number, number=self._written)
            self._written += 1

    def begin(self, due_ns: int) -> None:
        """Sends a request, over a new connection if there is none."""
        self.exchange = Exchange(self.number, due_ns)
        connection = self.connection
        if connection is None or not connection.open:
            self._connect(self.exchange)
        elif time.monotonic_ns() - connection.idle_since_ns > LONGEST_IDLE_NS:
            connection.abort()
            self._connect(self.exchange)
        else:
            self._send(connection, self.exchange)

    def end(self, outcome: Outcome, text: str) -> None:
        """Gives the request up, and the connection with it."""
        exchange = self.exchange
        assert exchange is not None
        if self.connection is not None and self.connection.open:
            self.connection.abort()
        exchange.outcome, exchange.error = outcome, text
        self.ended(exchange)

    def ended(self, exchange: Exchange) -> None:
        """A request is over."""
        self.exchange = None
        self._clients.ended(self, exchange)

    def _connect(self, exchange: Exchange) -> None:
        self._clients.spawn(self._connect_and_send(exchange))

    async def _connect_and_send(self, exchange: Exchange) -> None:
        clients = self._clients
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(clients.tally, asked_tokens=clients.spec.max_new_tokens, on_end=self.ended),
                clients.spec.host,
                clients.spec.port,
            )
        except OSError as error:
            if self.exchange is exchange:
                clients.refusals += 1
                clients.refusal = f"no connection: {error}"
                self.end(Outcome.REFUSED, clients.refusal)
            return
        if self.exchange is not exchange:
            connection.abort()
            return
        self.connection = connection
        self._send(connection, exchange)

    def _send(self, connection: Connection, exchange: Exchange) -> None:
        self.prepare()
        assert self._next is not None
        request, self._next = self._next, None
        connection.send(request, exchange)
        self._clients.prepare_later(self)


class Clients:
    """Those clients of a load that are this process's: every `count`-th, from `index` on."""

    def __init__(self, spec: LoadSpec, *, index: int, count: int) -> None:
        self.spec = spec
        self.writer = RequestWriter(spec.prompts())
        self.tally = Tally()
        self.refusals = 0
        self.refusal = ""
        self.delayed = 0
        self.completed = 0
        self.failed = 0
        self.errors: list[str] = []
        self.gave_up: str | None = None
        self._clients = [Client(number, self) for number in range(index, spec.clients, count)]
        self._rows: list[tuple[Any, ...]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_prepare: deque[Client] = deque()
        self._arrivals = deque((spec.arrivals_s or ())[index::count])
        self._free = list(reversed(self._clients))
        self._overdue: deque[int] = deque()
        self._start_ns = 0
        self._connected_ns = 0
        self._checked_ns = 0
        self._refusals_then = 0
        self._over = False

    def prepare(self) -> None:
        """Writes every client's first request."""
        for client in self._clients:
            client.prepare()

    def start(self, start_ns: int) -> None:
        """Sets the clients going; call it from the running loop at start_ns or before."""
        self._loop = asyncio.get_running_loop()
        self._start_ns = self._connected_ns = start_ns
        self.tally.start_ns = start_ns + round(1e9 * self.spec.warm_up_s)
        self.tally.end_ns = self.tally.start_ns + round(1e9 * self.spec.window_s)
        self._at(self._start_ns + round(1e9 * CHECK_S), self._check)
        if self.spec.arrivals_s is not None:
            self._next_arrival()
            return
        # Drawn for all clients, so that the moments do not depend on how many processes there are.
        ramp_s = np.random.default_rng(self.spec.ramp_seed).uniform(0, self.spec.ramp_s, self.spec.clients)
        for client in self._clients:
            due_ns = self._start_ns + round(1e9 * ramp_s[client.number])
            self._at(due_ns, partial(self._begin, client, due_ns))

    def spawn(self, work: Any) -> None:
        """Runs a coroutine beside everything else."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def prepare_later(self, client: Client) -> None:
        """Writes a client's next request while it waits for an answer: one a turn of the loop, between reads."""
        self._to_prepare.append(client)
        if len(self._to_prepare) == 1:
            self._loop.call_soon(self._prepare_one)

    def ended(self, client: Client, exchange: Exchange) -> None:
        """Records a request that is over and lets its client go on."""
        self._rows.append(exchange.row())
        if exchange.outcome == Outcome.COMPLETED:
            self.completed += 1
        elif exchange.outcome != Outcome.UNFINISHED:
            self.failed += 1
        if exchange.error and exchange.error not in self.errors and len(self.errors) < MOST_ERRORS:
            self.errors.append(exchange.error)
        if self._over:
            return
        now_ns = time.monotonic_ns()
        if self.spec.arrivals_s is not None:
            if self._overdue:
                client.begin(self._overdue.popleft())
            else:
                self._free.append(client)
        elif exchange.outcome == Outcome.COMPLETED:
            client.begin(now_ns)
        else:
            due_ns = now_ns + round(1e9 * PAUSE_AFTER_FAILURE_S)
            self._at(due_ns, partial(self._begin, client, due_ns))

    def finish(self) -> NDArray[Any]:
        """Ends every request on its way as UNFINISHED; all rows, of dtype ROW."""
        self._over = True
        for client in self._clients:
            if client.exchange is not None:
                client.exchange.error = None
                client.end(Outcome.UNFINISHED, "")
        for due_ns in self._overdue:
            self._rows.append(Exchange(-1, due_ns).row())
        for task in self._tasks:
            task.cancel()
        return np.array(self._rows, dtype=ROW)

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        return sum(client.exchange is not None for client in self._clients)

    def _at(self, moment_ns: int, call: Callable[[], object]) -> None:
        self._loop.call_later(max(0, moment_ns - time.monotonic_ns()) / 1e9, call)

    def _begin(self, client: Client, due_ns: int) -> None:
        if not self._over:
            client.begin(due_ns)

    def _next_arrival(self) -> None:
        """Sends or queues everything that is due, then waits for the next."""
        now_ns = time.monotonic_ns()
        while self._arrivals and not self._over:
            due_ns = self._start_ns + round(1e9 * self._arrivals[0])
            if due_ns > now_ns:
                return self._at(due_ns, self._next_arrival)
            self._arrivals.popleft()
            if self._free:
                self._free.pop().begin(due_ns)
            else:
                self._overdue.append(due_ns)
                self.delayed += self.tally.start_ns <= due_ns < self.tally.end_ns
        return None

    def _prepare_one(self) -> None:
        self._to_prepare.popleft().prepare()
        if self._to_prepare:
            self._loop.call_soon(self._prepare_one)

    def _check(self) -> None:
        """Looks for requests that have waited too long, and whether the server is still there."""
        if self._over:
            return
        # At the last check, since when the loop has read whatever had come by then: a stall of our own is no time-out.
        patience_ns = round(1e9 * self.spec.request_timeout_s)
        for client in self._clients:
            exchange = client.exchange
            if exchange is not None and self._checked_ns - exchange.last_byte_ns > patience_ns:
                client.end(Outcome.TIMED_OUT, f"no byte for {self.spec.request_timeout_s:g} s")
        now_ns = time.monotonic_ns()
        if any(client.connection is not None and client.connection.open for client in self._clients):
            self._connected_ns, self._refusals_then = now_ns, self.refusals
        elif self.refusals > self._refusals_then and now_ns - self._connected_ns > GIVE_UP_NS:
            self.gave_up = f"no client has got a connection for {GIVE_UP_NS // 10**9} s: {self.refusal}"
        self._checked_ns = now_ns
        self._at(now_ns + round(1e9 * CHECK_S), self._check)
