"""The configured logs of this process, and what they wrote."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from service import logs


class Logged:
    """The configured logs of this process, and what they wrote."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def configure(self, *, log_format: Literal["json", "text"] = "json", level: str = "info") -> None:
        logs.configure(log_format=log_format, level=level, stream=self.stream)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Each line must be an object of its own."""
        return [json.loads(line) for line in self.text.splitlines()]


@contextmanager
def logging_to_string() -> Iterator[Logged]:
    """Logs that go to a string; what they replaced is back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("service", "uvicorn")}
    hooks = warnings.showwarning, sys.excepthook, threading.excepthook, logging.raiseExceptions, logs._access
    logged = Logged()
    logged.configure()
    yield logged
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)
    warnings.showwarning, sys.excepthook, threading.excepthook, logging.raiseExceptions, logs._access = hooks
