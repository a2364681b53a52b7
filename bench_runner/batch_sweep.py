"""Measured decode times by batch size of 2024's engines beside simulated ones: a check that nothing was fitted on.

Rows of the ML.ENERGY leaderboard v2: max_num_seqs, requests at once on average, tokens a second, seconds a token.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench_runner.request_stream import closed_stream, nothing_shared
from bench_runner.simulator import SimulationSettings, Window, simulate
from bench_runner.step_time import load_step_tables
from service.domain.candidate import Candidate
from service.domain.catalogue import model_by_name
from service.domain.errors import ArtefactError, InvalidInputError
from service.domain.gpu import gpu_by_name
from service.domain.memory import kv_blocks

COLUMNS = ("Model", "GPU", "TP", "Avg TPOT (s)", "Token tput (tok/s)", "Avg Output Tokens", "Max BS (reqs)", "task")
GPU_NAME, GPU, SYSTEM = "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", "h100_sxm"
# Names there → names of the step tables: checkpoints of the same shape.
MODELS = {
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
    "microsoft/Phi-3-mini-4k-instruct": "microsoft/Phi-3.5-mini-instruct",
}
# The prompts are not in the table. Chat prompts of ShareGPT have a few hundred tokens; a decode step of hundreds of
# sequences hardly depends on it.
PROMPT_TOKENS = 256
WARM_UP_MS, WINDOW_MS = 10_000.0, 20_000.0
UTILIZATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One measured row. tpot_ms: the mean over requests; output_tokens: of an answer, on average."""

    model: str
    max_num_seqs: int
    tpot_ms: float
    output_tps: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """A row beside its simulation with the settings assumed for the product and with the fitted time per step."""

    row: BatchRow
    assumed_tpot_ms: float
    fitted_tpot_ms: float


def read_batch_rows(path: Path) -> list[BatchRow]:
    """The rows on one H100 of models that there are step tables for, one configuration each; errors name the line."""
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        lines = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); give a batch sweep as CSV") from error
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ArtefactError(f"{path}:1: no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
    found = [
        BatchRow(
            model=MODELS[row["Model"]],
            max_num_seqs=int(_above_zero(path, line, row, "Max BS (reqs)")),
            tpot_ms=1000 * _above_zero(path, line, row, "Avg TPOT (s)"),
            output_tps=_above_zero(path, line, row, "Token tput (tok/s)"),
            output_tokens=_above_zero(path, line, row, "Avg Output Tokens"),
        )
        for line, row in lines
        if row["Model"] in MODELS and row["GPU"] == GPU_NAME and row["TP"] == "1" and row["task"] == "chat"
    ]
    return sorted(found, key=lambda row: (row.model, row.max_num_seqs))


def _above_zero(path: Path, line: int, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
        if 0 < value < math.inf:
            return value
    except (TypeError, ValueError):
        pass
    remedy = "a number above 0 is needed; correct or remove the line"
    raise InvalidInputError(path=f"{path}:{line}: {name}", value=row[name], remedy=remedy)


def compare_batch(row: BatchRow, *, step_ms: float) -> BatchComparison:
    """Simulates as many clients as there are places. step_ms: the time that was fitted elsewhere, added to each "
    "step."""
    return BatchComparison(
        row=row,
        assumed_tpot_ms=_tpot_ms(row, SimulationSettings(), 0.0),
        fitted_tpot_ms=_tpot_ms(row, SimulationSettings(host_step_ms=0.0, host_sequence_ms=0.0), step_ms),
    )


def _tpot_ms(row: BatchRow, settings: SimulationSettings, step_ms: float) -> float:
    table = load_step_tables(system=SYSTEM).of(row.model)
    candidate = Candidate(
        max_num_seqs=row.max_num_seqs,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=UTILIZATION,
        enable_prefix_caching=False,
    )
    clients = row.max_num_seqs
    zeros = np.zeros(clients)
    stream = closed_stream(
        prompt=np.full(clients, PROMPT_TOKENS, dtype=np.int64),
        output=np.full(clients, round(row.output_tokens), dtype=np.int64),
        shared=nothing_shared(clients),
        think_ms=zeros,
        queue_start=np.arange(clients + 1, dtype=np.int64),
        repeats=True,
    )
    observed = simulate(
        stream,
        candidate,
        kv_blocks=kv_blocks(model_by_name(row.model), candidate, memory_gib=gpu_by_name(GPU).memory_gib),
        table=table._replace(dense_ms=table.dense_ms + step_ms),
        settings=settings,
        window=Window(warm_up_ms=WARM_UP_MS, length_ms=WINDOW_MS),
        seed=0,
    )
    return float(observed.tpot_ms.mean())


def milliseconds_per_sequence(sequences: Sequence[int], tpot_ms: Sequence[float]) -> float:
    """The slope of TPOT over the number of places, by least squares: ms that a further sequence costs."""
    slope, _ = np.polyfit(sequences, tpot_ms, 1)
    return float(slope)
