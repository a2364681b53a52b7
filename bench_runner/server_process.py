"""The processes of one server: which they are, and how they end. No process is ever found by its name."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from bench_runner.files import read_json, write_json
from service.domain.errors import ArtefactError

# Inherited by every descendant, also by one that leaves the session.
TOKEN_VARIABLE = "MEMORYPOLICY_SERVER_TOKEN"
SECONDS_BETWEEN_CHECKS = 0.1
# Python's multiprocessing runs it per server; it unlinks the shared memory of processes that were killed.
TRACKER = "resource_tracker"
TRACKER_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer:
    """Names a server's processes beyond doubt: the boot, the token that they inherit, and the session of their own.

    session and started_ticks, the leader's pid and its start in clock ticks since the boot, are None as long as it has
    not been started. Neither depends on the wall clock, which may be set meanwhile.
    """

    token: str
    boot: str
    session: int | None = None
    started_ticks: int | None = None

    @classmethod
    def about_to_start(cls, token: str) -> Self:
        """Known before the process is, so that a kill at any moment leaves a name behind."""
        return cls(token=token, boot=_boot())

    def led_by(self, pid: int) -> Self:
        """The same with its leader, which was started with this pid in a new session."""
        return replace(self, session=pid, started_ticks=_started_ticks(pid))

    def processes(self) -> list[psutil.Process]:
        """Those that still run: the session's, and whoever carries the token."""
        if _boot() != self.boot:
            return []
        # A session's number is not given again while the session has a member, also if its leader has ended.
        in_session = self.session is not None and _started_ticks(self.session) in (self.started_ticks, None)
        found = []
        for process in psutil.process_iter():
            if process.pid == os.getpid() or _is_gone(process):
                continue
            if _has_token(process, self.token) or (in_session and _session_of(process.pid) == self.session):
                found.append(process)
        return found


def stop_processes(started: StartedServer, *, grace_s: float, reap: Callable[[], object] = lambda: None) -> None:
    """SIGTERM, after the grace SIGKILL; returns when none is left. `reap` collects a child of the caller.

    ArtefactError names what survives even that.
    """
    if _signal_and_wait(started, started.processes(), signal.SIGTERM, patience_s=grace_s, reap=reap):
        return
    killed = [process for process in started.processes() if not _is_tracker(process)]
    if _signal_and_wait(started, killed, signal.SIGKILL, patience_s=TRACKER_GRACE_S, reap=reap):
        return
    if not _signal_and_wait(started, started.processes(), signal.SIGKILL, patience_s=grace_s, reap=reap):
        left = [process.pid for process in started.processes()]
        raise ArtefactError(f"processes {left} of the server survive SIGKILL; look at them before you go on")


def keep_record(started: StartedServer, path: Path) -> None:
    """Writes who the running server is, for a later run."""
    write_json(path, asdict(started))


def end_left_over(path: Path, *, grace_s: float) -> int:
    """Ends what a killed run left behind, by its record; returns how many processes that were."""
    if not path.exists():
        return 0
    try:
        started = StartedServer(**read_json(path))
    except TypeError as error:
        raise ArtefactError(f"{path} names no server: {error}; delete it") from error
    count = len(started.processes())
    stop_processes(started, grace_s=grace_s)
    path.unlink()
    return count


def _signal_and_wait(
    started: StartedServer,
    processes: Iterable[psutil.Process],
    number: int,
    *,
    patience_s: float,
    reap: Callable[[], object],
) -> bool:
    """True if none of the server's processes is left before the patience is over."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue  # it has ended in the meantime
    end = time.monotonic() + patience_s
    while True:
        reap()
        if not started.processes():
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(SECONDS_BETWEEN_CHECKS)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started_ticks(pid: int) -> int | None:
    """Field 22 of proc_pid_stat(5); None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in the second field may hold anything, a bracket included.
    return int(stat.rpartition(")")[2].split()[19])


def _is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(TRACKER in word for word in process.cmdline())
    except psutil.Error:
        return False


def _has_token(process: psutil.Process, token: str) -> bool:
    try:
        return bool(process.environ().get(TOKEN_VARIABLE) == token)
    except psutil.Error:
        return False


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
