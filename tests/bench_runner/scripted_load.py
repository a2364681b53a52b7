"""A scripted server as a process of its own, and short runs of load against it."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from bench_runner.load import LoadProgress, LoadResult, LoadSpec, run_load

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0
SEEDS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it listens, and its process."""

    base_url: str
    process: subprocess.Popen[str]

    def log(self) -> list[dict[str, Any]]:
        """What it did, a request each."""
        answer = httpx.get(f"{self.base_url}/script/log", timeout=10)
        return [json.loads(line) for line in answer.text.splitlines()]

    def log_by_id(self) -> dict[str, dict[str, Any]]:
        """The same by X-Request-Id."""
        return {record["request_id"]: record for record in self.log()}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def serving(folder: Path, *flags: str, wait: bool = True, **script: Any) -> Iterator[Server]:
    """A scripted server for model `tiny`, gone afterwards."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    port = free_port()
    command = [sys.executable, "-m", "bench_runner.scripted_server", "--script", str(path), "serve", "tiny"]
    with subprocess.Popen(
        [*command, "--port", str(port), *flags],
        cwd=ROOT,
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        server = Server(base_url=f"http://127.0.0.1:{port}", process=process)
        try:
            if wait:
                wait_ready(server)
            yield server
        finally:
            process.kill()


def wait_ready(server: Server) -> None:
    """Returns once /health answers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{server.base_url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(f"not ready after {PATIENCE_S} s")


def spec(base_url: str, **changes: Any) -> LoadSpec:
    """A short run of four clients; every call has a prompt_seed of its own."""
    settings: dict[str, Any] = {
        "base_url": base_url,
        "served_model": "tiny",
        "prompt_tokens": 40,
        "shared_prefix_tokens": 16,
        "max_new_tokens": 16,
        "clients": 4,
        "ramp_s": 0.05,
        "warm_up_s": 0.1,
        "window_s": 0.4,
        "prefix_seed": 1,
        "ramp_seed": 2,
        "prompt_seed": next(SEEDS),
        "token_ids": (1000, 31_000),
        "request_timeout_s": 5.0,
        "processes": 1,
    }
    return LoadSpec(**{**settings, **changes})


def never() -> bool:
    """Nobody stops the run."""
    return False


def ignore(_progress: LoadProgress) -> None:
    """Nobody looks."""


def load(
    where: Server | str,
    *,
    should_stop: Callable[[], bool] = never,
    on_progress: Callable[[LoadProgress], None] = ignore,
    **changes: Any,
) -> LoadResult:
    """Runs spec(**changes)."""
    base_url = where if isinstance(where, str) else where.base_url
    return run_load(spec(base_url, **changes), should_stop=should_stop, on_progress=on_progress)
