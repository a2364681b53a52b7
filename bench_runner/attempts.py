"""Failed attempts at cells and servers, kept over restarts so that retries are bounded."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from bench_runner.results import JsonLines, read_json_lines
from bench_runner.server_failure import FINAL_CAUSES, ServerFailureError
from service.domain.errors import ArtefactError


class Attempts:
    """Counts failures by name, in a file that only grows. A run that was killed in the middle of one adds none."""

    def __init__(self, path: Path, *, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._last: dict[str, ServerFailureError] = {}
        try:
            for line in read_json_lines(path):
                self._count(line["name"], ServerFailureError(line["cause"], line["detail"], tuple(line["log_tail"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{path} is damaged: {error}; delete the file, failed cells are tried again") from error
        self._lines = JsonLines(path)

    def add(self, name: str, failure: ServerFailureError) -> None:
        """Writes a failure down before anything follows from it."""
        self._count(name, failure)
        self._lines.append(
            {
                "name": name,
                "attempt": self._counts[name],
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "cause": failure.cause,
                "detail": failure.detail,
                "log_tail": list(failure.log_tail),
            }
        )

    def count(self, name: str) -> int:
        """Failures so far."""
        return self._counts[name]

    def last_if_exhausted(self, name: str) -> ServerFailureError | None:
        """The last failure if it is not to be tried again, else None."""
        last = self._last.get(name)
        over = last is not None and (last.cause in FINAL_CAUSES or self._counts[name] >= self._most)
        return last if over else None

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()

    def _count(self, name: str, failure: ServerFailureError) -> None:
        self._counts[name] += 1
        self._last[name] = failure
