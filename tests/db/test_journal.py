"""Group commit and what happens when the database goes away, on both databases, without a server around it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.db.database import Database, open_database
from service.db.journal import Journal, JournalSettings
from service.db.record import Record, insert_records
from service.db.schema import prepare
from service.db.spool import REJECTED_FILE, SUFFIX, Spool, SpoolFullError
from tests.db.postgresql import PostgresServer
from tests.db.rows import count, hook_decision, ids, recommendation

PATIENCE_S = 30.0
QUICK = JournalSettings(deadline_s=0.3, retry_s=0.1)
# Where a test counts what was committed: a loaded machine may take its time.
PATIENT = JournalSettings(deadline_s=PATIENCE_S, retry_s=0.1)
MakeJournal = Callable[..., Journal]


@pytest.fixture
def make_journal(tmp_path: Path) -> Iterator[MakeJournal]:
    """Journals on a database, with a spool in the test's folder; all are closed."""
    made: list[Journal] = []

    def make(database: Database, *, most_bytes: int = 10**7, settings: JournalSettings = PATIENT) -> Journal:
        spool = Spool(tmp_path / "spool", most_bytes=most_bytes, own_name=f"journal-{len(made)}")
        made.append(Journal(database, spool, settings=settings))
        return made[-1]

    yield make
    for journal in made:
        journal.close()


def put(journal: Journal, records: list[Record]) -> list[BaseException | None]:
    """All at once, as concurrent requests would; what became of each."""

    async def run() -> list[BaseException | None]:
        return await asyncio.gather(*(journal.record(record) for record in records), return_exceptions=True)

    return asyncio.run(run())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_requests_that_wait_together_share_a_transaction(database: Database, make_journal: MakeJournal) -> None:
    journal = make_journal(database)
    put(journal, [recommendation()])
    records = [recommendation() for _ in range(50)] + [hook_decision()]
    assert put(journal, records) == [None] * 51
    assert (count(database), count(database, "hook_decisions")) == (51, 1)
    assert (journal.counts.committed, journal.counts.transactions) == (52, 2)


def test_a_group_of_one_commits_each_alone(database: Database, make_journal: MakeJournal) -> None:
    journal = make_journal(database, settings=JournalSettings(group_size=1, deadline_s=PATIENCE_S))
    put(journal, [recommendation() for _ in range(5)])
    assert journal.counts.transactions == 5


def test_an_id_that_is_there_already_is_left_alone(database: Database, make_journal: MakeJournal) -> None:
    record = recommendation(caller="first")
    insert_records(database, [record])
    assert put(make_journal(database), [Record("recommendations", {**record.values, "caller": "second"})]) == [None]
    with database.transaction() as connection:
        assert connection.execute(text("SELECT caller FROM recommendations")).scalars().all() == ["first"]


def test_a_cancelled_request_stays_on_record(database: Database, make_journal: MakeJournal) -> None:
    journal = make_journal(database)
    record = recommendation()

    async def run() -> None:
        task = asyncio.ensure_future(journal.record(record))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    put(journal, [recommendation()])
    until(lambda: count(database) >= 1)


def test_closing_makes_durable_what_waits_and_leaves_no_file(
    database: Database, make_journal: MakeJournal, tmp_path: Path
) -> None:
    journal = make_journal(database)
    put(journal, [recommendation() for _ in range(3)])
    journal.close()
    assert count(database) == 3
    assert not list(tmp_path.glob(f"spool/*{SUFFIX}"))


@pytest.mark.parametrize("unfit", [{"gpu": None}, {"model": "\ud800"}])
def test_a_record_that_no_database_takes_is_set_aside_and_harms_no_other(
    database: Database, make_journal: MakeJournal, tmp_path: Path, unfit: dict[str, str | None]
) -> None:
    journal = make_journal(database)
    good, bad = [recommendation(), recommendation()], recommendation(**unfit)
    assert put(journal, [good[0], bad, good[1]]) == [None] * 3
    assert ids(database) == {record.values["id"] for record in good}
    assert (journal.counts.committed, journal.counts.rejected) == (2, 1)
    assert str(bad.values["id"]) in (tmp_path / "spool" / REJECTED_FILE).read_text()


def test_without_a_database_records_wait_on_the_disk_and_come_back_once(
    empty_database: Database, make_journal: MakeJournal, tmp_path: Path
) -> None:
    """The database of the first life cannot be reached at all; the second life has one, not even migrated."""
    unreachable = open_database("postgresql://nobody@127.0.0.1:1/nowhere", data_dir=tmp_path)
    journal = make_journal(unreachable)
    records = [recommendation() for _ in range(40)] + [hook_decision()]
    assert put(journal, records) == [None] * 41
    assert journal.away
    assert journal.counts.spooled == 41
    journal.close()
    second = make_journal(empty_database)
    assert put(second, [hook_decision()]) == [None]
    until(lambda: not second.away and count(empty_database, "hook_decisions") == 2)
    assert ids(empty_database) == {r.values["id"] for r in records if r.table == "recommendations"}
    # The second life's first record found no table, waited with the others and came with them.
    assert second.counts.replayed == 42
    assert not list(tmp_path.glob(f"spool/journal-0{SUFFIX}"))
    second.close()
    assert not list(tmp_path.glob(f"spool/*{SUFFIX}"))


def test_a_replay_that_was_interrupted_begins_again_and_stores_nothing_twice(
    database: Database, make_journal: MakeJournal, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool", most_bytes=10**7, own_name="earlier")
    records = [recommendation() for _ in range(10)]
    spool.append(records)
    spool.close()
    # Killed after the commit and before the file was removed.
    insert_records(database, records[:7])
    journal = make_journal(database)
    journal.start()
    until(lambda: journal.counts.replayed == 10)
    assert ids(database) == {record.values["id"] for record in records}


def test_what_a_dead_neighbour_spooled_is_found_while_all_is_well(
    database: Database, make_journal: MakeJournal, tmp_path: Path
) -> None:
    journal = make_journal(database, settings=JournalSettings(look_s=0.1, deadline_s=PATIENCE_S))
    put(journal, [recommendation()])
    spool = Spool(tmp_path / "spool", most_bytes=10**7, own_name="neighbour")
    record = recommendation()
    spool.append([record])
    spool.close()
    until(lambda: record.values["id"] in ids(database))
    assert not list(tmp_path.glob(f"spool/neighbour*{SUFFIX}"))


def test_a_full_spool_refuses_and_says_so(make_journal: MakeJournal, tmp_path: Path) -> None:
    unreachable = open_database("postgresql://nobody@127.0.0.1:1/nowhere", data_dir=tmp_path)
    journal = make_journal(unreachable, most_bytes=3_000)
    results = [put(journal, [recommendation()])[0] for _ in range(6)]
    kept = results.index(next(result for result in results if result is not None))
    assert kept >= 1
    assert all(isinstance(result, SpoolFullError) for result in results[kept:])
    assert (journal.counts.spooled, journal.counts.refused) == (kept, 6 - kept)
    assert journal.full


def test_a_database_that_hangs_delays_no_answer_beyond_the_deadline(tmp_path: Path, make_journal: MakeJournal) -> None:
    """Somebody else holds the write lock: the commit neither fails nor succeeds. Afterwards each row is there once."""
    database = open_database(None, data_dir=tmp_path)
    prepare(database)
    journal = make_journal(database, settings=QUICK)
    put(journal, [recommendation()])
    until(lambda: not journal.away)
    before = journal.counts.spooled
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with database.transaction() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            locked.set()
            release.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(PATIENCE_S)
    first, second = ([recommendation() for _ in range(5)] for _ in range(2))
    assert put(journal, first) == [None] * 5
    assert put(journal, second) == [None] * 5
    assert (journal.away, journal.counts.spooled - before) == (True, 10)
    release.set()
    holder.join()
    until(lambda: not journal.away)
    assert count(database) == 11
    assert {record.values["id"] for record in [*first, *second]} <= ids(database)
    database.dispose()


def test_postgresql_that_is_stopped_and_started_loses_and_doubles_nothing(
    tmp_path: Path, make_journal: MakeJournal
) -> None:
    server = PostgresServer(tmp_path / "postgresql")
    database = open_database(server.url, data_dir=tmp_path)
    try:
        prepare(database)
        journal = make_journal(database)
        batches = [[recommendation() for _ in range(20)] for _ in range(3)]
        assert put(journal, batches[0]) == [None] * 20
        until(lambda: not journal.away)
        server.stop()
        assert put(journal, batches[1]) == [None] * 20
        assert journal.away
        server.start()
        until(lambda: not journal.away)
        assert put(journal, batches[2]) == [None] * 20
        expected = {record.values["id"] for batch in batches for record in batch}
        until(lambda: count(database) == 60)
        assert ids(database) == expected
    finally:
        database.dispose()
        server.end()
