"""A worker process of the load generator, seen from the process that started it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.request_log import ROW

CHECKOUT = Path(__file__).resolve().parent.parent
END_S = 2.0


class WorkerProcess:
    """A worker process and what it has said: one JSON line a message, the last one followed by its rows."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # A session of its own: a Ctrl-C in the terminal is for the parent, which then ends its workers in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench_runner.load_worker"],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )
        self.ready = False
        self.progress: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None
        self.rows: NDArray[Any] = np.empty(0, ROW)
        self.lost: str | None = None
        self._buffer = b""
        self.tell(task)

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.end is not None or self.lost is not None

    def fileno(self) -> int:
        """Where its messages come from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError:
            self._ended()

    def stop(self) -> None:
        """Asks it to end now: it does when its standard input ends, also if this process is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read(self) -> None:
        """Takes in what it has written."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(1 << 20)
        if not data:
            return self._ended()
        self._buffer += data
        while not self.over and b"\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\n")
            message = json.loads(line)
            if "rows" in message:
                size = message["rows"] * ROW.itemsize
                if len(rest) < size:
                    return None
                self.rows, self.end = np.frombuffer(rest[:size], ROW), message
            self.ready = True
            self.progress = message.get("progress", self.progress)
            self._buffer = rest
        return None

    def close(self) -> None:
        """Ends the process, if it has not ended."""
        self.stop()
        try:
            self._process.wait(timeout=END_S if self.end is not None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def lose(self, text: str) -> None:
        """Ends it for good; what it has measured is lost."""
        self._process.kill()
        self._process.wait()
        self.lost = text

    def _ended(self) -> None:
        """It has closed its end without its last word."""
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.lose(f"a load worker ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}")
