"""Why a server or a cell failed: typed causes, read from an exit, a log or the requests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Cause = Literal[
    "kv_cache_too_small",
    "out_of_memory",
    "invalid_configuration",
    "unknown_flag",
    "model_missing",
    "port_taken",
    "foreign_server",
    "server_exited_at_start",
    "server_not_ready",
    "server_died",
    "server_hung",
    "requests_refused",
    "http_error",
    "garbage_answer",
    "answer_cut",
    "no_tokens",
    "wrong_length",
    "no_request_completed",
]

# A new server would do the same: tried once.
FINAL_CAUSES = frozenset({"kv_cache_too_small", "invalid_configuration", "no_request_completed"})
# No server of this sweep could start: the person who typed the command must change it.
ABORTING_CAUSES = frozenset({"unknown_flag", "model_missing"})

# What the log of a vLLM 0.28 that does not start says. The first match counts: the specific before the general.
_LOG_MARKS: tuple[tuple[str, Cause], ...] = (
    ("unrecognized arguments", "unknown_flag"),
    ("invalid choice:", "unknown_flag"),
    ("expected one argument", "unknown_flag"),
    ("is not a valid model identifier", "model_missing"),
    ("RepositoryNotFoundError", "model_missing"),
    ("GatedRepoError", "model_missing"),
    ("LocalEntryNotFoundError", "model_missing"),
    ("HFValidationError", "model_missing"),
    ("ensure the presence of a 'config.json'", "model_missing"),
    ("does not appear to have a file named config.json", "model_missing"),
    ("KV cache is needed, which is larger than the available", "kv_cache_too_small"),
    ("No available memory for the cache blocks", "kv_cache_too_small"),
    ("Free memory on device", "out_of_memory"),
    ("out of memory", "out_of_memory"),
    ("OutOfMemoryError", "out_of_memory"),
    ("ddress already in use", "port_taken"),
    ("must be greater than or equal to", "invalid_configuration"),
    ("validation error for", "invalid_configuration"),
)


@dataclass(frozen=True, slots=True)
class ServerFailureError(Exception):
    """A server that cannot be measured on: the cause, one line about it, and the end of its log."""

    cause: Cause
    detail: str
    log_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


def log_tail(path: Path, *, lines: int = 20) -> tuple[str, ...]:
    """The last lines of a log that may be growing; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line[:500] for line in text.splitlines() if line.strip())[-lines:]


def cause_of_exit(path: Path) -> tuple[Cause, str]:
    """What the log of a server that ended before it was ready says: the cause, and the line that says it.

    vLLM prints the reason of its engine process long before the last line.
    """
    lines = log_tail(path, lines=200)
    for mark, cause in _LOG_MARKS:
        for line in lines:
            if mark in line:
                return cause, line.strip()
    return "server_exited_at_start", lines[-1].strip() if lines else "its log is empty"
