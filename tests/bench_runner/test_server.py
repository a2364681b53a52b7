import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench_runner.server import HOST, EngineServer, free_port
from bench_runner.server_failure import ServerFailureError
from bench_runner.server_process import end_left_over
from service.domain.errors import ArtefactError
from tests.bench_runner.scripted import runs, server_command

StartServer = Callable[..., EngineServer]


def never_stop() -> None:
    """No signal comes."""


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[StartServer]:
    servers: list[EngineServer] = []

    def start(*, port: int | None = None, **script: Any) -> EngineServer:
        server = EngineServer(
            [*server_command(tmp_path, **script), "tiny"],
            port=port or free_port(),
            environment={"VLLM_SERVER_DEV_MODE": "1"},
            log=tmp_path / f"server-{len(servers)}.log",
            grace_s=3.0,
        )
        servers.append(server)
        server.start(tmp_path / "server.json")
        return server

    yield start
    for server in servers:
        server.stop()


def pid_of(server: EngineServer) -> int:
    return int((server.get_json("/script/state") or {})["pid"])


def test_a_ready_server_is_ours_and_gone_after_the_stop(new_server: StartServer) -> None:
    server = new_server()
    server.wait_ready(deadline_s=30, check=never_stop)
    pid = pid_of(server)
    assert runs(pid)
    server.stop()
    assert not runs(pid)
    assert free_port(range(server.port, server.port + 1)) == server.port


def test_a_server_that_exits_says_why_in_the_words_of_its_log(new_server: StartServer) -> None:
    server = new_server(exit_at_startup=3, startup_log="torch.OutOfMemoryError: CUDA out of memory")
    with pytest.raises(ServerFailureError, match="exit code 3") as failure:
        server.wait_ready(deadline_s=30, check=never_stop)
    assert failure.value.cause == "out_of_memory"
    assert failure.value.log_tail[-1] == "torch.OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("vllm: error: unrecognized arguments: --max-num-seq", "unknown_flag"),
        ("ValueError: No available memory for the cache blocks.", "kv_cache_too_small"),
        ("OSError: x is not a local folder and is not a valid model identifier", "model_missing"),
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        ("pydantic ValidationError: 1 validation error for SchedulerConfig", "invalid_configuration"),
        ("Segmentation fault", "server_exited_at_start"),
    ],
)
def test_the_cause_of_an_exit_is_typed(new_server: StartServer, line: str, cause: str) -> None:
    server = new_server(exit_at_startup=1, startup_log=line)
    with pytest.raises(ServerFailureError) as failure:
        server.wait_ready(deadline_s=30, check=never_stop)
    assert failure.value.cause == cause


def test_a_server_that_never_becomes_ready_ends_at_the_deadline(new_server: StartServer) -> None:
    server = new_server(never_ready=True)
    with pytest.raises(ServerFailureError, match="not ready after 1 s; raise --start-deadline-s") as failure:
        server.wait_ready(deadline_s=1, check=never_stop)
    assert failure.value.cause == "server_not_ready"


def test_a_program_that_cannot_be_run_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    server = EngineServer(["no-such-program"], port=free_port(), environment={}, log=tmp_path / "log", grace_s=1.0)
    with server, pytest.raises(ServerFailureError, match="no-such-program cannot be run: No such file or directory"):
        server.start(tmp_path / "server.json")


def test_another_server_on_the_port_is_not_measured(new_server: StartServer, tmp_path: Path) -> None:
    first = new_server()
    first.wait_ready(deadline_s=30, check=never_stop)
    # Starts late, so that the stranger answers /health first.
    second = new_server(port=first.port, startup_s=30)
    with pytest.raises(ServerFailureError, match="another server has the port") as failure:
        second.wait_ready(deadline_s=30, check=never_stop)
    assert failure.value.cause == "foreign_server"
    second.stop()
    assert runs(pid_of(first))


def test_a_child_that_left_the_session_and_ignores_sigterm_is_ended_and_a_stranger_is_not(
    new_server: StartServer,
) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        server = new_server(leave_child=True)
        server.wait_ready(deadline_s=30, check=never_stop)
        child = int((server.get_json("/script/state") or {})["child_pid"])
        assert runs(child)
        server.stop()
        assert not runs(child)
        assert runs(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(new_server: StartServer) -> None:
    server = new_server(ignore_sigterm=True)
    server.wait_ready(deadline_s=30, check=never_stop)
    pid = pid_of(server)
    server.stop()
    assert not runs(pid)


def test_what_a_killed_run_left_behind_is_ended_by_its_record(new_server: StartServer, tmp_path: Path) -> None:
    server = new_server(leave_child=True)
    server.wait_ready(deadline_s=30, check=never_stop)
    state = server.get_json("/script/state") or {}
    assert end_left_over(tmp_path / "server.json", grace_s=3.0) == 2
    assert not runs(int(state["pid"]))
    assert not runs(int(state["child_pid"]))
    assert not (tmp_path / "server.json").exists()


def test_a_record_of_processes_that_are_gone_ends_nobody(new_server: StartServer, tmp_path: Path) -> None:
    server = new_server()
    server.wait_ready(deadline_s=30, check=never_stop)
    record = (tmp_path / "server.json").read_text()
    server.stop()
    (tmp_path / "server.json").write_text(record)
    assert end_left_over(tmp_path / "server.json", grace_s=1.0) == 0


def test_a_server_ends_with_the_run_that_is_killed(tmp_path: Path) -> None:
    command = [*server_command(tmp_path), "tiny"]
    starter = (
        "import sys, time; from pathlib import Path; from bench_runner.server import EngineServer\n"
        f"server = EngineServer({command!r}, port={free_port()}, environment={{}}, "
        f"log=Path({str(tmp_path / 'log')!r}), grace_s=1.0)\n"
        f"server.start(Path({str(tmp_path / 'server.json')!r})); server.wait_ready(deadline_s=30, check=lambda: None)\n"
        "print(server.get_json('/script/state')['pid'], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(pid)


def test_ports_that_are_all_taken_are_named() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        with pytest.raises(ArtefactError, match=f"ports {port} to {port} are all taken; end what listens there"):
            free_port(range(port, port + 1))
