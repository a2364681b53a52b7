"""Scenarios of the training data that a bundle carries, so that an answer can show those that are most like a question.

The file is gzip of one JSON object: schema_version, features (the names of the 8), and rows of {features, config_id,
best, engine_default}: the best candidate over draws of the true workload, and what it and the engine's default did,
as medians over draws, [output tokens per second, p95 TTFT in ms, p95 TPOT in ms]. A time is null where none was seen.
"""

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES, NUM_STATE_FEATURES

NEIGHBOURS_SCHEMA_VERSION = 1
MOST_NEIGHBOURS = 10_000
STATE_NAMES = FEATURE_NAMES[:NUM_STATE_FEATURES]
# Compared as they are; the other six by factors.
_BY_DIFFERENCE = ("shared_prefix_ratio", "log2_concurrency")
_CONFIG_IDS = frozenset(candidate.config_id for candidate in CANDIDATES)


class Numbers(NamedTuple):
    """What a configuration did, medians over draws. None where no request was answered, or none had two tokens."""

    throughput_tps: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None


class Neighbour(NamedTuple):
    """A scenario by its 8 features, its best candidate, and what that and the engine's default did."""

    features: tuple[float, ...]
    config_id: str
    best: Numbers
    engine_default: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Of one bundle. ArtefactError for rows that are none."""

    rows: tuple[Neighbour, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.rows) <= MOST_NEIGHBOURS:
            raise ArtefactError(f"neighbours: {len(self.rows)} rows, expected 1 to {MOST_NEIGHBOURS}")
        for number, row in enumerate(self.rows):
            if len(row.features) != NUM_STATE_FEATURES or not all(map(math.isfinite, row.features)):
                raise ArtefactError(f"neighbours: row {number} has the features {row.features!r}, expected 8 numbers")
            if row.config_id not in _CONFIG_IDS:
                raise ArtefactError(f"neighbours: row {number} names {row.config_id!r}, which is no candidate")
            if any(value is not None and not 0 <= value < math.inf for value in (*row.best, *row.engine_default)):
                raise ArtefactError(f"neighbours: row {number} has numbers that are none from 0 on: {row.best}")

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same rows."""
        rows = [
            {
                "features": row.features,
                "config_id": row.config_id,
                "best": row.best,
                "engine_default": row.engine_default,
            }
            for row in self.rows
        ]
        content = {"schema_version": NEIGHBOURS_SCHEMA_VERSION, "features": STATE_NAMES, "rows": rows}
        return gzip.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Inverse of to_bytes; ArtefactError says what is wrong."""
        try:
            parsed = json.loads(gzip.decompress(content))
            if parsed["schema_version"] != NEIGHBOURS_SCHEMA_VERSION or tuple(parsed["features"]) != STATE_NAMES:
                raise ArtefactError(
                    f"neighbours: schema_version {parsed['schema_version']!r} of features {parsed['features']!r}, "
                    f"this program reads {NEIGHBOURS_SCHEMA_VERSION} of {list(STATE_NAMES)}"
                )
            return cls(
                rows=tuple(
                    Neighbour(
                        tuple(float(value) for value in row["features"]),
                        row["config_id"],
                        Numbers(*row["best"]),
                        Numbers(*row["engine_default"]),
                    )
                    for row in parsed["rows"]
                )
            )
        except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtefactError(f"neighbours: {type(error).__name__}: {error}") from error

    def nearest(
        self, state: Sequence[float], *, ranges: Mapping[str, tuple[float, float]], count: int
    ) -> list[tuple[Neighbour, float]]:
        """The nearest rows and their distances, nearest first. state: 8 features; ranges: [low, high] of each.

        Euclidean, each feature in units of its range; sizes and lengths as logarithms.
        """
        widths = np.array(
            [max(_position(name, high) - _position(name, low), 1e-9) for name, (low, high) in _in_order(ranges)]
        )
        rows = _positions([row.features for row in self.rows])
        distances = np.sqrt((((rows - _positions([tuple(state)])) / widths) ** 2).sum(axis=1))
        return [(self.rows[i], float(distances[i])) for i in np.argsort(distances, kind="stable")[:count]]


def _in_order(ranges: Mapping[str, tuple[float, float]]) -> list[tuple[str, tuple[float, float]]]:
    return [(name, ranges[name]) for name in STATE_NAMES]


def _position(name: str, value: float) -> float:
    return value if name in _BY_DIFFERENCE else math.log2(max(value, 1e-9))


def _positions(rows: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """[rows, 8]: where they lie, by factors or by differences."""
    values = np.array(rows, dtype=np.float64)
    by_factor = np.array([name not in _BY_DIFFERENCE for name in STATE_NAMES])
    values[:, by_factor] = np.log2(np.maximum(values[:, by_factor], 1e-9))
    return values
