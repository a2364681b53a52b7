"""Several processes behind one listening socket: started, replaced when they die, drained together.

uvicorn's supervisor builds its own kind of server in each process, so it cannot be given one that drains.
"""

import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from service.domain.errors import MemoryPolicyError
from service.server.listener import ignore_newcomers
from service.server.run import serve_here
from service.settings import Settings

logger = logging.getLogger(__name__)

# prometheus-client's name for the folder that the processes of one service count in.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
FOLDER_PREFIX = "metrics-"
TICK_S = 0.2
# Between two attempts to replace a worker that does not even start.
RETRY_S = 1.0
# What a worker may take beyond its grace: to hear of the end, to flush the audit, to leave a database that hangs.
BEYOND_GRACE_S = 20.0
CANNOT_START = 3


@dataclass(slots=True)
class Worker:
    """One process. It is heard from once, when it serves."""

    process: SpawnProcess
    hears: Connection
    serves: bool = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.exitcode is None


class Workers:
    """The parent. It answers nothing itself, and holds neither a policy nor a database."""

    def __init__(self, settings: Settings, listener: socket.socket, *, on_started: Callable[[], None]) -> None:
        self._settings, self._listener, self._on_started = settings, listener, on_started
        self._context = multiprocessing.get_context("spawn")
        # Nothing is ever written: workers see its end, which also comes if this process is killed.
        self._stopped, self._stop = self._context.Pipe(duplex=False)
        self._workers: list[Worker] = []
        self._signals = 0

    def run(self) -> None:
        """Returns after a signal, with every worker gone. SystemExit(1): none could start, or some were killed."""
        signal.signal(signal.SIGTERM, self._count)
        signal.signal(signal.SIGINT, self._count)
        with _metrics_folder(self._settings.data_dir):
            try:
                # What stops one would stop all, and is said once.
                self._workers = [self._new()]
                self._wait_for_first()
                while not self._signals:
                    if len(self._workers) < self._settings.workers:
                        self._workers.append(self._new())
                        continue
                    wait([worker.process.sentinel for worker in self._workers], timeout=TICK_S)
                    self._replace_dead()
            finally:
                self._end()

    def _count(self, signum: int, frame: object) -> None:
        self._signals += 1

    def _new(self) -> Worker:
        hears, tells = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=work, args=(self._settings, self._listener, self._stopped, tells), name="memorypolicy-worker"
        )
        process.start()
        tells.close()
        return Worker(process, hears)

    def _wait_for_first(self) -> None:
        first = self._workers[0]
        while not self._signals:
            if first.hears.poll(TICK_S):
                if not _served(first):
                    raise SystemExit(1)
                self._on_started()
                return

    def _replace_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.alive or self._signals:
                continue
            served = _served(worker)
            logger.error("worker %d ended with status %s and is replaced", worker.process.pid, worker.process.exitcode)
            _forget_metrics(worker)
            if not served:
                if not any(other.alive for other in self._workers):
                    raise SystemExit(1)
                time.sleep(RETRY_S)
            self._workers[place] = self._new()

    def _end(self) -> None:
        """All of them drain at once; nobody new is let in while all of them still accept."""
        for worker in self._workers:
            if worker.alive:
                worker.process.terminate()
        end_s = time.monotonic() + self._settings.drain_s
        while time.monotonic() < end_s and self._signals < 2 and any(worker.alive for worker in self._workers):
            time.sleep(0.02)
        ignore_newcomers(self._listener)
        self._stop.close()
        # The last worker that closes it closes it for good.
        self._listener.close()
        end_s = time.monotonic() + self._settings.shutdown_grace_s + BEYOND_GRACE_S
        while any(worker.alive for worker in self._workers):
            if self._signals > 1 or time.monotonic() >= end_s:
                for worker in self._workers:
                    worker.process.kill()
                raise SystemExit(1)
            wait([worker.process.sentinel for worker in self._workers if worker.alive], timeout=TICK_S)


def work(settings: Settings, listener: socket.socket, stopped: Connection, tells: Connection) -> None:
    """The life of a worker. A fault that is foreseen is one line, as in a service of one process."""
    try:
        serve_here(settings, listener, stopped=stopped, on_started=lambda: tells.send_bytes(b"serves"))
    except (MemoryPolicyError, OSError) as error:
        print(f"memorypolicy: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(CANNOT_START) from None


def _served(worker: Worker) -> bool:
    """Whether it got as far as serving. Its end of the pipe closes when it dies."""
    try:
        if not worker.serves and worker.hears.poll():
            worker.serves = bool(worker.hears.recv_bytes())
    except (EOFError, OSError):
        worker.hears.close()
    return worker.serves


@contextmanager
def _metrics_folder(data_dir: Path) -> Iterator[None]:
    """A folder of this service's life: what an earlier one counted is not counted again."""
    # The one folder that is writable everywhere.
    data_dir.mkdir(parents=True, exist_ok=True)
    _sweep_folders(data_dir)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, dir=data_dir) as folder, open_lock(Path(folder)):
        os.environ[METRICS_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[METRICS_FOLDER]


def _sweep_folders(data_dir: Path) -> None:
    """Removes those of services that were killed: nobody holds their lock."""
    for folder in data_dir.glob(f"{FOLDER_PREFIX}*"):
        try:
            with open_lock(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


@contextmanager
def open_lock(folder: Path) -> Iterator[None]:
    """The lock of a folder, for as long as its service lives. OSError if another one holds it."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _forget_metrics(worker: Worker) -> None:
    """A gauge of a process that is gone says nothing; its counters stay."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]  # it has no annotations
