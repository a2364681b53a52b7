"""The real server process for tests that need a socket."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


@contextmanager
def serving(bundle_dir: Path, *, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    """`python -m service serve` as a child that is gone afterwards."""
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    environment = {**os.environ, "MEMORYPOLICY_BUNDLE_DIR": str(bundle_dir)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_ready(port: int) -> None:
    """Returns once /readyz answers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"not ready after {PATIENCE_S} s")
