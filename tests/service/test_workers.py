"""Several processes behind one socket: they share the load, are replaced when they die, and lose nothing."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.db.postgresql import PostgresServer
from tests.memory.server import Server
from tests.service.bundles import write_bundle
from tests.service.clients import Seen, crowd
from tests.service.serving import serving
from tests.service.test_drain import kept, stopped_under_load
from tests.service.wire import Wire, question

PATIENCE_S = 60.0
WORKERS = 2


def workers_of(server: Server) -> list[psutil.Process]:
    """The processes that answer: those of its children that have the listening socket open."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        try:
            listens = any(connection.status == psutil.CONN_LISTEN for connection in child.net_connections("tcp"))
        except psutil.NoSuchProcess:
            continue
        if listens:
            found.append(child)
    return found


def eventually(holds: Callable[[], bool], server: Server) -> None:
    """Returns once it does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)


@contextmanager
def workers(folder: Path, **settings: Any) -> Iterator[Server]:
    """A service whose workers all run."""
    with Server(folder, workers=WORKERS, **settings) as server:
        eventually(lambda: len(workers_of(server)) == WORKERS, server)
        yield server


def all_started(server: Server) -> bool:
    """Whether every worker has said so."""
    return server.log.count("Application startup complete") >= WORKERS


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_stop_of_all_workers_under_load_answers_every_request_and_keeps_every_answer(
    bundle_dir: Path, tmp_path: Path, kind: str
) -> None:
    postgres = PostgresServer(tmp_path / "postgresql") if kind == "postgresql" else None
    url = postgres.url if postgres else None
    try:
        given = {} if url is None else {"database_url": url}
        with workers(tmp_path / "a", bundle_dir=bundle_dir, drain_s=0.5, **given) as server:
            eventually(lambda: all_started(server), server)
            seen = asyncio.run(stopped_under_load(server, seed=11))
        assert not list(tmp_path.glob("a/spool/*"))
        assert kept(server, seen, url=url) == (0, 0)
    finally:
        if postgres is not None:
            postgres.end()
    assert seen.broken == []
    assert seen.refused > 0


async def loaded(server: Server, disturb: Callable[[], None]) -> Seen:
    """Clients ask before, while and after something is done to the server."""
    seen, over = Seen(), False
    load = asyncio.create_task(crowd(lambda: [server.port], seen, until=lambda: over, size=32, seed=3))
    await enough(seen)
    await asyncio.to_thread(disturb)
    await enough(seen)
    over = True
    await load
    return seen


async def enough(seen: Seen) -> None:
    """Returns once there are some more answers."""
    before = len(seen.ids)
    async with asyncio.timeout(PATIENCE_S):
        while len(seen.ids) < before + 200:
            await asyncio.sleep(0.02)


def replaced(server: Server, told: signal.Signals) -> None:
    """One worker gets the signal; returns once another one has started in its place."""
    one = workers_of(server)[0]
    one.send_signal(told)
    eventually(lambda: one.pid not in {worker.pid for worker in workers_of(server)}, server)
    eventually(lambda: server.log.count("Application startup complete") > WORKERS, server)
    assert len(workers_of(server)) == WORKERS


def test_a_killed_worker_is_replaced_and_no_answer_is_lost(bundle_dir: Path, tmp_path: Path) -> None:
    with workers(tmp_path, bundle_dir=bundle_dir) as server:
        eventually(lambda: all_started(server), server)
        seen = asyncio.run(loaded(server, lambda: replaced(server, signal.SIGKILL)))
        assert server.stop() == 0
    # Its connections are cut; whoever is answered is answered well.
    assert [reason for reason in seen.broken if reason.startswith("http")] == []
    assert kept(server, seen) == (0, 0)
    assert "is replaced" in server.log


def test_one_worker_that_is_told_to_stop_fails_no_request(bundle_dir: Path, tmp_path: Path) -> None:
    with workers(tmp_path, bundle_dir=bundle_dir, drain_s=0.2) as server:
        eventually(lambda: all_started(server), server)
        seen = asyncio.run(loaded(server, lambda: replaced(server, signal.SIGTERM)))
        assert server.stop() == 0
    assert seen.broken == []
    assert kept(server, seen) == (0, 0)


def test_workers_do_not_outlive_their_parent(bundle_dir: Path, tmp_path: Path) -> None:
    with workers(tmp_path, bundle_dir=bundle_dir, drain_s=0) as server:
        orphans = workers_of(server)
        server.kill()
        gone, alive = psutil.wait_procs(orphans, timeout=PATIENCE_S)
        assert (len(gone), alive) == (WORKERS, [])
    with pytest.raises(ConnectionRefusedError):
        Wire(server.port)


def test_a_second_signal_ends_all_workers_at_once(bundle_dir: Path, tmp_path: Path) -> None:
    with workers(tmp_path, bundle_dir=bundle_dir, drain_s=600, shutdown_grace_s=600) as server:
        children = workers_of(server)
        server.process.send_signal(signal.SIGTERM)
        with Wire(server.port) as wire:
            assert wire.send(question()).answer().status == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 1
        assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_a_damaged_bundle_stops_several_workers_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path)
    (tmp_path / "evaluation.json").write_text("{}")
    monkeypatch.setenv("MEMORYPOLICY_WORKERS", "3")
    with serving(tmp_path) as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (1, "")
    assert err.count("\n") == 1
    assert "evaluation.json: sha256 is" in err
