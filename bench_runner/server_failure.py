"""Why a server or a cell failed: typed causes, read from an exit, a log or the requests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

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
CAUSES: tuple[str, ...] = get_args(Cause)

# A new server would do the same: tried once.
FINAL_CAUSES = frozenset({"kv_cache_too_small", "invalid_configuration", "no_request_completed"})
# No server of this sweep could start: the person who typed the command must change it.
ABORTING_CAUSES = frozenset({"unknown_flag", "model_missing"})

# What vLLM prints last when it does not start. The first match counts, so the specific stand before the general.
_LOG_MARKS: tuple[tuple[str, Cause], ...] = (
    ("unrecognized arguments", "unknown_flag"),
    ("invalid choice:", "unknown_flag"),
    ("expected one argument", "unknown_flag"),
    ("is not a valid model identifier", "model_missing"),
    ("is not a local folder", "model_missing"),
    ("RepositoryNotFoundError", "model_missing"),
    ("GatedRepoError", "model_missing"),
    ("LocalEntryNotFoundError", "model_missing"),
    ("does not appear to have a file named config.json", "model_missing"),
    ("Invalid repository ID or local directory", "model_missing"),
    ("KV cache is needed, which is larger than the available", "kv_cache_too_small"),
    ("No available memory for the cache blocks", "kv_cache_too_small"),
    ("maximum number of tokens that can be stored in KV cache", "kv_cache_too_small"),
    ("Free memory on device", "out_of_memory"),
    ("OutOfMemoryError", "out_of_memory"),
    ("out of memory", "out_of_memory"),
    ("address already in use", "port_taken"),
    ("Address already in use", "port_taken"),
    ("validation error for", "invalid_configuration"),
    ("must be greater than or equal to", "invalid_configuration"),
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
            file.seek(max(0, path.stat().st_size - 32_768))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line[:500] for line in text.splitlines() if line.strip())[-lines:]


def cause_of_exit(path: Path) -> Cause:
    """What the log of a server that ended before it was ready says."""
    text = "\n".join(log_tail(path, lines=200))
    return next((cause for mark, cause in _LOG_MARKS if mark in text), "server_exited_at_start")


def last_error_line(tail: tuple[str, ...]) -> str:
    """The line of a log that a person would quote: the last that names an error, else the last."""
    named = [line for line in tail if "Error" in line or "error:" in line]
    return (named or list(tail) or ["its log is empty"])[-1].strip()
