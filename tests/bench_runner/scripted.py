"""Commands of scripted servers, and a look at what runs."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def script_file(folder: Path, **script: Any) -> Path:
    """Writes a script; every folder holds one."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return path


def server_command(folder: Path, **script: Any) -> list[str]:
    """What stands for `vllm serve`."""
    path = script_file(folder, **script)
    return [sys.executable, "-m", "bench_runner.scripted_server", "--script", str(path), "serve"]


def runs(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def servers_running(folder: Path) -> list[int]:
    """Processes whose command names this folder's script: servers of this test and of no other."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and str(folder / "script.json") in command:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
