"""One database, SQLite or PostgreSQL: its connections, and errors that say whether waiting helps."""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from service.domain.errors import InvalidInputError, MemoryPolicyError

logger = logging.getLogger(__name__)

Synchronous = Literal["normal", "full"]
# A write that finds the file locked waits this long; the journal's own deadline is shorter.
SQLITE_BUSY_MS = 5_000
# 16 MiB of log at 4 KiB a page.
CHECKPOINT_PAGES = 4_000
CONNECT_TIMEOUT_S = 2
STATEMENT_TIMEOUT_MS = 10_000


class DatabaseAwayError(MemoryPolicyError):
    """The database cannot be used now; the same call may succeed later."""


class UnfitDataError(MemoryPolicyError):
    """The database refuses what was to be stored; it would refuse it again."""


class Database:
    """Connections to one database. Threads may share it; none is opened before the first use."""

    def __init__(self, url: URL, *, synchronous: Synchronous = "normal") -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.engine = _sqlite(url, synchronous) if self.is_sqlite else _postgresql(url)
        self._in_use: int | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """The address without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on an error.

        DatabaseAwayError where waiting may help, UnfitDataError where it is the data's own fault.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except (DataError, IntegrityError, UnicodeError) as error:
            raise UnfitDataError(f"{self}: {_one_line(error)}") from error
        except SQLAlchemyError as error:
            # Raised before the database was asked: a value that its driver cannot send.
            if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
                raise UnfitDataError(f"{self}: {_one_line(error)}") from error
            raise DatabaseAwayError(f"{self}: {_one_line(error)}; it is tried again") from error

    def hold(self) -> None:
        """Until `dispose`, or the end of the process, nobody may put another file in this one's place.

        Waits for whoever is doing that now. PostgreSQL needs none of it.
        """
        with self._lock:
            if not self.is_sqlite or self._in_use is not None:
                return
            try:
                self._in_use = lock_file(Path(str(self.url.database)))
                fcntl.flock(self._in_use, fcntl.LOCK_SH)
            except OSError as error:
                raise DatabaseAwayError(f"{self}: {error}") from error

    def dispose(self) -> None:
        """Closes the idle connections."""
        self.engine.dispose()
        with self._lock:
            if self._in_use is not None:
                os.close(self._in_use)
                self._in_use = None


def lock_file(path: Path) -> int:
    """Opens the file beside an SQLite database whose lock says who uses it: shared by users, alone for a restore."""
    # Whoever may read the database may lock it, so any user of the group can start a command.
    return os.open(f"{path}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def open_database(url: str | None, *, data_dir: Path, synchronous: Synchronous = "normal") -> Database:
    """The database of MEMORYPOLICY_DATABASE_URL, or the embedded one in `data_dir`, whose folder is created."""
    if url is None:
        data_dir.mkdir(parents=True, exist_ok=True)
        return Database(URL.create("sqlite", database=str(data_dir / "memorypolicy.db")), synchronous=synchronous)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The value may hold a password, so it is not repeated.
        raise _unusable("…") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise _unusable(parsed.drivername)
    if parsed.drivername == "sqlite" and not parsed.database:
        raise _unusable("sqlite without a file")
    return Database(parsed, synchronous=synchronous)


def _unusable(value: str) -> InvalidInputError:
    remedy = "give postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE, or leave it out for the embedded database"
    return InvalidInputError(path="MEMORYPOLICY_DATABASE_URL", value=value, remedy=remedy)


def _sqlite(url: URL, synchronous: Synchronous) -> Engine:
    engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_MS / 1000})

    @event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        # WAL: readers never block the writer, and a commit is one append. NORMAL leaves the append to the kernel.
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute(f"PRAGMA synchronous = {synchronous.upper()}")
        # A checkpoint flushes the file while the writer waits: four times rarer than SQLite's own choice.
        cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    return engine


def _postgresql(url: URL) -> Engine:
    return create_engine(
        url,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "memorypolicy",
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={STATEMENT_TIMEOUT_MS}",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
        },
    )


def _one_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:200]
