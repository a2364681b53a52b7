"""Reads files of lists: one announced workload, one draw of the true one, the outcome of all 16 configurations.

Columns are as `python -m bench_runner lists` writes them. Configurations are the 15 candidates and, last, what the
engine starts with when nothing is set.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES, Candidate
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES, NUM_STATE_FEATURES, encode_candidate
from service.domain.gpu import B200, Gpu, gpu_by_name
from service.domain.memory import kv_blocks
from service.domain.scenario import ModelArch

LISTS_SCHEMA_VERSION = "1"
DEFAULT_ROW = len(CANDIDATES)
MET, NOTHING_COMPLETED, NOT_STARTED = 0, 2, 3
# The draw in which exactly what was announced came.
NOMINAL_DRAW = 99
WIDTH = DEFAULT_ROW + 1

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def configurations(gpu: Gpu = B200) -> tuple[Candidate, ...]:
    """The 15 candidates and what the engine starts with on that GPU when nothing is set."""
    return (*CANDIDATES, gpu.engine_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What each configuration showed, [..., 16]: tokens per second, p95 latencies in ms (failed: +inf), verdicts."""

    throughput_tps: Floats
    ttft_p95_ms: Floats
    tpot_p95_ms: Floats
    met: Bools
    failed: Bools

    def __getitem__(self, index: Any) -> "Outcomes":
        return Outcomes(
            throughput_tps=self.throughput_tps[index],
            ttft_p95_ms=self.ttft_p95_ms[index],
            tpot_p95_ms=self.tpot_p95_ms[index],
            met=self.met[index],
            failed=self.failed[index],
        )

    def reshape(self, *shape: int) -> "Outcomes":
        """The same values in another shape; the last axis stays the configurations."""
        full = (*shape, WIDTH)
        return Outcomes(
            throughput_tps=self.throughput_tps.reshape(full),
            ttft_p95_ms=self.ttft_p95_ms.reshape(full),
            tpot_p95_ms=self.tpot_p95_ms.reshape(full),
            met=self.met.reshape(full),
            failed=self.failed.reshape(full),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """[lists] arrays. state: [lists, 8] model and workload features; starts: [lists, 16] by the memory rule.

    gpu: that all lists are of. definition: sha256 of the definition of all sets that they were simulated under.
    """

    gpu: Gpu
    definition: str
    scenario: NDArray[np.int64]
    draw: NDArray[np.int64]
    stratum: NDArray[np.str_]
    model: NDArray[np.str_]
    state: NDArray[np.float32]
    starts: Bools
    outcomes: Outcomes
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.scenario)

    def __getitem__(self, index: Any) -> "Lists":
        return Lists(
            gpu=self.gpu,
            definition=self.definition,
            scenario=self.scenario[index],
            draw=self.draw[index],
            stratum=self.stratum[index],
            model=self.model[index],
            state=self.state[index],
            starts=self.starts[index],
            outcomes=self.outcomes[index],
            columns={name: values[index] for name, values in self.columns.items()},
        )

    def features(self) -> NDArray[np.float32]:
        """[lists, 16, 12]: what the ranker sees of each configuration, the engine's default last."""
        return with_configurations(self.state, self.gpu)

    @property
    def engine_default(self) -> Candidate:
        """What the engine starts with on their GPU when nothing is set."""
        return self.gpu.engine_default


def with_configurations(state: NDArray[np.float32], gpu: Gpu = B200) -> NDArray[np.float32]:
    """[n, 16, 12] features of [n, 8] model and workload features."""
    rows = np.empty((len(state), WIDTH, NUM_FEATURES), dtype=np.float32)
    rows[:, :, :NUM_STATE_FEATURES] = state[:, None, :]
    rows[:, :, NUM_STATE_FEATURES:] = [encode_candidate(one) for one in configurations(gpu)]
    return rows


def read_lists(path: Path) -> Lists:
    """ArtefactError if the file is missing, of another schema, not simulated, or of other configurations.

    A file that names no GPU is of the B200.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtefactError(
            f"{path} cannot be read as lists ({error}); simulate: `python -m bench_runner lists`"
        ) from error
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    gpu = gpu_by_name(metadata.get("gpu", B200.name))
    expected = {
        "schema_version": LISTS_SCHEMA_VERSION,
        "evidence": "simulated",
        "config_ids": ",".join(one.config_id for one in configurations(gpu)),
    }
    for key, value in expected.items():
        if metadata.get(key) != value:
            raise ArtefactError(f"{path}: {key} is {metadata.get(key)!r}, expected {value!r}; simulate the set again")
    columns = {name: np.asarray(table[name].to_numpy(zero_copy_only=False)) for name in table.column_names[:-4]}
    return Lists(
        gpu=gpu,
        definition=metadata.get("definition_sha256", ""),
        scenario=columns["scenario"].astype(np.int64),
        draw=columns["draw"].astype(np.int64),
        stratum=columns["stratum"].astype(np.str_),
        model=columns["model"].astype(np.str_),
        state=_state(columns),
        starts=_starts(columns, gpu),
        outcomes=_outcomes(table),
        columns=columns,
    )


def concatenated(parts: list[Lists]) -> Lists:
    """One after the other; ArtefactError if they are of different GPUs."""
    if len({part.gpu.name for part in parts}) != 1:
        raise ArtefactError(f"lists of {', '.join(sorted({part.gpu.name for part in parts}))} do not belong together")
    names = Outcomes.__slots__
    return Lists(
        gpu=parts[0].gpu,
        definition=parts[0].definition,
        scenario=np.concatenate([part.scenario for part in parts]),
        draw=np.concatenate([part.draw for part in parts]),
        stratum=np.concatenate([part.stratum for part in parts]),
        model=np.concatenate([part.model for part in parts]),
        state=np.concatenate([part.state for part in parts]),
        starts=np.concatenate([part.starts for part in parts]),
        outcomes=Outcomes(**{n: np.concatenate([getattr(part.outcomes, n) for part in parts]) for n in names}),
        columns={n: np.concatenate([part.columns[n] for part in parts]) for n in parts[0].columns},
    )


def digests(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """sha256 of the rows of each set, column by column: what was simulated, whichever file it lies in."""
    return {name: rows_sha256(read_lists(folder / f"{name}.parquet")) for name in names}


def rows_sha256(lists: Lists) -> str:
    """Of every column of every list, in their order."""
    digest = hashlib.sha256()
    for name, values in sorted(lists.columns.items()):
        digest.update(name.encode())
        texts = values.dtype.kind not in "iuf"
        digest.update("\n".join(map(str, values)).encode() if texts else np.ascontiguousarray(values).tobytes())
    outcomes = lists.outcomes
    for array in (outcomes.throughput_tps, outcomes.ttft_p95_ms, outcomes.tpot_p95_ms, outcomes.met, outcomes.failed):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _state(columns: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    names = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token", "prompt_tokens", "max_new_tokens")
    rows = [columns[name].astype(np.float64) for name in names]
    rows += [columns["shared_prefix_ratio"].astype(np.float64), np.log2(columns["concurrency"].astype(np.float64))]
    return np.stack(rows, axis=1).astype(np.float32)


def _starts(columns: dict[str, NDArray[Any]], gpu: Gpu) -> Bools:
    """[lists, 16] whether each would start on that GPU by the memory rule, as the service asks it before it answers."""
    models = {
        str(name): (float(weight), int(layers), int(hidden), int(kv), int(context))
        for name, weight, layers, hidden, kv, context in zip(
            *(columns[n] for n in ("model", "weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")),
            columns["max_model_len"],
            strict=True,
        )
    }
    rows = {name: _starts_of(*numbers, gpu) for name, numbers in models.items()}
    return np.array([rows[str(name)] for name in columns["model"]], dtype=np.bool_)


def _starts_of(weight_gb: float, layers: int, hidden: int, kv_bytes: int, context: int, gpu: Gpu) -> list[bool]:
    model = ModelArch(weight_gb=weight_gb, num_layers=layers, hidden_size=hidden, kv_bytes_per_token=kv_bytes)
    return [kv_blocks(model, one, memory_gib=gpu.memory_gib) * 16 >= context for one in configurations(gpu)]


def _outcomes(table: pa.Table) -> Outcomes:
    def column(name: str) -> NDArray[Any]:
        return np.asarray(table[name].combine_chunks().flatten()).reshape(-1, WIDTH)

    status = column("status")
    failed = (status == NOTHING_COMPLETED) | (status == NOT_STARTED)
    ttft, tpot = (column(name).astype(np.float64) for name in ("ttft_p95_ms", "tpot_p95_ms"))
    return Outcomes(
        throughput_tps=column("throughput_tps").astype(np.float64),
        ttft_p95_ms=np.where(failed, np.inf, ttft),
        tpot_p95_ms=np.where(failed, np.inf, tpot),
        met=status == MET,
        failed=failed,
    )
