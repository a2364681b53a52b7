"""What a stopped drill has finished: it goes on from there, unless what it was computed with has changed."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench_runner.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
# Whoever is told to retrain changes the simulator and repeats the drill: nothing of before may answer then.
COMPUTED_WITH = (
    *("bench_runner/*.py", "bench_runner/step_tables/*.json", "service/domain/*.py"),
    "tests/requalify/scenarios.py",
)


def sources_sha256(root: Path = ROOT, patterns: Iterable[str] = COMPUTED_WITH) -> str:
    """Of the names and contents of everything that decides a result, apart from the engine itself."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


class Finished:
    """Results by what was asked, each in a line of a file; those of other sources are left out."""

    def __init__(self, path: Path, *, sources: str) -> None:
        self._path, self._sources = path, sources
        self._results: dict[str, Any] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            if row.get("sources") == sources:
                self._results[row["key"]] = row["result"]

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def keep(self, key: str, result: object) -> None:
        """On disk when it returns. result: what JSON can hold."""
        self._results[key] = result
        rows = [{"sources": self._sources, "key": name, "result": kept} for name, kept in self._results.items()]
        write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode())
