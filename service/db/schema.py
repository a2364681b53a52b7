"""Brings a database to the schema of this release, under a lock, whoever else is starting at the same time."""

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from service.db.database import Database
from service.domain.errors import ArtefactError

if TYPE_CHECKING:
    from alembic.config import Config

logger = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
# What a migrated database says; known here so that a start need not load the migrations. A test compares.
HEAD = "0002"
# Any number, the same in every release: it names the lock in PostgreSQL.
LOCK_KEY = 7_061_919_301


def prepare(database: Database) -> None:
    """Migrates to HEAD unless that is there already. DatabaseAwayError; a newer schema is used as it is.

    From here on the database is in use: no backup is restored over it.
    """
    database.hold()
    if current_revision(database) == HEAD:
        return
    with _lock(database), database.transaction() as connection:
        if database.is_sqlite:
            # Python's driver begins no transaction for DDL; with this a migration is applied whole or not at all.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        # Asked again: another replica may have done it while this one waited for the lock.
        found = _revision(connection)
        if found == HEAD:
            return
        if found is not None and found > HEAD:
            # Migrations only add, so that a release can be taken back without taking back the schema.
            logger.warning("the schema %s is newer than %s, which this release was made for; going on", found, HEAD)
            return
        _upgrade(connection)
        logger.info("migrated %s from %s to %s", database, found or "nothing", HEAD)


def current_revision(database: Database) -> str | None:
    """The revision that the database is at; None before the first migration. DatabaseAwayError."""
    with database.transaction() as connection:
        return _revision(connection)


def differences(database: Database) -> list[str]:
    """What alembic would still change: empty if tables and migrations agree. The database must be at HEAD."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from service.db.tables import Base

    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return [repr(difference) for difference in compare_metadata(context, Base.metadata)]


def config() -> "Config":
    """alembic's configuration: built here, so that no file of it is needed."""
    from alembic.config import Config

    if not MIGRATIONS.is_dir():
        raise ArtefactError(f"{MIGRATIONS}: no migrations; restore the folder from version control")
    made = Config()
    made.set_main_option("script_location", str(MIGRATIONS))
    return made


def _upgrade(connection: Connection, *, revision: str = "head") -> None:
    from alembic import command

    made = config()
    made.attributes["connection"] = connection
    command.upgrade(made, revision)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


@contextmanager
def _lock(database: Database) -> Iterator[None]:
    """Held by one process at a time. SQLite's own lock would end with each statement of a migration."""
    if database.is_sqlite:
        with Path(f"{database.url.database}.migration-lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    # Bound to the session, not the transaction, and released with the connection if the process dies.
    with database.transaction() as connection:
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        yield
