"""A row of the audit on its way to the database, possibly through a file."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite

from service.db.database import Database, UnfitDataError
from service.db.tables import Base

logger = logging.getLogger(__name__)

# 14 columns of 64 rows stay far below the least number of variables that SQLite allows, 999.
MOST_ROWS = 64

TableName = Literal["recommendations", "hook_decisions"]


@dataclass(frozen=True, slots=True)
class Record:
    """One row: the values of every column that this release knows, by name. Its id makes it unique for ever."""

    table: TableName
    values: dict[str, str | int | None]

    def to_json(self) -> str:
        """One line of a spool."""
        return json.dumps({"table": self.table, "values": self.values}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Inverse of to_json; ValueError, KeyError or TypeError for anything else."""
        content = json.loads(line)
        if not isinstance(content["values"]["id"], str) or content["table"] not in (
            "recommendations",
            "hook_decisions",
        ):
            raise ValueError("no record")
        # A newer release may have known columns that this one does not; the rest of its row is worth keeping.
        known = Base.metadata.tables[content["table"]].columns.keys()
        return cls(content["table"], {name: value for name, value in content["values"].items() if name in known})


def insert_records(database: Database, records: Sequence[Record]) -> list[Record]:
    """All of them in one transaction; those whose id is there already are left alone.

    Returns the records that the database refuses for what they hold: they would fail for ever. DatabaseAwayError.
    """
    try:
        with database.transaction() as connection:
            _insert(connection, records)
    except UnfitDataError as error:
        if len(records) == 1:
            # The database's own words may repeat what the record holds; the record itself is kept.
            logger.error("the record %s is set aside: %s", records[0].values["id"], type(error.__cause__).__name__)
            return list(records)
        return [refused for record in records for refused in insert_records(database, [record])]
    return []


def insert_or_ignore(connection: Connection, table: Table) -> Insert:
    """INSERT that does nothing where the primary key is there already."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=table.primary_key)
    return postgresql.insert(table).on_conflict_do_nothing(index_elements=table.primary_key)


def _insert(connection: Connection, records: Sequence[Record]) -> None:
    by_statement: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for record in records:
        by_statement.setdefault((record.table, tuple(record.values)), []).append(record.values)
    for (name, columns), rows in by_statement.items():
        if connection.dialect.name == "sqlite":
            _insert_into_sqlite(connection, name, columns, rows)
        else:
            connection.execute(insert_or_ignore(connection, Base.metadata.tables[name]), rows)


def _insert_into_sqlite(
    connection: Connection, name: str, columns: tuple[str, ...], rows: Sequence[dict[str, Any]]
) -> None:
    """Many rows a statement: at each statement the driver gives the interpreter away, and must wait to have it back.

    The driver's own form, because SQLAlchemy's work per row would be half of the cost of a record. Powers of two, so
    that a few statements serve every size.
    """
    start = 0
    while start < len(rows):
        size = min(1 << (len(rows) - start).bit_length() - 1, MOST_ROWS)
        values = tuple(value for row in rows[start : start + size] for value in row.values())
        connection.exec_driver_sql(_sqlite_insert(name, columns, size), values)
        start += size


@cache
def _sqlite_insert(name: str, columns: tuple[str, ...], size: int) -> str:
    """INSERT of that many rows with these columns in this order; ValueError for one that the table does not have."""
    known = Base.metadata.tables[name].columns.keys()
    if not set(columns) <= set(known):
        raise ValueError(f"{name}: a record names {', '.join(columns)}; the table has {', '.join(known)}")
    places = ", ".join([f"({', '.join('?' * len(columns))})"] * size)
    return f"INSERT INTO {name} ({', '.join(columns)}) VALUES {places} ON CONFLICT (id) DO NOTHING"
