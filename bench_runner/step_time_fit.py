"""Step tables from measured steps: a fit of a few named terms, evaluated on the tables' grid."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench_runner.files import read_json, write_atomically
from bench_runner.simulator import SimulationSettings
from bench_runner.step_time import STEP_TABLES_SCHEMA_VERSION
from service.domain.errors import ArtefactError

SOURCE = "steps of a running vllm serve, measured by `bench_runner probe`"
FEWEST_REPETITIONS = 3
# Milliseconds per …: of what a step's time consists. The tables hold the first two as dense_ms, `sampled` as head_ms,
# the three of a chunk as context_ms, and the last as generation_ms.
STEP_TERMS = ("step", "token", "sampled", "chunk", "chunk_past", "chunk_pair", "decode_pair")
# The last is the API server's work for whatever one step puts out. It overlaps the next step, and the simulator, whose
# front end knows events only, has no place for it.
FRONT_END_TERMS = ("request", "prompt_token", "output_token", "step")
REWEIGHTINGS = 30
SMALLEST_ERROR = 0.005
GRID = {
    "tokens": [0, 8192],
    "sequences": [0, 1024],
    # The number of attended pairs grows with the square of the chunk, and tables are interpolated linearly.
    "context_new": [1, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192],
    "context_past": [0, 32768],
    "generation_sequences": [0, 1024],
    "generation_context": [0, 32768],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A kind of step and how long it took: the median over repetitions, and the shortest and longest, in ms.

    One prefill chunk of new_tokens behind past_tokens (no chunk: both 0), beside `sequences` decodes whose context
    has context_tokens on average.
    """

    new_tokens: int
    past_tokens: int
    sequences: int
    context_tokens: int
    step_ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float], *, new_tokens: int = 0, past_tokens: int = 0, **decodes: int) -> Self:
        """The point of its repetitions; ArtefactError if too few of them could be read."""
        if len(times_ms) < FEWEST_REPETITIONS:
            raise ArtefactError(
                f"steps of {new_tokens} new tokens beside {decodes}: {len(times_ms)} readings, "
                f"{FEWEST_REPETITIONS} are needed; is the machine busy with something else?"
            )
        return cls(
            new_tokens=new_tokens,
            past_tokens=past_tokens,
            sequences=decodes["sequences"],
            context_tokens=decodes["context_tokens"],
            step_ms=statistics.median(times_ms),
            low_ms=min(times_ms),
            high_ms=max(times_ms),
        )

    def terms(self) -> list[float]:
        """How often each of STEP_TERMS occurs in the step."""
        chunk = 1 if self.new_tokens else 0
        return [
            1,
            self.new_tokens + self.sequences,
            self.sequences + chunk,
            chunk,
            self.past_tokens,
            attended_pairs(self.new_tokens, self.past_tokens),
            self.sequences * self.context_tokens,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndPoint:
    """What the API server did between two readings of its CPU time, and that time in milliseconds."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    steps: int
    cpu_ms: float

    def terms(self) -> list[float]:
        """How often each of FRONT_END_TERMS occurs."""
        return [self.requests, self.prompt_tokens, self.output_tokens, self.steps]


def attended_pairs(new: float, past: float) -> float:
    """Query-key pairs of a chunk under causal attention, to half a token."""
    return new * (past + new / 2)


def fit_terms(terms: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least absolute relative errors without negative costs. terms: [points, terms], values: [points] > 0.

    By least squares, reweighted (Holland & Welsch, 1977): one disturbed point must not move all others. A term that
    comes out negative is taken out and the rest is fitted again.
    """
    rows, kept = terms / values[:, None], list(range(terms.shape[1]))
    while True:
        solution = _least_absolute(rows[:, kept])
        if (solution >= 0).all():
            costs = np.zeros(terms.shape[1])
            costs[kept] = solution
            return costs
        del kept[int(np.argmin(solution * np.abs(rows[:, kept]).sum(axis=0)))]


def _least_absolute(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """x that makes every row · x nearest to 1. rows: [points, terms]."""
    weights = np.ones(len(rows))
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weights)
        solution, *_ = np.linalg.lstsq(rows * root[:, None], root, rcond=None)
        weights = 1 / np.maximum(np.abs(rows @ solution - 1), SMALLEST_ERROR)
    return np.asarray(solution)


def write_tables(path: Path, *, model: str, steps: Sequence[StepPoint], cpu: Sequence[FrontEndPoint]) -> str:
    """Writes tables that load_step_tables reads, with what they come from; returns a line on how well the fit holds.

    The tables hold all that an engine does between two steps, so the host's time in the simulator is zero.
    """
    matrix, times = np.array([point.terms() for point in steps], float), np.array([point.step_ms for point in steps])
    costs = fit_terms(matrix, times)
    step = dict(zip(STEP_TERMS, costs.tolist(), strict=True))
    front_terms, front_ms = np.array([point.terms() for point in cpu], float), np.array([p.cpu_ms for p in cpu])
    front = dict(zip(FRONT_END_TERMS, fit_terms(front_terms, front_ms).tolist(), strict=True))
    errors = np.abs(matrix @ costs / times - 1)
    content = {
        "schema_version": STEP_TABLES_SCHEMA_VERSION,
        "system": "cpu",
        "source": SOURCE,
        "units": "milliseconds for the whole model, host time of a step included",
        "grid": GRID,
        "models": {model: _tables(step)},
        "settings": _settings(front),
        "fit": {"step_ms": step, "front_end_ms": front, "relative_errors": errors.round(4).tolist()},
        "steps": [asdict(point) for point in steps],
        "front_end": [asdict(point) for point in cpu],
    }
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return f"{len(steps)} kinds of steps, fit within {np.median(errors):.1%} (median), {errors.max():.1%} (worst)"


def _tables(cost: Mapping[str, float]) -> dict[str, Any]:
    def context_ms(new: float, past: float) -> float:
        return cost["chunk"] + cost["chunk_past"] * past + cost["chunk_pair"] * attended_pairs(new, past)

    return {
        "dense_ms": [cost["step"] + cost["token"] * tokens for tokens in GRID["tokens"]],
        "head_ms": [cost["sampled"] * sequences for sequences in GRID["sequences"]],
        "context_ms": [[context_ms(new, past) for past in GRID["context_past"]] for new in GRID["context_new"]],
        "generation_ms": [
            [cost["decode_pair"] * sequences * context for context in GRID["generation_context"]]
            for sequences in GRID["generation_sequences"]
        ],
    }


def _settings(front: Mapping[str, float]) -> dict[str, Any]:
    return {
        "asynchronous": False,
        "host_step_ms": 0.0,
        "host_sequence_ms": 0.0,
        "request_ms": front["request"],
        "prompt_token_ms": front["prompt_token"],
        "output_token_ms": front["output_token"],
    }


def measured_settings(path: Path, *, ramp_ms: float) -> SimulationSettings:
    """The settings beside the tables of write_tables; ArtefactError if the file has none."""
    try:
        return SimulationSettings(**read_json(path)["settings"], ramp_ms=ramp_ms)
    except (KeyError, TypeError) as error:
        raise ArtefactError(f"{path.name} has no settings of a measured server ({error}); probe one again") from error
