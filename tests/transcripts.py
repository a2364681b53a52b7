"""The transcripts of README.md: runs each command as it stands there, and compares or rewrites its output.

A transcript is a fenced block of kind `console`. Its command starts with `$ ` and ends where the shell would run it:
not inside quotes, not after a backslash.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# New in every answer.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[45][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# Processors differ in the last bits of a float32 sum.
SCORE = re.compile(r"-?\d+\.\d{7,}")
ADDRESS = "localhost:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A command and the output that the README shows for it."""

    command: str
    output: str


def transcripts(text: str) -> list[Transcript]:
    """The transcripts of a Markdown text, in order; one command a block."""
    found = []
    for block in BLOCK.findall(text):
        lines = block.splitlines()
        end = next(index for index in range(len(lines)) if _complete("\n".join(lines[: index + 1])))
        command = "\n".join(lines[: end + 1]).removeprefix("$ ")
        found.append(Transcript(command=command, output="\n".join(lines[end + 1 :])))
    return found


def _complete(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def run(transcript: Transcript, *, port: int) -> str:
    """The command's real output; a service on `port` stands in for the one that `make serve` starts."""
    done = subprocess.run(
        ["bash", "-c", transcript.command.replace(ADDRESS, f"127.0.0.1:{port}")],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = (done.stdout + done.stderr).rstrip("\n").splitlines()
    return "\n".join(line.rstrip() for line in lines)


def normal(output: str) -> str:
    """An output without what may differ between two runs of the same command, on one machine or on two."""
    return SCORE.sub(lambda number: f"{float(number.group()):.4f}", UUID.sub("<id>", output))


@contextmanager
def service() -> Iterator[int]:
    """The service of this checkout in its own environment, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "service", "serve", "--port", str(port)]
    # What it remembers begins empty, and a busy machine must not change what the hook says.
    data = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "MEMORYPOLICY_DATA_DIR": data.name, "MEMORYPOLICY_HOOK_DEADLINE_MS": "60000"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} did not start; try it by hand")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)
        data.cleanup()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def rewrite() -> None:
    """Replaces the outputs in README.md by what the commands print now."""
    text = README.read_text()
    with service() as port:
        for transcript in transcripts(text):
            old = f"$ {transcript.command}\n{transcript.output}"
            text = text.replace(f"{old.rstrip()}\n```", f"$ {transcript.command}\n{run(transcript, port=port)}\n```")
    README.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.transcripts --write")
    rewrite()
