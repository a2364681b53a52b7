"""The file that keeps records while the database is away: bounded, fsynced before anyone is told, replayed once.

A folder may be shared by several processes. Each appends to a file of its own and holds a lock on it; a file whose lock
is free belongs to a process that is gone, and whoever finds it replays it.
"""

import errno
import fcntl
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from service.db.record import Record
from service.domain.errors import MemoryPolicyError

SUFFIX = ".spool"
REJECTED_FILE = "rejected.jsonl"
MOST_NAMES = 20


class SpoolFullError(MemoryPolicyError):
    """There is no room for a record: the limit is reached, or the disk is full."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some records of a file, where they end, and how many lines between them were torn or damaged."""

    records: list[Record]
    end: int
    damaged: int


class SpoolFile:
    """An append-only file of lines `crc32 record`, locked by its owner."""

    def __init__(self, path: Path) -> None:
        """BlockingIOError if another process owns it, or took it away between its opening and its locking."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or path.stat().st_ino != os.fstat(self._descriptor).st_ino:
                raise BlockingIOError(errno.EAGAIN, "removed by another process", str(path))
        except OSError:
            os.close(self._descriptor)
            raise
        self.size = os.fstat(self._descriptor).st_size

    def append(self, lines: bytes) -> None:
        """Returns once they are on the disk. OSError; what was written of them is taken back."""
        try:
            written = 0
            while written < len(lines):
                written += os.write(self._descriptor, lines[written:])
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(lines)

    def read(self, start: int, *, most: int) -> Stretch:
        """Up to `most` records from an offset on. A line without an end is none: nobody was told that it is kept."""
        records: list[Record] = []
        end, damaged = start, 0
        with self.path.open("rb") as file:
            file.seek(start)
            for line in file:
                if len(records) == most or not line.endswith(b"\n"):
                    break
                end += len(line)
                record = _decoded(line)
                if record is None:
                    damaged += 1
                else:
                    records.append(record)
        return Stretch(records=records, end=end, damaged=damaged)

    def clear(self) -> None:
        """Nothing is left in it."""
        os.ftruncate(self._descriptor, 0)
        os.fsync(self._descriptor)
        self.size = 0

    def remove(self) -> None:
        """The file is gone, before its lock is."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._descriptor)


class Spool:
    """The files of a folder. Appending and replaying may happen in two threads."""

    def __init__(self, folder: Path, *, most_bytes: int, own_name: str) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._own_name = own_name
        self._own: SpoolFile | None = None
        self.lock = threading.Lock()

    @property
    def own_bytes(self) -> int:
        """Size of this process's file."""
        return self._own.size if self._own else 0

    def append(self, records: Sequence[Record]) -> None:
        """All of them or none, on the disk on return. SpoolFullError."""
        lines = b"".join(_encoded(record) for record in records)
        with self.lock:
            if self.own_bytes + len(lines) > self.most_bytes:
                raise SpoolFullError(
                    f"{self.folder}: {self.own_bytes:,} of {self.most_bytes:,} bytes are used; bring the database back"
                )
            try:
                self._own_file().append(lines)
            except OSError as error:
                raise SpoolFullError(f"{self.folder}: {error.strerror}") from error

    def has_room(self) -> bool:
        """False once the limit is nearly reached: a record is some kilobytes."""
        return self.own_bytes + 2**16 <= self.most_bytes

    def own(self) -> SpoolFile | None:
        """This process's file, if it has one."""
        return self._own

    def orphans(self) -> Iterator[SpoolFile]:
        """Files of processes that are gone, locked for the caller, who removes or closes each."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            if self._own is not None and path == self._own.path:
                continue
            try:
                yield SpoolFile(path)
            except OSError:
                continue

    def has_orphans(self) -> bool:
        """True if there is a file of a process that is gone."""
        for file in self.orphans():
            file.close()
            return True
        return False

    def reject(self, records: Sequence[Record]) -> None:
        """Sets aside what no database will take, for a person to look at."""
        self._make_folder()
        with (self.folder / REJECTED_FILE).open("a", encoding="utf-8") as file:
            file.writelines(f"{record.to_json()}\n" for record in records)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """An empty file of ours is removed; one with records waits for the next process."""
        if self._own is not None:
            if self._own.size:
                self._own.close()
            else:
                self._own.remove()
            self._own = None

    def _own_file(self) -> SpoolFile:
        if self._own is None:
            self._make_folder()
            # Somebody who looks for files of the dead may hold a new one for a moment: then another name is tried.
            for attempt in count():
                name = f"{self._own_name}-{attempt}" if attempt else self._own_name
                try:
                    self._own = SpoolFile(self.folder / f"{name}{SUFFIX}")
                    break
                except BlockingIOError:
                    if attempt == MOST_NAMES:
                        raise
            sync_folder(self.folder)
        assert self._own is not None
        return self._own

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encoded(record: Record) -> bytes:
    content = record.to_json().encode()
    return b"%08x %b\n" % (zlib.crc32(content), content)


def _decoded(line: bytes) -> Record | None:
    checksum, _, content = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        return None
    try:
        return Record.from_json(content.decode())
    except (ValueError, KeyError, TypeError):
        return None
