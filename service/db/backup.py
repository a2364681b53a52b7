"""A copy of the embedded database in one file, taken while it is in use, and the way back.

PostgreSQL brings its own tools for this, which know more than this module could.
"""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from service.db.database import Database, lock_file
from service.db.schema import HEAD
from service.db.spool import sync_folder
from service.domain.errors import ArtefactError, InvalidInputError

MAGIC = b"SQLite format 3\x00"
# What SQLite keeps beside a database that is open, or was left open.
LOG_SUFFIXES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A verified copy: its file, size and schema, and where what it replaced lies now."""

    path: Path
    bytes: int
    schema: str
    replaced: Path | None = None


def back_up(database: Database, target: Path) -> Copy:
    """One consistent file at `target`, which must not exist yet. Requests go on meanwhile.

    ArtefactError if there is nothing to copy or the database is damaged: a backup that cannot be restored is none.
    """
    source = _file_of(database)
    if target.exists():
        raise ArtefactError(f"{target}: exists already; give a new name, so that no earlier backup is lost")
    if not source.exists():
        raise ArtefactError(f"{source}: there is no database; check MEMORYPOLICY_DATA_DIR or MEMORYPOLICY_DATABASE_URL")
    with _whole(target) as temporary:
        _copy(source, temporary)
        schema = _verified(temporary, shown=source)
    return Copy(path=target, bytes=target.stat().st_size, schema=schema)


def restore(database: Database, source: Path) -> Copy:
    """Puts a backup in the database's place and keeps what was there beside it.

    ArtefactError while any process uses the database, and for a file that is damaged, foreign, or of a newer release:
    then nothing has changed.
    """
    target = _file_of(database)
    if not source.is_file():
        raise ArtefactError(f"{source}: no such file; give one that 'db backup' wrote")
    if any(log.exists() and log.stat().st_size for log in _logs(source)):
        raise ArtefactError(f"{source}: a log lies beside it, so it is not whole; give a file that 'db backup' wrote")
    _verified(source, shown=source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _unused(target), _whole(target) as temporary:
        _copy(source, temporary)
        schema = _verified(temporary, shown=source)
        replaced = _set_aside(target) if target.exists() else None
    return Copy(path=target, bytes=target.stat().st_size, schema=schema, replaced=replaced)


def _file_of(database: Database) -> Path:
    if not database.is_sqlite:
        remedy = "use PostgreSQL's own pg_dump --format=custom, and pg_restore"
        raise InvalidInputError(path="MEMORYPOLICY_DATABASE_URL", value=str(database), remedy=remedy)
    return Path(str(database.url.database))


def _logs(path: Path) -> list[Path]:
    return [Path(f"{path}{suffix}") for suffix in LOG_SUFFIXES]


def _copy(source: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(target)) as copy:
            origin.backup(copy)
            # In one file, not with a log beside it.
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise ArtefactError(f"{source}: {error}; it cannot be copied") from error


def _verified(path: Path, *, shown: Path) -> str:
    """The schema of a whole database of ours. ArtefactError, which names `shown`."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ArtefactError(f"{shown}: not a SQLite database; give a file that 'db backup' wrote")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            findings = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
            if findings != ["ok"]:
                raise ArtefactError(f"{shown}: damaged ({' '.join(findings[0].split())}); take an earlier backup")
            (schema,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
    except sqlite3.OperationalError as error:
        raise ArtefactError(f"{shown}: no database of this service ({error})") from error
    except sqlite3.DatabaseError as error:
        raise ArtefactError(f"{shown}: damaged ({error}); take an earlier backup") from error
    if schema is None or schema > HEAD:
        raise ArtefactError(
            f"{shown}: schema {schema!r}, and this release knows {HEAD!r}; use the release that made it"
        )
    return str(schema)


@contextmanager
def _unused(target: Path) -> Iterator[None]:
    """No process of this release uses the database, and none begins to before the end."""
    descriptor = lock_file(target)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtefactError(f"{target}: a process uses it; stop the service first") from error
        if target.exists():
            _fold_log(target)
        yield
    finally:
        os.close(descriptor)


def _fold_log(target: Path) -> None:
    """What is in the log goes to the file, which needs every other connection closed, those of an older release too."""
    try:
        with closing(sqlite3.connect(target, timeout=0.5)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        raise ArtefactError(f"{target}: {error}; stop what uses it first") from error
    except sqlite3.DatabaseError:
        # Damaged: the likeliest reason for being here. It is kept as it is.
        return


def _set_aside(target: Path) -> Path:
    """A second name for the present file; its log goes with it, as it would be applied to the new one."""
    kept = next(
        path for number in count(1) if not (path := target.with_name(f"{target.name}.replaced-{number}")).exists()
    )
    try:
        os.link(target, kept)
    except OSError:
        # A file system without links: a copy, because the name must not be free for a moment.
        shutil.copy2(target, kept)
    for log in _logs(target):
        if log.exists():
            log.rename(Path(f"{kept}{log.name.removeprefix(target.name)}"))
    return kept


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that takes its name at the end, on the disk, or is gone."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        # Only its owner may read what was asked and answered.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
