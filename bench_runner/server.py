"""One engine server as a process of its own: started, known to be ours, and gone afterwards with all its children."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from bench_runner.files import read_json, write_atomically
from bench_runner.server_failure import ServerFailureError, cause_of_exit, last_error_line, log_tail
from service.domain.errors import ArtefactError

HOST = "127.0.0.1"
# Inherited by every descendant, also by one that leaves the process group.
TOKEN_VARIABLE = "MEMORYPOLICY_SERVER_TOKEN"
SECONDS_BETWEEN_CHECKS = 0.1
# Short, because a stop that comes meanwhile waits for it.
CONTROL_TIMEOUT_S = 3.0
LAUNCH = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer:
    """Names a server's processes beyond doubt: session, start of its leader, and the token that they inherit."""

    session: int
    created_s: float
    booted_s: float
    token: str

    def processes(self) -> list[psutil.Process]:
        """Those of its processes that still run: the leader's session, and whoever carries the token."""
        if abs(psutil.boot_time() - self.booted_s) > 1:
            return []
        # A session's number is not given again while the session has a member, also if its leader has ended.
        leader_is_ours = _created_s(self.session) in (self.created_s, None)
        found = []
        for process in psutil.process_iter():
            if process.pid == os.getpid() or _is_gone(process):
                continue
            if _has_token(process, self.token) or (leader_is_ours and _session_of(process.pid) == self.session):
                found.append(process)
        return found


class EngineServer:
    """Starts `command` with --port and --served-model-name behind it; a context that leaves no process behind."""

    def __init__(
        self, command: Sequence[str], *, port: int, environment: dict[str, str], log: Path, grace_s: float
    ) -> None:
        self.port = port
        self.log = log
        self.grace_s = grace_s
        self.token = secrets.token_hex(8)
        # A name that nobody else serves: whoever answers with it is the process that was started here.
        self.served_model = f"memorypolicy-{self.token}"
        self.command = [*command, f"--host={HOST}", f"--port={port}", f"--served-model-name={self.served_model}"]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started: StartedServer | None = None

    @property
    def base_url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, record: Path) -> None:
        """Starts the process and writes who it is to `record`, so that a later run can end what a kill left behind."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(LAUNCH), str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment, TOKEN_VARIABLE: self.token},
                start_new_session=True,
            )
        pid = self._process.pid
        self._started = StartedServer(
            session=pid,
            created_s=psutil.Process(pid).create_time(),
            booted_s=psutil.boot_time(),
            token=self.token,
        )
        write_record(self._started, record)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def wait_ready(self, *, deadline_s: float, check: Callable[[], None]) -> None:
        """Returns when /health answers and the model is ours. ServerFailureError otherwise; check may raise to stop."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            check()
            if self.exit_code is not None:
                raise self.failure_at_start()
            if self._healthy():
                return self._check_identity()
            time.sleep(SECONDS_BETWEEN_CHECKS)
        raise ServerFailureError(
            "server_not_ready", f"not ready after {deadline_s:g} s; raise --start-deadline-s", log_tail(self.log)
        )

    def failure_at_start(self) -> ServerFailureError:
        """What its exit and its log say."""
        tail = log_tail(self.log)
        return ServerFailureError(cause_of_exit(self.log), f"exit code {self.exit_code}, {last_error_line(tail)}", tail)

    def get_json(self, path: str) -> dict[str, Any] | None:
        """A JSON answer, None where there is none: not every version has every endpoint."""
        try:
            answer = httpx.get(self.base_url + path, timeout=CONTROL_TIMEOUT_S)
            content = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def reset_prefix_cache(self) -> bool:
        """False if the server offers no reset or refused it."""
        try:
            return httpx.post(f"{self.base_url}/reset_prefix_cache", timeout=CONTROL_TIMEOUT_S).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """SIGTERM to its processes, SIGKILL to what is left after the grace; returns when none is left."""
        if self._started is None or self._process is None:
            return
        stop_processes(self._started, grace_s=self.grace_s, reap=self._process.poll)
        self._process.wait(timeout=self.grace_s)
        self._started = None

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/health", timeout=CONTROL_TIMEOUT_S).status_code == 200
        except httpx.HTTPError:
            return False

    def _check_identity(self) -> None:
        models = self.get_json("/v1/models") or {}
        names = [str(model.get("id")) for model in models.get("data", []) if isinstance(model, dict)]
        if self.served_model not in names:
            raise ServerFailureError(
                "foreign_server",
                f"port {self.port} answers with models {names}, not {self.served_model}; another server has the port",
                log_tail(self.log),
            )


def free_port(ports: range | None = None) -> int:
    """A port that nobody listens on; ArtefactError if there is none in the range (None: any that the system gives)."""
    for port in ports or (0,):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    where = f"ports {ports.start} to {ports.stop - 1} are all taken" if ports else "the system has no free port"
    raise ArtefactError(f"{where}; end what listens there or give another --ports")


def stop_processes(started: StartedServer, *, grace_s: float, reap: Callable[[], object] = lambda: None) -> None:
    """Ends a server's processes and waits until none is left; `reap` collects a child of this process."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        end = time.monotonic() + patience_s
        for process in started.processes():
            _send(process, number)
        while time.monotonic() < end:
            reap()
            if not started.processes():
                return
            time.sleep(SECONDS_BETWEEN_CHECKS)
    left = [process.pid for process in started.processes()]
    if left:
        raise ArtefactError(f"processes {left} of the server survive SIGKILL; look at them before you go on")


def write_record(started: StartedServer, path: Path) -> None:
    """Writes who the running server is."""
    write_atomically(path, (json.dumps(asdict(started)) + "\n").encode())


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


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return  # it has ended in the meantime


def _created_s(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


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
