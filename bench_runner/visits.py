"""Visits of a verification on disk: one server of one side each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bench_runner.results import JsonLines, read_json_lines
from bench_runner.verdict import Visit, valid_pairs
from service.domain.errors import ArtefactError

Arm = Literal["recommended", "engine_default"]
ARMS: tuple[Arm, ...] = ("recommended", "engine_default")


class Visits:
    """The visits of a verification, in a file that only grows: what was interrupted goes on.

    A visit is a row with its `arm`, its `run`, what is known of its `server`, and how long it took (`took_s`, seconds).
    settings: what must be equal for visits to belong together.
    """

    def __init__(self, path: Path, *, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._lines = JsonLines(path)
        kept = list(read_json_lines(path))
        if kept and kept[0] != settings:
            self._lines.close()
            raise ArtefactError(f"{path} holds visits of another verification; delete it or give another --output")
        if not kept:
            self._lines.append(settings)
        self.all: list[dict[str, Any]] = kept[1:]

    def add(self, visit: dict[str, Any]) -> None:
        """Writes one down."""
        self._lines.append(visit)
        self.all.append(visit)

    def of(self, arm: Arm) -> list[dict[str, Any]]:
        """Those of one side."""
        return [visit for visit in self.all if visit["arm"] == arm]

    def pairs(self) -> list[tuple[Visit, Visit]]:
        """Valid pairs of both sides."""
        ours, theirs = ([as_visit(visit) for visit in self.of(arm)] for arm in ARMS)
        return valid_pairs(ours, theirs)

    @property
    def took_s(self) -> float:
        """Seconds of all visits."""
        return float(sum(visit["took_s"] for visit in self.all))

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def as_visit(visit: dict[str, Any]) -> Visit:
    """What the verdict needs of it."""
    return Visit(
        output_throughput_tps=visit["output_throughput_tps"],
        ttft_p95_ms=visit["ttft_p95_ms"],
        tpot_p95_ms=visit["tpot_p95_ms"],
        slo_met=visit["slo_met"],
        invalid=visit["run"].get("invalid_cause") is not None,
    )
