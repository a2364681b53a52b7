"""Faults under load on real processes: what was acknowledged, and what of it is lost or doubled afterwards."""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from sqlalchemy import text

from service.bundle import load_bundle
from service.db.database import Database, open_database
from service.db.policies import activate
from tests.db.postgresql import PostgresServer
from tests.memory.load import Answers, ask, for_seconds
from tests.memory.server import Server

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of the fault table. failed: requests without a whole answer, where the fault allows none to fail."""

    fault: str
    load: str
    acknowledged: int
    failed: int | None
    lost: int
    doubled: int


def under_load(server: Server, *, connections: int, seconds: float) -> Answers:
    """Closed-loop load of that length."""
    return uvloop.run(ask(server.port, connections=connections, until=for_seconds(seconds)))


@contextmanager
def in_background(server: Server, *, connections: int) -> Iterator[list[Answers]]:
    """Load for as long as the block lasts; the answers are there at its end."""
    stopped = False
    found: list[Answers] = []
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: asyncio.run(ask(server.port, connections=connections, until=lambda: stopped)))
        try:
            yield found
        finally:
            stopped = True
            found.append(load.result(timeout=PATIENCE_S))


def open_of(server: Server, url: str | None) -> Database:
    """The database that the server writes to."""
    return open_database(url, data_dir=server.folder)


def compared(database: Database, acknowledged: Sequence[str]) -> tuple[int, int]:
    """(lost, doubled) of the acknowledged ids. A primary key cannot be doubled: this looks all the same."""
    with database.transaction() as connection:
        found = list(connection.execute(text("SELECT id FROM recommendations")).scalars())
    return len(set(acknowledged) - set(found)), len(found) - len(set(found))


def drained(server: Server, database: Database) -> None:
    """Returns once nothing is spooled any more."""
    deadline = time.monotonic() + PATIENCE_S
    while server.counter("memorypolicy_audit_database_away") or server.counter("memorypolicy_audit_spool_bytes"):
        if time.monotonic() > deadline:
            raise AssertionError(f"the spool is not replayed:\n{server.log}")
        time.sleep(0.1)


def killed_at_random(
    folder: Path, *, url: str | None = None, times: int = 10, connections: int = 64, seed: int, name: str
) -> Finding:
    """SIGKILL under load, start again, and so on; at the end every acknowledged id must be in the database."""
    moments = random.Random(seed)
    server = Server(folder, database_url=url or "")
    acknowledged: list[str] = []
    for _ in range(times):
        server.start()
        with in_background(server, connections=connections) as answers:
            time.sleep(moments.uniform(0.1, 1.0))
            server.kill()
        acknowledged += answers[0].ids
    database = open_of(server, url)
    # What the last life spooled is replayed by the next.
    with server:
        drained(server, database)
    lost, doubled = compared(database, acknowledged)
    database.dispose()
    return Finding(
        fault=f"SIGKILL at {times} random moments, {name}",
        load=f"{connections} connections",
        acknowledged=len(acknowledged),
        failed=None,
        lost=lost,
        doubled=doubled,
    )


def postgres_stopped(folder: Path, *, seconds: float, connections: int = 64, kill: bool = False) -> Finding:
    """PostgreSQL is stopped for that long under load; with `kill` the service is killed meanwhile and started again."""
    postgres = PostgresServer(folder / "postgresql")
    server = Server(folder / "server", database_url=postgres.url)
    acknowledged: list[str] = []
    failed = 0
    try:
        server.start()
        database = open_of(server, postgres.url)
        for killed in (True, False) if kill else (False,):
            with in_background(server, connections=connections) as answers:
                time.sleep(1.0)
                postgres.stop()
                time.sleep(seconds)
                if killed:
                    server.kill()
                else:
                    postgres.start()
                    time.sleep(1.0)
            acknowledged += answers[0].ids
            failed += 0 if killed else answers[0].failed
            if killed:
                # Comes up without its database, adopts what the other life spooled.
                server.start()
                postgres.start()
        drained(server, database)
        lost, doubled = compared(database, acknowledged)
        database.dispose()
    finally:
        server.kill()
        postgres.end()
    fault = f"PostgreSQL stopped for {seconds:g} s"
    return Finding(
        fault=f"{fault}, the service killed meanwhile; then again without" if kill else fault,
        load=f"{connections} connections",
        acknowledged=len(acknowledged),
        failed=failed,
        lost=lost,
        doubled=doubled,
    )


def postgres_paused(folder: Path, *, seconds: float, connections: int = 64) -> Finding:
    """Every process of PostgreSQL is stopped as by a debugger: connections stay open and nothing answers."""
    postgres = PostgresServer(folder / "postgresql")
    server = Server(folder / "server", database_url=postgres.url, audit_deadline_ms=500)
    try:
        server.start()
        database = open_of(server, postgres.url)
        with in_background(server, connections=connections) as answers:
            time.sleep(1.0)
            with postgres.paused():
                time.sleep(seconds)
            time.sleep(1.0)
        drained(server, database)
        lost, doubled = compared(database, answers[0].ids)
        database.dispose()
    finally:
        server.kill()
        postgres.end()
    return Finding(
        fault=f"PostgreSQL hangs for {seconds:g} s",
        load=f"{connections} connections",
        acknowledged=len(answers[0].ids),
        failed=answers[0].failed,
        lost=lost,
        doubled=doubled,
    )


def write_lock_held(folder: Path, *, seconds: float, connections: int = 64) -> Finding:
    """Another process holds the write lock of the SQLite file: commits hang instead of failing."""
    with Server(folder, audit_deadline_ms=500) as server:
        database = open_of(server, None)
        with in_background(server, connections=connections) as answers:
            time.sleep(0.5)
            with database.transaction() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                time.sleep(seconds)
            time.sleep(0.5)
        drained(server, database)
        lost, doubled = compared(database, answers[0].ids)
        database.dispose()
    return Finding(
        fault=f"SQLite's write lock held elsewhere for {seconds:g} s",
        load=f"{connections} connections",
        acknowledged=len(answers[0].ids),
        failed=answers[0].failed,
        lost=lost,
        doubled=doubled,
    )


def spool_full(folder: Path, *, connections: int = 64) -> tuple[Finding, dict[int, int]]:
    """No database and a small spool: what no longer fits is refused with 503, and nothing acknowledged is lost."""
    postgres = PostgresServer(folder / "postgresql")
    server = Server(folder / "server", database_url=postgres.url, spool_max_mib=0.5)
    try:
        server.start()
        postgres.stop()
        answers = under_load(server, connections=connections, seconds=2.0)
        postgres.start()
        database = open_of(server, postgres.url)
        drained(server, database)
        lost, doubled = compared(database, answers.ids)
        database.dispose()
    finally:
        server.kill()
        postgres.end()
    finding = Finding(
        fault=f"spool of 0.5 MiB full: {answers.failures.get(503, 0):,} requests refused with 503",
        load=f"{connections} connections",
        acknowledged=len(answers.ids),
        failed=answers.failed - answers.failures.get(503, 0),
        lost=lost,
        doubled=doubled,
    )
    return finding, answers.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Swaps:
    """Rounds of swaps under load, each beside a round of the same load without them."""

    swaps: int
    rounds: list[tuple[Answers, Answers]]
    lost: int
    doubled: int

    @property
    def answered(self) -> int:
        """Whole answers while bundles were swapped."""
        return sum(len(swapped.ids) for swapped, _ in self.rounds)

    @property
    def failed(self) -> int:
        """Requests without a whole answer, in all rounds."""
        return sum(swapped.failed + undisturbed.failed for swapped, undisturbed in self.rounds)

    @property
    def policies(self) -> set[str]:
        """Digests of the bundles that answered."""
        return {sha256 for swapped, _ in self.rounds for sha256 in swapped.policies}

    def p99_ratio(self) -> float:
        """With swaps ÷ without, the median over the rounds."""
        return statistics.median(swapped.p99_ms() / undisturbed.p99_ms() for swapped, undisturbed in self.rounds)


def swapped_under_load(
    folder: Path, bundles: Sequence[Path], *, swaps: int = 20, rounds: int = 5, connections: int = 64
) -> Swaps:
    """Activates the bundles in turn while clients ask."""
    found = []
    with Server(folder, bundle_dir=bundles[0], policy_poll_s=0.05) as server:
        database = open_of(server, None)
        loaded = [load_bundle(directory) for directory in bundles]
        under_load(server, connections=connections, seconds=0.5)
        done = 0
        for number in range(rounds):
            begun = time.monotonic()
            with in_background(server, connections=connections) as swapped:
                while done < swaps * (number + 1) // rounds:
                    done += 1
                    activate(database, loaded[done % len(loaded)], now_ms=done)
                    _until_swapped(server, done)
                    time.sleep(0.2)
            took_s = time.monotonic() - begun
            with in_background(server, connections=connections) as undisturbed:
                time.sleep(took_s)
            found.append((swapped[0], undisturbed[0]))
        lost, doubled = compared(database, [one for pair in found for answers in pair for one in answers.ids])
        database.dispose()
    return Swaps(swaps=swaps, rounds=found, lost=lost, doubled=doubled)


def _until_swapped(server: Server, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while server.counter("memorypolicy_policy_swaps_total") < number:
        if time.monotonic() > deadline:
            raise AssertionError(f"swap {number} did not come to pass:\n{server.log}")
        time.sleep(0.02)


def as_finding(swaps: Swaps) -> Finding:
    """A row for the swaps: nothing may fail."""
    return Finding(
        fault=f"{swaps.swaps} bundles activated one after another",
        load="64 connections",
        acknowledged=swaps.answered,
        failed=swaps.failed,
        lost=swaps.lost,
        doubled=swaps.doubled,
    )
