"""The data layer is tested on both databases: an SQLite file and a real PostgreSQL server that a wheel brings."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from service.db.database import Database, open_database
from service.db.schema import prepare
from tests.db.postgresql import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for the whole run: that of MEMORYPOLICY_TEST_POSTGRES_URL, else one started here."""
    given = os.environ.get("MEMORYPOLICY_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    server = PostgresServer(tmp_path_factory.mktemp("postgresql"))
    yield server.url
    server.end()


@pytest.fixture
def new_postgres(postgres_url: str) -> str:
    """The address of an empty database on it."""
    name = f"memorypolicy_test_{os.getpid()}_{next(_numbers)}"
    server = make_url(postgres_url).set(drivername="postgresql+psycopg")
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'memory.db'}"
    address: str = request.getfixturevalue("new_postgres")
    return address


@pytest.fixture
def empty_database(url: str, tmp_path: Path) -> Iterator[Database]:
    """Without a table."""
    database = open_database(url, data_dir=tmp_path)
    yield database
    database.dispose()


@pytest.fixture
def database(empty_database: Database) -> Database:
    """At this release's schema."""
    prepare(empty_database)
    return empty_database
