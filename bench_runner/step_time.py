"""How long a step keeps the GPU busy, from tables of measured kernel times.

One step = all operators but attention at its number of tokens + the output head at its number of sampling sequences
+ context attention of each prefill chunk at its own context + generation attention at (decodes, their mean context).
Between grid points the tables are interpolated linearly.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench_runner.kernel import kernel
from bench_runner.scheduler import Requests, Step
from service.domain.errors import ArtefactError

STEP_TABLES_SCHEMA_VERSION = 1
# The registered evaluation's cells name this file's sha256, so it holds the reference models alone and never changes;
# the wider catalogue has a file of its own for each GPU system.
STEP_TABLES_PATH = Path(__file__).parent / "step_tables" / "b200_sxm.json"
DENSE_TABLES_PATHS = {
    system: STEP_TABLES_PATH.with_name(f"dense_{system}.json") for system in ("b200_sxm", "h200_sxm", "h100_sxm")
}


class StepTable(NamedTuple):
    """Times in milliseconds for one model on one GPU.

    dense_ms[t] for t tokens, head_ms[s] for s sequences; context_ms[new tokens, tokens in the cache] and
    generation_ms[sequences, mean context] on their grids. mixed_ms[new tokens of all prompts, sequences, mean context]
    takes the place of generation_ms in a step that also computes prompts, where it is not empty: one kernel for both
    serves decodes less well than one of their own.
    """

    dense_ms: NDArray[np.float64]
    head_ms: NDArray[np.float64]
    context_new: NDArray[np.float64]
    context_past: NDArray[np.float64]
    context_ms: NDArray[np.float64]
    generation_sequences: NDArray[np.float64]
    generation_context: NDArray[np.float64]
    generation_ms: NDArray[np.float64]
    mixed_new: NDArray[np.float64] = np.zeros(0)
    mixed_sequences: NDArray[np.float64] = np.zeros(0)
    mixed_ms: NDArray[np.float64] = np.zeros((0, 0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """The committed tables: by model name, with where they come from and the sha256 of the file."""

    system: str
    source: str
    sha256: str
    by_model: dict[str, StepTable]

    def of(self, model: str) -> StepTable:
        """The table of a model; ArtefactError lists the models that there are tables for."""
        if model not in self.by_model:
            known = ", ".join(self.by_model)
            raise ArtefactError(f"no step times for {model!r}; there are tables for {known}; generate one for it")
        return self.by_model[model]


def load_step_tables(path: Path | None = None, *, system: str | None = None) -> StepTables:
    """Reads a file of step_table_generator: the reference tables, or with `system` the wide ones of that GPU system.

    ArtefactError if the file is missing, damaged, of another schema_version or not of that system.
    """
    path = path or _path_of(system)
    try:
        raw = path.read_bytes()
        content = json.loads(raw)
        if content["schema_version"] != STEP_TABLES_SCHEMA_VERSION:
            raise ArtefactError(f"{path.name}: schema_version {content['schema_version']!r}; generate it again")
        if system is not None and content["system"] != system:
            raise ArtefactError(f"{path.name}: tables of {content['system']!r}, not of {system!r}; choose one of them")
        grid = {name: np.array(values, dtype=np.float64) for name, values in content["grid"].items()}
        return StepTables(
            system=content["system"],
            source=content["source"],
            sha256=hashlib.sha256(raw).hexdigest(),
            by_model={model: _table(grid, times) for model, times in content["models"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path.name} cannot be read as step tables: {error}; generate it again") from error


def _path_of(system: str | None) -> Path:
    if system is None:
        return STEP_TABLES_PATH
    if system not in DENSE_TABLES_PATHS:
        raise ArtefactError(f"no step times for the system {system!r}; there are {', '.join(DENSE_TABLES_PATHS)}")
    return DENSE_TABLES_PATHS[system]


def _table(grid: dict[str, NDArray[np.float64]], times: dict[str, Any]) -> StepTable:
    tokens, sequences = grid["tokens"], grid["sequences"]
    return StepTable(
        dense_ms=np.interp(np.arange(int(tokens[-1]) + 1), tokens, np.array(times["dense_ms"])),
        head_ms=np.interp(np.arange(int(sequences[-1]) + 1), sequences, np.array(times["head_ms"])),
        context_new=grid["context_new"],
        context_past=grid["context_past"],
        context_ms=np.array(times["context_ms"]),
        generation_sequences=grid["generation_sequences"],
        generation_context=grid["generation_context"],
        generation_ms=np.array(times["generation_ms"]),
    )


@kernel
def _segment(grid: NDArray[np.float64], x: float) -> tuple[int, float]:
    """The grid segment of x and the position in it; outside the grid the nearest segment is continued."""
    index = min(max(int(np.searchsorted(grid, x, side="right")) - 1, 0), len(grid) - 2)
    return index, (x - grid[index]) / (grid[index + 1] - grid[index])


@kernel
def _bilinear(
    rows: NDArray[np.float64], columns: NDArray[np.float64], values: NDArray[np.float64], x: float, y: float
) -> float:
    i, t = _segment(rows, x)
    j, u = _segment(columns, y)
    low = (1 - u) * values[i, j] + u * values[i, j + 1]
    high = (1 - u) * values[i + 1, j] + u * values[i + 1, j + 1]
    return max((1 - t) * low + t * high, 0.0)


@kernel
def _at(values: NDArray[np.float64], count: int) -> float:
    """values[count]; beyond the end the last slope is continued."""
    last = len(values) - 1
    if count <= last:
        return values[count]
    return values[last] + (values[last] - values[last - 1]) * (count - last)


@kernel
def _generation_ms(table: StepTable, new: int, sequences: int, context: float) -> float:
    """Attention of so many decodes at this mean context, beside `new` tokens of prompts."""
    rows, columns = table.generation_sequences, table.generation_context
    if new == 0 or len(table.mixed_new) == 0:
        return _bilinear(rows, columns, table.generation_ms, sequences, context)
    index, share = _segment(table.mixed_new, new)
    rows = table.mixed_sequences
    low = _bilinear(rows, columns, table.mixed_ms[index], sequences, context)
    high = _bilinear(rows, columns, table.mixed_ms[index + 1], sequences, context)
    return max((1 - share) * low + share * high, 0.0)


@kernel
def interpolated_step_ms(table: StepTable, sequences: float, context: float) -> float:
    """GPU time in milliseconds of a step in which so many sequences decode one token each at this mean context."""
    generation = _bilinear(
        table.generation_sequences, table.generation_context, table.generation_ms, sequences, context
    )
    return generation + _at(table.dense_ms, int(sequences)) + _at(table.head_ms, int(sequences))


@kernel
def gpu_ms(table: StepTable, requests: Requests, step: Step) -> float:
    """GPU time of a step in milliseconds. A row is a prefill chunk while its context is shorter than its prompt."""
    tokens, decodes, decode_context, samples = 0, 0, 0, 0
    total = 0.0
    for row in range(step.size[0]):
        new, past = step.tokens[row], step.context[row]
        tokens += new
        samples += step.samples[row]
        if new == 1 and past >= requests.prompt[step.slot[row]]:
            decodes += 1
            decode_context += past + new
        else:
            total += _bilinear(table.context_new, table.context_past, table.context_ms, new, past)
    if decodes > 0:
        total += _generation_ms(table, tokens - decodes, decodes, decode_context / decodes)
    return total + _at(table.dense_ms, tokens) + _at(table.head_ms, samples)
