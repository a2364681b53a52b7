"""A real server process of this checkout, with a folder of its own and settings given as keywords."""

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.service.serving import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Server:
    """`python -m service serve` (or another module that serves), stopped at the end of a `with`."""

    def __init__(
        self,
        folder: Path,
        *,
        module: tuple[str, ...] = ("service", "serve"),
        context: ssl.SSLContext | None = None,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self._module, self._context = module, context
        self._environment = environment(folder, port=self.port, **settings)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What it wrote to stderr in all its lives."""
        return (self.folder / "server.log").read_text()

    def launch(self) -> None:
        """Returns at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._module], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    def start(self) -> None:
        """Returns once /readyz answers."""
        self.launch()
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{self.log}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)

    def get(self, path: str) -> str:
        """The body of a GET."""
        url = f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=self._context) as answer:
            text: str = answer.read().decode()
            return text

    def counter(self, name: str) -> float:
        """A value of /metrics, by its name with labels."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"/metrics has no {name}")

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ready(self) -> bool:
        try:
            return bool(self.get("/readyz"))
        except (urllib.error.URLError, OSError):
            return False


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """The environment of a process with that data folder and those settings."""
    named = {f"MEMORYPOLICY_{name.upper()}": str(value) for name, value in settings.items()}
    return {**os.environ, "MEMORYPOLICY_DATA_DIR": str(folder), **named}


def run_service(*arguments: str, folder: Path, **settings: object) -> str:
    """What `python -m service …` prints; it must succeed."""
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(folder, **settings), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
