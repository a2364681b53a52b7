"""Group commit: requests that wait together share one transaction, and each is answered after it.

Two threads. The writer takes everything that waits, commits it, and tells the event loop; while it commits, the next
group gathers by itself, so that nobody waits for a timer. If the database is away, the group goes to the spool instead.
The rescuer looks after the writer: if a commit neither succeeds nor fails in time, it spools what waits. Should that
commit succeed after all, the replay finds the ids and leaves them alone.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.db.database import Database, DatabaseAwayError
from service.db.record import Record, insert_records
from service.db.schema import prepare
from service.db.spool import Spool, SpoolFile, SpoolFullError
from service.logs import log_without_values

logger = logging.getLogger(__name__)

REPLAY_BATCH = 500
RESCUE_TICK_S = 0.05
CLOSE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """group_size: records of one transaction at most; 1 commits each alone.

    deadline_s: how long a commit may take before its records are spooled. retry_s: between two attempts to reach a
    database that is away. look_s: between two looks for spools of processes that are gone.
    """

    group_size: int = 256
    deadline_s: float = 1.0
    retry_s: float = 0.5
    look_s: float = 30.0


@dataclass(slots=True, kw_only=True)
class JournalCounts:
    """Since the process started. Written by the journal's threads, read by anyone."""

    committed: int = 0
    transactions: int = 0
    spooled: int = 0
    replayed: int = 0
    refused: int = 0
    rejected: int = 0
    damaged: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    record: Record
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class _Group:
    members: list[_Waiting]
    settled: bool = field(default=False)


class Journal:
    """Makes records durable. `record` returns once its record is in the database or in the fsynced spool.

    away: the database is known to be away already, so that the first record need not find it out.
    """

    def __init__(
        self,
        database: Database,
        spool: Spool,
        *,
        settings: JournalSettings | None = None,
        away: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = JournalCounts()
        self._database, self._spool = database, spool
        self._settings, self._clock = settings or JournalSettings(), clock
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        self._group: _Group | None = None
        self._busy_since_s: float | None = None
        self._writer_sleeps = False
        self._away = away
        self._lost = False
        self._retry_at_s = 0.0
        # What an earlier process left is looked for at once.
        self._look_at_s = 0.0
        self._closing, self._ended = False, False
        self._threads: list[threading.Thread] = []

    @property
    def away(self) -> bool:
        """True while records go to the spool."""
        return self._away

    @property
    def lost(self) -> bool:
        """True while the database is known to be away; before the first contact nothing is known."""
        return self._lost

    @property
    def full(self) -> bool:
        """True while the next record would be refused."""
        return self._away and not self._spool.has_room()

    @property
    def spool_bytes(self) -> int:
        """Size of this process's spool."""
        return self._spool.own_bytes

    @property
    def queued(self) -> int:
        """Records that wait for being durable, those of the group that is being committed among them."""
        with self._changed:
            group = self._group
            committing = 0 if group is None or group.settled else len(group.members)
            return len(self._waiting) + committing + sum(map(len, self._gathering.values()))

    @property
    def spool_limit_bytes(self) -> int:
        """Size of the spool at which records are refused."""
        return self._spool.most_bytes

    def start(self) -> None:
        """Starts the threads, once; `record` does it too."""
        with self._changed:
            if self._threads or self._closing:
                return
            self._threads = [
                threading.Thread(target=target, name=name, daemon=True)
                for target, name in ((self._write, "journal"), (self._rescue, "journal-rescue"))
            ]
            for thread in self._threads:
                thread.start()

    async def record(self, *records: Record) -> None:
        """Returns once they survive a kill of this process. SpoolFullError: not all do, so nobody may be answered."""
        if not self._threads:
            self.start()
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(record, loop, loop.create_future()) for record in records]
        gathering = self._gathering.get(loop)
        if gathering is None:
            # Whatever else is ready in this turn of the loop comes along: a wake-up costs more than a row.
            self._gathering[loop] = waiting
            loop.call_soon(self._hand_over, loop)
        else:
            gathering += waiting
        await asyncio.gather(*(one.done for one in waiting))

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._changed:
            self._waiting += self._gathering.pop(loop)
            if self._writer_sleeps:
                self._changed.notify_all()

    def close(self) -> None:
        """Everything that waits is made durable, then the threads end. What is spooled stays for the next process."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        writer, rescuer = self._threads or (None, None)
        if writer is None or rescuer is None:
            return
        # A writer that hangs in the database holds nothing that the rescuer has not spooled.
        writer.join(timeout=CLOSE_PATIENCE_S)
        self._ended = True
        rescuer.join()
        if not writer.is_alive():
            self._spool.close()
            # It may be started again: a server's life can begin twice in one process.
            with self._changed:
                self._threads, self._closing, self._ended, self._look_at_s = [], False, False, 0.0

    def _write(self) -> None:
        while (group := self._next_group()) is not None:
            if self._away:
                self._come_back_if_due()
            if not self._away:
                self._commit(group)
            if self._away:
                self._spool_group(group)
            elif self._clock() >= self._look_at_s:
                self._look_at_s = self._clock() + self._settings.look_s
                # Replayed by the way back, as after an outage. Never set to False here: the rescuer may have set it.
                if self._spool.has_orphans():
                    self._away = True

    def _next_group(self) -> _Group | None:
        """What waits; an empty group when it is time to try the database again; None at the end."""
        with self._changed:
            self._group, self._busy_since_s = None, None
            while not self._waiting and not self._closing:
                timeout_s = max(0.0, (self._retry_at_s if self._away else self._look_at_s) - self._clock())
                if timeout_s == 0.0:
                    break
                self._writer_sleeps = True
                self._changed.wait(timeout_s)
                self._writer_sleeps = False
            if self._closing and not self._waiting:
                return None
            size = self._settings.group_size
            self._group = _Group(self._waiting[:size])
            self._waiting = self._waiting[size:]
            self._busy_since_s = self._clock()
            return self._group

    def _commit(self, group: _Group) -> None:
        records = [member.record for member in group.members]
        # Nothing waits, or it was spooled while the database was reached for.
        if not records or group.settled:
            return
        try:
            refused = insert_records(self._database, records)
            if refused:
                self._reject(refused)
        except DatabaseAwayError as error:
            self._go_away(error)
            return
        except Exception as error:
            # Whatever it is, the thread that everybody waits for must not end.
            log_without_values(error, "a transaction")
            self._go_away(DatabaseAwayError(type(error).__name__))
            return
        self.counts.committed += len(records) - len(refused)
        self.counts.transactions += 1
        if self._claim(group):
            _tell(group.members, None)

    def _claim(self, group: _Group) -> bool:
        """True for the one of the two threads that may tell the members of a group."""
        with self._changed:
            mine, group.settled = not group.settled, True
            return mine

    def _reject(self, refused: Sequence[Record]) -> None:
        self._spool.reject(refused)
        self.counts.rejected += len(refused)

    def _go_away(self, error: DatabaseAwayError) -> None:
        if not self._away:
            logger.warning("records go to %s: %s", self._spool.folder, error)
        self._away = self._lost = True
        self._retry_at_s = self._clock() + self._settings.retry_s

    def _spool_group(self, group: _Group) -> None:
        if self._claim(group):
            self._spool_members(group.members)

    def _spool_members(self, members: Sequence[_Waiting]) -> None:
        if not members:
            return
        error: SpoolFullError | None = None
        try:
            self._spool.append([member.record for member in members])
        except SpoolFullError as full:
            error = full
        with self._changed:
            if error is None:
                self.counts.spooled += len(members)
                # Whoever spooled, the writer must replay.
                self._away = True
                self._lost = True
                self._changed.notify_all()
            else:
                self.counts.refused += len(members)
        _tell(members, error)

    def _come_back_if_due(self) -> None:
        """Reaches for the database, brings its schema up to date and replays every spool; away until all is done."""
        if self._clock() < self._retry_at_s:
            return
        try:
            prepare(self._database)
            self._replay_orphans()
            self._replay_own()
        except DatabaseAwayError as error:
            self._go_away(error)
        except Exception as error:
            # As above: the spool goes on, and the next attempt may do better.
            log_without_values(error, "coming back")
            self._go_away(DatabaseAwayError(type(error).__name__))

    def _replay_orphans(self) -> None:
        for file in self._spool.orphans():
            try:
                self._replay(file, start=0)
            except BaseException:
                file.close()
                raise
            file.remove()

    def _replay_own(self) -> None:
        """The file may grow meanwhile; it is cleared in the moment in which nothing of it is left to replay."""
        offset = 0
        while True:
            file = self._spool.own()
            if file is not None:
                offset = self._replay(file, start=offset)
            with self._spool.lock:
                if file is not self._spool.own() or (file is not None and file.size > offset):
                    continue
                if file is not None and file.size:
                    file.clear()
                self._away = self._lost = False
            logger.info("records go to %s", self._database)
            return

    def _replay(self, file: SpoolFile, *, start: int) -> int:
        """Inserts what is there from an offset on; the offset behind it."""
        offset = start
        while True:
            stretch = file.read(offset, most=REPLAY_BATCH)
            self.counts.damaged += stretch.damaged
            if stretch.end == offset:
                return offset
            refused = insert_records(self._database, stretch.records) if stretch.records else []
            if refused:
                self._reject(refused)
            self.counts.replayed += len(stretch.records) - len(refused)
            offset = stretch.end
            # The database answers: that is not being stuck.
            self._busy_since_s = self._clock()
            self._spool_what_waits()

    def _spool_what_waits(self) -> None:
        with self._changed:
            group, members, self._waiting = self._group, self._waiting, []
        if group is not None:
            self._spool_group(group)
        self._spool_members(members)

    def _rescue(self) -> None:
        stuck = False
        while not self._ended:
            time.sleep(RESCUE_TICK_S)
            with self._changed:
                group, since_s = self._group, self._busy_since_s
                # Away, the writer is trying to connect: nobody should wait for that.
                patience_s = RESCUE_TICK_S if self._away or stuck else self._settings.deadline_s
                stuck = group is not None and since_s is not None and self._clock() - since_s > patience_s
                if group is None or not stuck:
                    continue
                members = [*([] if group.settled else group.members), *self._waiting]
                group.settled, self._waiting = True, []
            self._spool_members(members)


def _tell(members: Sequence[_Waiting], error: SpoolFullError | None) -> None:
    """One call into each event loop for the whole group."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for member in members:
        by_loop.setdefault(member.loop, []).append(member.done)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures, error)
        except RuntimeError:
            # The loop is closed: whoever waited is gone.
            continue


def _resolve(futures: Sequence["asyncio.Future[None]"], error: SpoolFullError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
