"""Migrations: one schema on both databases, under a lock, from an old database with rows, for old code too."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, insert, inspect, select, text

from service.db.database import Database, DatabaseAwayError, open_database
from service.db.record import insert_records
from service.db.schema import HEAD, _upgrade, config, current_revision, differences, prepare
from service.domain.errors import InvalidInputError
from tests.db.rows import count, hook_decision, ids, recommendation

ROOT = Path(__file__).resolve().parents[2]
# Written by the release of revision 0001: two recommendations, an outcome, an activated bundle.
OLD = Path(__file__).with_name("revision_0001.db")


def test_the_release_knows_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(config()).get_current_head() == HEAD


def test_an_empty_database_is_migrated_and_tables_and_migrations_agree(empty_database: Database) -> None:
    assert current_revision(empty_database) is None
    prepare(empty_database)
    assert current_revision(empty_database) == HEAD
    assert differences(empty_database) == []


def test_migrating_twice_changes_nothing(database: Database) -> None:
    insert_records(database, [recommendation()])
    prepare(database)
    assert (current_revision(database), count(database)) == (HEAD, 1)


def test_two_replicas_that_start_at_once_migrate_once(url: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from service.db.database import open_database; "
        "from service.db.schema import prepare; prepare(open_database(sys.argv[1], data_dir=Path('.')))"
    )
    starts = [
        subprocess.Popen([sys.executable, "-c", code, url], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    errors = [start.communicate(timeout=120)[1] for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0], errors
    database = open_database(url, data_dir=tmp_path)
    assert differences(database) == []
    database.dispose()


def test_threads_that_migrate_at_once_do_too(empty_database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(prepare, [empty_database] * 4))
    assert current_revision(empty_database) == HEAD


def test_an_old_database_keeps_its_rows_and_gets_the_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copyfile(OLD, path)
    database = open_database(f"sqlite:///{path}", data_dir=tmp_path)
    assert current_revision(database) == "0001"
    with database.transaction() as connection:
        before = connection.execute(text("SELECT * FROM recommendations ORDER BY id")).mappings().all()
    prepare(database)
    assert differences(database) == []
    with database.transaction() as connection:
        after = connection.execute(text("SELECT * FROM recommendations ORDER BY id")).mappings().all()
    assert len(before) == 2
    assert [dict(row) for row in after] == [{**row, "endpoint": None, "mode": "apply"} for row in before]
    assert count(database, "outcomes") == count(database, "policy_activations") == 1
    insert_records(database, [recommendation(mode="shadow", endpoint="qwen")])
    assert count(database) == 3
    database.dispose()


def test_old_rows_survive_the_migration_on_either_database(empty_database: Database, tmp_path: Path) -> None:
    shutil.copyfile(OLD, tmp_path / "old.db")
    source = create_engine(f"sqlite:///{tmp_path / 'old.db'}")
    previous = MetaData()
    previous.reflect(source, resolve_fks=False)
    with empty_database.transaction() as connection:
        _upgrade(connection, revision="0001")
    tables = [table for table in previous.sorted_tables if table.name != "alembic_version"]
    with source.begin() as old, empty_database.transaction() as new:
        for table in tables:
            new.execute(insert(table), [dict(row) for row in old.execute(select(table)).mappings()])
    prepare(empty_database)
    with source.begin() as old, empty_database.transaction() as new:
        for table in tables:
            key = list(table.primary_key.columns)
            kept = [dict(row) for row in new.execute(select(table).order_by(*key)).mappings()]
            assert kept == [dict(row) for row in old.execute(select(table).order_by(*key)).mappings()]
        modes = set(new.execute(text("SELECT mode FROM recommendations")).scalars())
    assert modes == {"apply"}
    assert differences(empty_database) == []
    source.dispose()


def test_what_the_previous_release_writes_and_reads_works_on_the_new_schema(
    empty_database: Database, tmp_path: Path
) -> None:
    """Its statements are derived from its own schema, table by table, as its code would issue them."""
    shutil.copyfile(OLD, tmp_path / "old.db")
    source = create_engine(f"sqlite:///{tmp_path / 'old.db'}")
    previous = MetaData()
    previous.reflect(source, resolve_fks=False)
    prepare(empty_database)
    with source.begin() as old, empty_database.transaction() as new:
        for table in previous.sorted_tables:
            if table.name == "alembic_version":
                continue
            rows = [dict(row) for row in old.execute(select(table)).mappings()]
            assert rows, f"{table.name}: the old database has no row to try"
            new.execute(insert(table), rows)
            key = list(table.primary_key.columns)
            assert [dict(row) for row in new.execute(select(table).order_by(*key)).mappings()] == sorted(
                rows, key=lambda row: [row[column.name] for column in key]
            )
    source.dispose()


def test_a_migration_only_adds(empty_database: Database) -> None:
    with empty_database.transaction() as connection:
        _upgrade(connection, revision="0001")
    old = columns(empty_database)
    prepare(empty_database)
    new = columns(empty_database)
    assert set(old) <= set(new)
    for table, names in old.items():
        assert set(names) <= set(new[table])
        # What the previous release does not write must be optional, or have a default of the database's own.
        assert all(optional for name, optional in new[table].items() if name not in names), table


def columns(database: Database) -> dict[str, dict[str, bool]]:
    """By table: column -> whether it may be left out."""
    with database.transaction() as connection:
        found = inspect(connection)
        return {
            table: {
                column["name"]: column["nullable"] or column["default"] is not None
                for column in found.get_columns(table)
            }
            for table in found.get_table_names()
        }


def test_a_newer_schema_is_used_as_it_is(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("ALTER TABLE recommendations ADD COLUMN of_tomorrow INTEGER"))
    prepare(database)
    assert current_revision(database) == "9999"
    record = recommendation()
    insert_records(database, [record, hook_decision()])
    assert ids(database) == {record.values["id"]}


def test_an_interrupted_migration_leaves_nothing_behind(empty_database: Database) -> None:
    def interrupted() -> None:
        with empty_database.transaction() as connection:
            if empty_database.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            _upgrade(connection)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with empty_database.transaction() as connection:
        assert inspect(connection).get_table_names() == []
    prepare(empty_database)
    assert current_revision(empty_database) == HEAD


@pytest.mark.parametrize(
    "url", ["mysql://a:secret@b/c", "not an address", "sqlite://", "postgresql://a:secret@b:port/c"]
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="MEMORYPOLICY_DATABASE_URL") as caught:
        open_database(url, data_dir=tmp_path)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_away_says_where_without_its_password(tmp_path: Path) -> None:
    database = open_database("postgresql://someone:secret@127.0.0.1:1/memory", data_dir=tmp_path)
    with pytest.raises(DatabaseAwayError, match=r"someone:\*\*\*@127\.0\.0\.1:1/memory") as caught:
        prepare(database)
    assert "secret" not in str(caught.value)


def test_sqlite_keeps_a_log_ahead_and_flushes_as_told(tmp_path: Path) -> None:
    for synchronous, number in (("normal", 1), ("full", 2)):
        database = open_database(None, data_dir=tmp_path / synchronous, synchronous=synchronous)  # type: ignore[arg-type]
        with database.transaction() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == number
        database.dispose()
