"""Commands of scripted servers, and a look at what runs."""

import json
import sys
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
