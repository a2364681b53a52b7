"""The database that a command works on, as the settings name it."""

import argparse
import time
from typing import TYPE_CHECKING

from service.domain.errors import ArtefactError
from service.settings import Settings

if TYPE_CHECKING:
    from service.db.database import Database


def open_database_of(settings: Settings) -> "Database":
    """As it is: no schema is looked at, no connection made."""
    from service.db.database import open_database

    return open_database(settings.database_url, data_dir=settings.data_dir, synchronous=settings.sqlite_synchronous)


def prepared_database(settings: Settings) -> "Database":
    """At this release's schema; ArtefactError in one line if it cannot be reached."""
    from service.db.database import DatabaseAwayError
    from service.db.schema import prepare

    database = open_database_of(settings)
    try:
        prepare(database)
    except DatabaseAwayError as error:
        raise ArtefactError(f"{error}; check MEMORYPOLICY_DATABASE_URL") from error
    return database


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """--json, the same for every command that a machine would read."""
    parser.add_argument("--json", action="store_true", help="print JSON")
