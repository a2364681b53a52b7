"""A server that is told to stop under load: nobody who got in is turned away, and nothing acknowledged is lost."""

import asyncio
import io
import json
import logging
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import psutil
import pytest
import uvicorn

from service.api.drain import Drain
from service.db.database import open_database
from service.server.draining import DrainingServer
from tests.db.postgresql import PostgresServer
from tests.memory.experiments import compared
from tests.memory.server import Server
from tests.memory.test_tls import self_signed
from tests.service.clients import Seen, crowd, readiness
from tests.service.logged import Logged
from tests.service.wire import Wire, question

PATIENCE_S = 60.0


async def eventually_status(port: int, wanted: int, context: ssl.SSLContext | None = None) -> None:
    """Returns once /readyz answers so."""
    async with asyncio.timeout(PATIENCE_S):
        while await readiness(port, context) != wanted:
            await asyncio.sleep(0.02)


async def stopped_under_load(server: Server, *, seed: int, context: ssl.SSLContext | None = None) -> Seen:
    """The clients go on until nobody listens any more."""
    seen, gone = Seen(), False
    load = asyncio.create_task(
        crowd(lambda: [server.port], seen, until=lambda: gone, size=200, seed=seed, context=context)
    )
    async with asyncio.timeout(PATIENCE_S):
        while len(seen.ids) < 200:
            await asyncio.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    await eventually_status(server.port, 503, context)
    assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0
    gone = True
    await load
    return seen


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stop_under_load_answers_every_request_and_keeps_every_answer(
    bundle_dir: Path, tmp_path: Path, seed: int
) -> None:
    with Server(tmp_path, bundle_dir=bundle_dir, drain_s=0.5) as server:
        seen = asyncio.run(stopped_under_load(server, seed=100 * seed))
    assert seen.broken == []
    assert seen.refused > 0
    assert kept(server, seen) == (0, 0)
    assert not list(tmp_path.glob("spool/*"))


def test_a_stop_waits_for_whoever_is_shaking_hands(bundle_dir: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=certificate)
    given: dict[str, Any] = {"bundle_dir": bundle_dir, "tls_cert_file": certificate, "tls_key_file": key}
    with Server(tmp_path, context=context, drain_s=0, shutdown_grace_s=600, body_timeout_s=600, **given) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as plain:
            server.process.send_signal(signal.SIGTERM)
            eventually_closed(server)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(2)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as shaken:
                shaken.sendall(question())
                with shaken.makefile("rb") as answer:
                    assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
                    assert answer.read().endswith(b"}")
        assert server.process.wait(PATIENCE_S) == 0


def test_a_stop_under_load_with_tls_answers_every_request_and_keeps_every_answer(
    bundle_dir: Path, tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=certificate)
    given: dict[str, Any] = {"bundle_dir": bundle_dir, "tls_cert_file": certificate, "tls_key_file": key}
    with Server(tmp_path, context=context, drain_s=0.5, **given) as server:
        seen = asyncio.run(stopped_under_load(server, seed=5, context=context))
    assert seen.broken == []
    assert kept(server, seen) == (0, 0)


def kept(server: Server, seen: Seen, *, url: str | None = None) -> tuple[int, int]:
    """(lost, doubled) of the answers that clients have."""
    assert seen.ids
    database = open_database(url, data_dir=server.folder)
    try:
        return compared(database, seen.ids)
    finally:
        database.dispose()


@contextmanager
def draining(folder: Path, **settings: Any) -> Iterator[Server]:
    """A server that has been told to stop and goes on for long."""
    with Server(folder, drain_s=600, **settings) as server:
        server.process.send_signal(signal.SIGTERM)
        asyncio.run(eventually_status(server.port, 503))
        yield server


def test_while_it_drains_it_answers_and_says_that_it_goes(bundle_dir: Path, tmp_path: Path) -> None:
    with draining(tmp_path, bundle_dir=bundle_dir) as server:
        with Wire(server.port) as wire:
            answer = wire.send(question()).answer()
            assert wire.rest() == b""
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        with Wire(server.port) as wire:
            problem = wire.send(b"GET /readyz HTTP/1.1\r\nHost: test\r\n\r\n").answer()
        assert (problem.status, problem.problem["error"]) == (503, "draining")
        with Wire(server.port) as wire:
            assert wire.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").answer().status == 200


def test_while_it_drains_the_date_goes_on(bundle_dir: Path, tmp_path: Path) -> None:
    with draining(tmp_path, bundle_dir=bundle_dir) as server:
        dates: set[str] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(dates) < 2 and time.monotonic() < deadline:
            with Wire(server.port) as wire:
                dates.add(wire.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").answer().headers["date"])
        assert len(dates) == 2


def test_a_second_signal_ends_it_at_once_and_is_no_success(bundle_dir: Path, tmp_path: Path) -> None:
    with draining(tmp_path, bundle_dir=bundle_dir) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 1


def test_a_request_that_has_begun_to_arrive_is_waited_for(bundle_dir: Path, tmp_path: Path) -> None:
    sent = question()
    with Server(tmp_path, bundle_dir=bundle_dir, drain_s=0, shutdown_grace_s=600) as server:
        with Wire(server.port) as head, Wire(server.port) as body, Wire(server.port) as used:
            head.send(sent[:30])
            body.send(sent[:-10])
            assert used.send(sent).answer().status == 200
            server.process.send_signal(signal.SIGTERM)
            # One that asked before and is silent now is let go; it shows that the listening is over.
            assert used.rest() == b""
            eventually_closed(server)
            answers = [head.send(sent[30:]).answer(), body.send(sent[-10:]).answer()]
        assert server.process.wait(PATIENCE_S) == 0
    assert [(answer.status, answer.headers["connection"]) for answer in answers] == [(200, "close"), (200, "close")]
    seen = Seen(ids=[json.loads(answer.body)["recommendation_id"] for answer in answers])
    assert kept(server, seen) == (0, 0)


def eventually_closed(server: Server) -> None:
    """Returns once it does not listen any more."""
    process = psutil.Process(server.process.pid)
    deadline = time.monotonic() + PATIENCE_S
    while any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp")):
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)


def test_what_does_not_end_within_the_grace_is_cut_off(bundle_dir: Path, tmp_path: Path) -> None:
    with Server(tmp_path, bundle_dir=bundle_dir, drain_s=0, shutdown_grace_s=1) as server, Wire(server.port) as wire:
        wire.send(question()[:-10])
        assert server.stop() == 0
        assert b" 200 " not in wire.rest()


async def replaced_one_by_one(servers: Sequence[Server], *, rounds: int) -> Seen:
    """As a rolling update does it: a new one is ready before the next is stopped; clients use those that are ready."""
    seen, over = Seen(), False
    ready = {server.port for server in servers}

    async def probe() -> None:
        while not over:
            for server in servers:
                (ready.add if await readiness(server.port) == 200 else ready.discard)(server.port)
            await asyncio.sleep(0.05)

    tasks = [
        asyncio.create_task(crowd(lambda: sorted(ready), seen, until=lambda: over, size=16, seed=7)),
        asyncio.create_task(probe()),
    ]
    for turn in range(rounds):
        server = servers[turn % len(servers)]
        before = len(seen.ids)
        assert await asyncio.to_thread(server.stop) == 0
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(PATIENCE_S):
            while server.port not in ready or len(seen.ids) < before + 100:
                await asyncio.sleep(0.02)
    over = True
    await asyncio.gather(*tasks)
    return seen


def test_two_servers_that_are_replaced_one_by_one_fail_no_request(bundle_dir: Path, tmp_path: Path) -> None:
    postgres = PostgresServer(tmp_path / "postgresql")
    try:
        given: dict[str, Any] = {"bundle_dir": bundle_dir, "database_url": postgres.url, "drain_s": 2}
        with Server(tmp_path / "a", **given) as first, Server(tmp_path / "b", **given) as second:
            seen = asyncio.run(replaced_one_by_one([first, second], rounds=2))
            assert (first.stop(), second.stop()) == (0, 0)
        assert kept(first, seen, url=postgres.url) == (0, 0)
    finally:
        postgres.end()
    assert seen.broken == []
    assert len(seen.ids) >= 200


class Interrupted(io.StringIO):
    """stderr at the moment at which a signal arrives: in the middle of a line."""

    def __init__(self, signalled: Callable[[], None]) -> None:
        super().__init__()
        self._signalled = signalled

    def write(self, text: str) -> int:
        """Once."""
        signalled, self._signalled = self._signalled, lambda: None
        signalled()
        return super().write(text)


def test_a_signal_in_the_middle_of_a_log_line_begins_the_drain(logged: Logged) -> None:
    drain = Drain()
    server = DrainingServer(uvicorn.Config(lambda: None), drain=drain, drain_s=1.0, grace_s=1.0, newcomers=WeakSet())
    logged.stream = Interrupted(lambda: server.handle_exit(signal.SIGTERM, None))
    logged.configure()
    # A handler that waited for the end of this line would wait for ever.
    writer = threading.Thread(target=lambda: logging.getLogger("service.somewhere").warning("a line"), daemon=True)
    writer.start()
    writer.join(PATIENCE_S)
    assert not writer.is_alive()
    assert drain.begun
    assert asyncio.run(server.on_tick(1)) is False
    assert [line["event"] for line in logged.lines] == ["a line", "draining: SIGTERM"]
