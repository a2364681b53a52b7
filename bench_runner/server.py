"""One engine server as a process of its own: started, known to be ours, and gone afterwards with all its children."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

import httpx

from bench_runner.server_failure import ServerFailureError, cause_of_exit, log_tail
from bench_runner.server_process import (
    SECONDS_BETWEEN_CHECKS,
    TOKEN_VARIABLE,
    StartedServer,
    keep_record,
    stop_processes,
)
from service.domain.errors import ArtefactError

HOST = "127.0.0.1"
# Short, because a stop that comes meanwhile waits for it.
CONTROL_TIMEOUT_S = 3.0
# /server_info looks through the whole machine on its first call.
INFO_TIMEOUT_S = 6.0
RESET_TRIES = 5


class EngineServer:
    """Runs `command` with host, port and a served name behind it; a context that leaves no process behind."""

    def __init__(
        self, command: Sequence[str], *, port: int, environment: dict[str, str], log: Path, grace_s: float
    ) -> None:
        self.port = port
        self.log = log
        self.grace_s = grace_s
        self._token = secrets.token_hex(8)
        # A name that nobody else serves: whoever answers with it is the process that was started here.
        self.served_model = f"memorypolicy-{self._token}"
        self.command = [*command, f"--host={HOST}", f"--port={port}", f"--served-model-name={self.served_model}"]
        self._environment = {**environment, TOKEN_VARIABLE: self._token}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
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
        """Starts the process and its guard, and writes who it is to `record`, so that a later run can end it."""
        self._guard = _start_guard(grace_s=self.grace_s)
        self._tell(StartedServer.about_to_start(self._token), record)
        with self._open_log() as log:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerFailureError(
                    "server_exited_at_start", f"{self.command[0]} cannot be run: {error.strerror}"
                ) from error
        self._tell(StartedServer.about_to_start(self._token).led_by(self._process.pid), record)

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
                cause, line = cause_of_exit(self.log)
                raise ServerFailureError(cause, f"exit code {self.exit_code}, {line}", log_tail(self.log))
            if self.healthy():
                check()
                return self._check_identity()
            time.sleep(SECONDS_BETWEEN_CHECKS)
        raise ServerFailureError(
            "server_not_ready", f"not ready after {deadline_s:g} s; raise --start-deadline-s", log_tail(self.log)
        )

    def get_json(self, path: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> dict[str, Any] | None:
        """A JSON answer, None where there is none: not every version has every endpoint."""
        try:
            answer = httpx.get(self.base_url + path, timeout=timeout_s)
            content = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def engine_config(self) -> dict[str, Any] | None:
        """The configuration that the engine resolved; not what /server_info says about the machine."""
        info = self.get_json("/server_info?config_format=json", timeout_s=INFO_TIMEOUT_S)
        config = (info or {}).get("vllm_config")
        return config if isinstance(config, dict) else None

    def reset_prefix_cache(self) -> bool:
        """False if the server offers no reset, or refuses it because blocks are in use for longer than a moment."""
        for _ in range(RESET_TRIES):
            try:
                answer = httpx.post(f"{self.base_url}/reset_prefix_cache", timeout=CONTROL_TIMEOUT_S)
            except httpx.HTTPError:
                return False
            if answer.status_code != 200:
                return False
            with contextlib.suppress(ValueError, AttributeError):
                if answer.json().get("success", True) is False:
                    time.sleep(SECONDS_BETWEEN_CHECKS)
                    continue
            return True
        return False

    def healthy(self) -> bool:
        """True if /health says so."""
        try:
            return httpx.get(f"{self.base_url}/health", timeout=CONTROL_TIMEOUT_S).status_code == 200
        except httpx.HTTPError:
            return False

    def answers(self) -> bool:
        """True if a request of one token is answered within a moment."""
        request = {"model": self.served_model, "prompt": [1], "max_tokens": 1, "temperature": 0}
        try:
            answer = httpx.post(f"{self.base_url}/v1/completions", json=request, timeout=CONTROL_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    def stop(self) -> None:
        """SIGTERM to its processes, SIGKILL to what is left after the grace; returns when none is left."""
        if self._started is not None:
            stop_processes(self._started, grace_s=self.grace_s, reap=lambda: self.exit_code)
            self._started = None
        if self._process is not None:
            self._process.wait(timeout=self.grace_s)
        if self._guard is not None:
            try:
                self._guard.communicate(b"\n", timeout=self.grace_s)
            except subprocess.TimeoutExpired:
                # Too busy a machine for it to have started: there is nothing left to guard.
                self._guard.kill()
                self._guard.communicate()
            self._guard = None

    def _open_log(self) -> BinaryIO:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            return self.log.open("ab")
        except OSError as error:
            raise ArtefactError(f"{self.log} cannot be written ({error.strerror}); free space, run again") from error

    def _tell(self, started: StartedServer, record: Path) -> None:
        self._started = started
        if self._guard is not None and self._guard.stdin is not None:
            # Without its guard the record remains.
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(json.dumps(asdict(started)).encode() + b"\n")
                self._guard.stdin.flush()
        keep_record(started, record)

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
            # A port whose last connections the kernel still remembers is free; one that is listened on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    where = f"ports {ports.start} to {ports.stop - 1} are all taken" if ports else "the system has no free port"
    raise ArtefactError(f"{where}; end what listens there or give another --ports")


def _start_guard(*, grace_s: float) -> subprocess.Popen[bytes]:
    """Its input ends with this process, however that ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench_runner.guard", str(grace_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )
