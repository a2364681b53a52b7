"""Backup and restore of the embedded database, and PostgreSQL's own tools for the other."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from service.db.backup import back_up, restore
from service.db.database import Database, lock_file, open_database
from service.db.record import insert_records
from service.db.schema import HEAD, current_revision, differences, prepare
from service.domain.errors import ArtefactError, InvalidInputError
from tests.db.postgresql import tools
from tests.db.rows import count, ids, recommendation
from tests.memory.server import Server, run_service

OLD = Path(__file__).with_name("revision_0001.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "memorypolicy.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Database]:
    """Three recommendations, still in SQLite's log."""
    database = opened(path)
    insert_records(database, [recommendation() for _ in range(3)])
    yield database
    database.dispose()


def opened(path: Path) -> Database:
    database = open_database(None, data_dir=path.parent)
    prepare(database)
    return database


def test_a_backup_is_one_file_with_all_rows_that_only_its_owner_reads(memory: Database, tmp_path: Path) -> None:
    copied = back_up(memory, tmp_path / "backup.db")
    assert (copied.schema, copied.replaced) == (HEAD, None)
    assert copied.bytes == (tmp_path / "backup.db").stat().st_size
    assert (tmp_path / "backup.db").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "data"]
    with closing(sqlite3.connect(tmp_path / "backup.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert {row[0] for row in connection.execute("SELECT id FROM recommendations")} == ids(memory)


def test_a_backup_taken_while_rows_are_written_is_whole(memory: Database, tmp_path: Path) -> None:
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            insert_records(memory, [recommendation() for _ in range(50)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [back_up(memory, tmp_path / f"{number}.db").path for number in range(5)]
    finally:
        ended.set()
        writer.join()
    sizes = []
    for copy in copies:
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            sizes.append(connection.execute("SELECT count(*) FROM recommendations").fetchone()[0])
    # Never half a transaction: three rows, and fifty of each.
    assert [(size - 3) % 50 for size in sizes] == [0] * 5
    assert sizes == sorted(sizes)


def test_no_earlier_backup_is_overwritten(memory: Database, tmp_path: Path) -> None:
    (tmp_path / "backup.db").write_bytes(b"the only copy")
    with pytest.raises(ArtefactError, match="exists already"):
        back_up(memory, tmp_path / "backup.db")
    assert (tmp_path / "backup.db").read_bytes() == b"the only copy"


def test_a_damaged_database_makes_no_backup(memory: Database, path: Path, tmp_path: Path) -> None:
    memory.dispose()
    damage(path)
    with pytest.raises(ArtefactError, match="damaged"):
        back_up(memory, tmp_path / "backup.db")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_where_no_database_is_none_is_made_and_none_is_copied(tmp_path: Path) -> None:
    database = open_database(None, data_dir=tmp_path / "data")
    with pytest.raises(ArtefactError, match="there is no database; check MEMORYPOLICY_DATA_DIR"):
        back_up(database, tmp_path / "backup.db")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_restore_brings_the_rows_back_and_keeps_what_was_there(memory: Database, path: Path, tmp_path: Path) -> None:
    before = ids(memory)
    back_up(memory, tmp_path / "backup.db")
    insert_records(memory, [recommendation()])
    later = ids(memory)
    memory.dispose()

    copied = restore(memory, tmp_path / "backup.db")

    assert (copied.path, copied.schema) == (path, HEAD)
    database = opened(path)
    assert ids(database) == before
    assert differences(database) == []
    database.dispose()
    assert copied.replaced is not None
    with closing(sqlite3.connect(copied.replaced)) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM recommendations")} == later


def test_restoring_twice_keeps_both_that_were_there(memory: Database, tmp_path: Path) -> None:
    back_up(memory, tmp_path / "backup.db")
    memory.dispose()
    replaced = [restore(memory, tmp_path / "backup.db").replaced for _ in range(2)]
    assert [path.name for path in replaced if path] == ["memorypolicy.db.replaced-1", "memorypolicy.db.replaced-2"]


def test_a_damaged_database_is_replaced_with_its_log(memory: Database, path: Path, tmp_path: Path) -> None:
    before = ids(memory)
    back_up(memory, tmp_path / "backup.db")
    memory.dispose()
    path.write_bytes(b"overwritten by something else" * 500)
    # A log that SQLite would apply to whichever database stands beside it.
    Path(f"{path}-wal").write_bytes(b"left behind")
    copied = restore(memory, tmp_path / "backup.db")
    assert copied.replaced is not None
    assert copied.replaced.read_bytes().startswith(b"overwritten")
    assert not Path(f"{path}-wal").exists()
    database = opened(path)
    assert ids(database) == before
    database.dispose()


def test_a_lost_database_comes_back(memory: Database, path: Path, tmp_path: Path) -> None:
    before = ids(memory)
    back_up(memory, tmp_path / "backup.db")
    memory.dispose()
    shutil.rmtree(path.parent)
    database = open_database(None, data_dir=path.parent)
    assert restore(database, tmp_path / "backup.db").replaced is None
    prepare(database)
    assert ids(database) == before
    database.dispose()


def test_a_backup_of_an_earlier_release_is_restored_and_migrated_at_the_next_start(path: Path) -> None:
    database = open_database(None, data_dir=path.parent)
    assert restore(database, OLD).schema == "0001"
    assert current_revision(database) == "0001"
    prepare(database)
    assert (current_revision(database), count(database)) == (HEAD, 2)
    database.dispose()


def damage(path: Path) -> None:
    """Overwrites the pages behind the first."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def foreign(path: Path, schema: str | None) -> None:
    """A database that is not of this service, or of another release of it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        if schema is not None:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
            connection.execute("INSERT INTO alembic_version VALUES (?)", (schema,))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_text("PGDMP"), "not a SQLite database"),
        (lambda path: path.write_bytes(OLD.read_bytes()[:9000]), "damaged"),
        (lambda path: damage(shutil.copyfile(OLD, path)), "damaged"),
        (lambda path: foreign(path, None), "no database of this service"),
        (lambda path: foreign(path, "9999"), "schema '9999', and this release knows"),
        (lambda path: (shutil.copyfile(OLD, path), Path(f"{path}-wal").write_text("x")), "a log lies beside it"),
    ],
    ids=["missing", "text", "cut", "damaged", "foreign", "newer", "live"],
)
def test_what_cannot_be_restored_is_refused_and_changes_nothing(
    made: object, message: str, memory: Database, path: Path, tmp_path: Path
) -> None:
    assert callable(made)
    made(tmp_path / "given.db")
    memory.dispose()
    content = path.read_bytes()
    with pytest.raises(ArtefactError, match=message):
        restore(memory, tmp_path / "given.db")
    assert path.read_bytes() == content
    assert not list(path.parent.glob("*replaced*"))
    assert not list(path.parent.glob(".*"))


def test_nothing_is_restored_while_a_process_of_this_release_uses_the_database(
    memory: Database, tmp_path: Path
) -> None:
    back_up(memory, tmp_path / "backup.db")
    other = open_database(None, data_dir=tmp_path / "data")
    with pytest.raises(ArtefactError, match="a process uses it; stop the service first"):
        restore(other, tmp_path / "backup.db")


def test_nothing_is_restored_while_an_older_release_has_it_open(memory: Database, path: Path, tmp_path: Path) -> None:
    """It takes no lock of ours; its open connection is enough."""
    back_up(memory, tmp_path / "backup.db")
    memory.dispose()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        connection.execute("SELECT count(*) FROM recommendations").fetchone()
        with pytest.raises(ArtefactError, match="locked; stop what uses it first"):
            restore(memory, tmp_path / "backup.db")


def test_whoever_starts_during_a_restore_waits_for_its_end(memory: Database, path: Path) -> None:
    memory.dispose()
    restoring = lock_file(path)
    fcntl.flock(restoring, fcntl.LOCK_EX)
    started: list[Database] = []
    starting = threading.Thread(target=lambda: started.append(opened(path)))
    starting.start()
    starting.join(timeout=0.3)
    assert started == []
    os.close(restoring)
    starting.join()
    started[0].dispose()


def test_postgresql_is_left_to_its_own_tools(tmp_path: Path) -> None:
    database = open_database("postgresql://someone:secret@127.0.0.1:1/memory", data_dir=tmp_path)
    for work in (back_up, restore):
        with pytest.raises(InvalidInputError, match="pg_dump --format=custom, and pg_restore") as caught:
            work(database, tmp_path / "backup.db")
        assert "secret" not in str(caught.value)


def test_postgresqls_own_tools_bring_every_row_back(new_postgres: str, postgres_url: str, tmp_path: Path) -> None:
    database = open_database(new_postgres, data_dir=tmp_path)
    prepare(database)
    insert_records(database, [recommendation() for _ in range(3)])
    before = ids(database)
    dump = tmp_path / "memory.dump"
    subprocess.run([tools() / "pg_dump", "--format=custom", f"--file={dump}", new_postgres], check=True)
    insert_records(database, [recommendation()])
    database.dispose()
    subprocess.run(
        [tools() / "pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={new_postgres}", dump],
        check=True,
    )
    assert make_url(new_postgres).database != make_url(postgres_url).database
    assert ids(database) == before
    assert differences(database) == []
    database.dispose()


def test_the_commands_copy_a_running_servers_database_and_restore_once_it_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Server(folder) as server:
        said = run_service("db", "backup", str(tmp_path / "backup.db"), folder=folder)
        assert f"file: {tmp_path / 'backup.db'}" in said
        assert "spooled_bytes: 0" in said
        with pytest.raises(AssertionError, match="a process uses it; stop the service first"):
            run_service("db", "restore", str(tmp_path / "backup.db"), folder=folder)
        assert server.stop() == 0
    said = run_service("db", "restore", str(tmp_path / "backup.db"), folder=folder)
    assert f"schema: {HEAD}" in said
    assert "replaced: " in said
