"""What the process writes to stderr: one JSON object a line, or text for a person.

No line holds what a request held: of an exception stay its type and where it was raised, of a warning its category and
place, of a third party's message the first line.
"""

import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, TextIO

from pydantic_core import to_json

# structlog takes rich along for tracebacks, which no line here shows: 4 MiB in every worker.
_rich: ModuleType | None = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402
from structlog.typing import EventDict, Processor, WrappedLogger  # noqa: E402

if _rich is None:
    del sys.modules["rich"]

LogFormat = Literal["json", "text"]

logger = logging.getLogger(__name__)

MOST_FRAMES = 8
# What a line of ours may carry beside its text.
_FIELDS = ("request_id", "trace_id")
_access: "AccessLog | None" = None


class AccessLog:
    """A line for each request. Built in one step: the pipeline of all other lines costs several times as much."""

    def __init__(self, lines: "_Lines", log_format: LogFormat, *, level: int) -> None:
        self._lines, self._level = lines, level
        self._as_text = structlog.dev.ConsoleRenderer(colors=lines.isatty(), sort_keys=False)
        self._is_json = log_format == "json"

    def write(self, level: int, fields: Mapping[str, Any]) -> None:
        """level: one of logging's. fields: text and numbers."""
        if level < self._level:
            return
        line = {
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "level": logging.getLevelName(level).lower(),
            "logger": "service.access",
            "event": "request",
            **fields,
        }
        self._lines.write(f"{to_json(line).decode() if self._is_json else self._as_text(None, '', line)}\n")


def configure(*, log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Every logger of this process writes so from now on; for uvicorn with log_config=None. stream: stderr."""
    global _access
    lines = _Lines(stream or sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    _access = AccessLog(lines, log_format, level=number)
    handler = logging.StreamHandler(lines)
    handler.setFormatter(_formatter(_renderer(log_format, lines)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What others log below a warning may be statements, addresses, headers.
    root.setLevel(max(number, logging.WARNING))
    for name in ("service", "uvicorn"):
        logging.getLogger(name).setLevel(number)
    # A line that cannot be written would be reported with all its arguments.
    logging.raiseExceptions = False
    warnings.showwarning = _show_warning
    sys.excepthook = _process_failed
    threading.excepthook = _thread_failed


def access_log() -> AccessLog | None:
    """Where requests are logged; None in a process that configured no logs, such as a test's."""
    return _access


def log_without_values(error: BaseException, what: str, *, request_id: str | None = None) -> None:
    """One line on a failure: of which kind it is and where; an exception's text may hold what the request held."""
    prefix, fields = ("", {}) if request_id is None else (f"request {request_id}: ", {"request_id": request_id})
    kind, frames = _facts(error)
    logger.error("%s%s failed with %s in %s", prefix, what, kind, " < ".join(frames), extra=fields)


def _facts(error: BaseException) -> tuple[str, list[str]]:
    """The types along the chain of causes, and the innermost frames, innermost first."""
    kinds: list[str] = []
    link: BaseException | None = error
    # A chain may be a ring.
    while link is not None and len(kinds) < MOST_FRAMES:
        kinds.append(type(link).__name__)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return " from ".join(kinds), list(_frames(error.__traceback__))


def _frames(trace: TracebackType | None) -> Iterator[str]:
    for frame in reversed(traceback.extract_tb(trace)[-MOST_FRAMES:]):
        yield f"{Path(frame.filename).stem}.{frame.name}:{frame.lineno}"


class _Lines:
    """The one way out: whole lines, one after the other. A log that cannot be written fails no request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                return 0
        return len(text)

    def flush(self) -> None:
        """Each line has been flushed."""

    def isatty(self) -> bool:
        return self._stream.isatty()


def _formatter(renderer: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(allow=_FIELDS),
            _timestamp(),
        ],
        processors=[_without_values, structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _timestamp() -> Processor:
    return structlog.processors.TimeStamper(fmt="iso", utc=True)


def _renderer(log_format: LogFormat, lines: _Lines) -> Processor:
    if log_format == "text":
        return structlog.dev.ConsoleRenderer(colors=lines.isatty(), sort_keys=False)
    # ASCII, so that no text can be unwritable; the encoder is built once and not for each line.
    encode = json.JSONEncoder(default=str).encode

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        return encode(event)

    return render


def _without_values(_: WrappedLogger, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    text, info = str(event["event"]), event.pop("exc_info", None)
    event.pop("stack_info", None)
    # asyncio and uvicorn put reprs and tracebacks behind the first line.
    ours = event["_record"].name.startswith("service")
    event["event"] = " ".join(text.splitlines()) if ours else text.partition("\n")[0]
    if isinstance(info, tuple) and isinstance(info[1], BaseException):
        event["error"], event["frames"] = _facts(info[1])
    return event


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logging.getLogger("py.warnings").warning("%s in %s:%d", category.__name__, Path(filename).stem, lineno)


def _process_failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log_without_values(error, "the process")


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        log_without_values(failed.exc_value, f"the thread {failed.thread.name if failed.thread else 'that ended'}")
