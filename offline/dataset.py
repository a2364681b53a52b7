"""Stage 1: cells → arrays, split exactly as the reference splits them, behind both leak guards.

The test split is closed by construction: load_development returns no outcome of it, and load_test wants the Permit
that only a verified registration gives. Retired scenarios pass the completeness check and the guards, and no array
that is returned holds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offline.artefacts import sha256_bytes, sha256_json
from offline.cells import CellTable, read_cells
from offline.registration import Permit
from service.domain.candidate import CANDIDATES
from service.domain.catalogue import model_by_name
from service.domain.cell import CellKey, CellResult, Provenance
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES, encode_candidate, encode_state
from service.domain.gpu import B200
from service.domain.leakage import check_feature_names, check_state_invariance
from service.domain.reference import (
    REFERENCE_CONCURRENCIES,
    REFERENCE_MODELS,
    REFERENCE_WORKLOADS,
    NamedWorkload,
    Split,
    split_of,
)
from service.domain.scenario import Scenario

# An outcome's column beyond the candidates': the engine started without any of the four flags.
ENGINE_DEFAULT_CHOICE = len(CANDIDATES)
# The reference experiment ran on this GPU, so its engine default is the sixteenth configuration.
ENGINE_DEFAULT_CONFIG_ID = B200.engine_default.config_id


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFiles:
    """The two inputs: 96 × 15 candidates, and 96 × the engine's own default."""

    reference: Path
    engine_default: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a policy may see before launch. features: [scenarios, 15, 12] float32, unnormalised."""

    scenario_ids: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What happened under each configuration: arrays [scenarios, 16], column 15 = ENGINE_DEFAULT_CHOICE.

    A failed cell has throughput 0 and latencies +inf, so that no comparison of tails can gain from a failure.
    """

    throughput_tps: NDArray[np.float64]
    ttft_p95_ms: NDArray[np.float64]
    tpot_p95_ms: NDArray[np.float64]
    slo_met: NDArray[np.bool_]
    failed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """Questions with their outcomes, scenario by scenario."""

    questions: Questions
    outcomes: Outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a data set comes from: digests of both files, their plans, the split and all 96 × 15 × 12 features."""

    provenance: Provenance
    cells_sha256: dict[str, str]
    plan_sha256: dict[str, str]
    split_sha256: str
    features_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Development:
    """All that training and selection may see: of the test split the questions only."""

    train: LabelledSet
    dev: LabelledSet
    test_questions: Questions
    sources: Sources


def scenario_keys() -> tuple[tuple[str, NamedWorkload, int], ...]:
    """The 96 scenarios in the order of all arrays: model, workload, concurrency."""
    return tuple(
        (model, workload, concurrency)
        for model in REFERENCE_MODELS
        for workload in REFERENCE_WORKLOADS
        for concurrency in REFERENCE_CONCURRENCIES
    )


def split_definition() -> dict[str, list[str]]:
    """Scenario ids of every split, retired ones included."""
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": [], "retired": []}
    for model, workload, concurrency in scenario_keys():
        key = _key(model, workload, concurrency, "")
        splits[split_of(model=model, workload=workload.name)].append(key.scenario_id)
    return splits


def load_development(files: CellFiles, *, feature_names: Sequence[str] = FEATURE_NAMES) -> Development:
    """Train and dev with outcomes, test without. LeakageError or ArtefactError if the cells cannot be trusted."""
    reference, default, features = _verified(files, feature_names)
    return Development(
        train=_labelled("train", reference, default, features),
        dev=_labelled("dev", reference, default, features),
        test_questions=_questions("test", features),
        sources=_sources(reference, default, features),
    )


def load_test(files: CellFiles, *, permit: Permit) -> LabelledSet:
    """The test split with its outcomes, for the holder of a permit that was issued for exactly these files."""
    reference, default, features = _verified(files, FEATURE_NAMES)
    if _sources(reference, default, features).cells_sha256 != permit.cells_sha256:
        raise ArtefactError(f"permit of registration {permit.registration!r} was issued for other cells; verify again")
    return _labelled("test", reference, default, features)


def _verified(files: CellFiles, feature_names: Sequence[str]) -> tuple[CellTable, CellTable, NDArray[np.float32]]:
    check_feature_names(feature_names)
    reference = read_cells(files.reference, config_ids=[candidate.config_id for candidate in CANDIDATES])
    default = read_cells(files.engine_default, config_ids=[ENGINE_DEFAULT_CONFIG_ID])
    if default.provenance != reference.provenance:
        raise ArtefactError(
            f"{default.path} has {default.provenance}, {reference.path} has {reference.provenance}; "
            "fill both plans from one source"
        )
    features = _encode_rows(reference)
    ids = tuple(_key(model, workload, concurrency, "").scenario_id for model, workload, concurrency in scenario_keys())
    check_state_invariance(features, ids)
    for table in (reference, default):
        _check_workloads(table)
    return reference, default, features


def _encode_rows(table: CellTable) -> NDArray[np.float32]:
    """[96, 15, 12] float32, each row from what its own cell says of itself: a leak shows as a difference."""
    rows = [
        (*encode_state(Scenario(model=model_by_name(model), workload=cell.workload)), *encode_candidate(candidate))
        for model, workload, concurrency in scenario_keys()
        for candidate in CANDIDATES
        for cell in [table.cells[_key(model, workload, concurrency, candidate.config_id).cell_id]]
    ]
    return np.array(rows, dtype=np.float32).reshape(-1, len(CANDIDATES), len(FEATURE_NAMES))


def _check_workloads(table: CellTable) -> None:
    """Rows must carry the reference's numbers under the reference's names."""
    shapes = {workload.name: workload for workload in REFERENCE_WORKLOADS}
    for cell_id, cell in table.cells.items():
        planned = shapes[cell.key.workload].at(cell.key.concurrency)
        if cell.workload != planned:
            raise ArtefactError(f"{table.path}: {cell_id} ran {cell.workload}, the reference has {planned}; plan again")


def _key(model: str, workload: NamedWorkload, concurrency: int, config_id: str) -> CellKey:
    return CellKey(model=model, workload=workload.name, concurrency=concurrency, config_id=config_id)


def _rows_of(split: Split) -> list[int]:
    keys = scenario_keys()
    return [i for i, (model, workload, _) in enumerate(keys) if split_of(model=model, workload=workload.name) == split]


def _questions(split: Split, features: NDArray[np.float32]) -> Questions:
    rows = _rows_of(split)
    keys = [scenario_keys()[row] for row in rows]
    return Questions(
        scenario_ids=tuple(_key(model, workload, clients, "").scenario_id for model, workload, clients in keys),
        scenarios=tuple(
            Scenario(model=model_by_name(model), workload=workload.at(clients)) for model, workload, clients in keys
        ),
        features=features[rows],
    )


def _labelled(split: Split, reference: CellTable, default: CellTable, features: NDArray[np.float32]) -> LabelledSet:
    candidates = ((reference, candidate.config_id) for candidate in CANDIDATES)
    configurations = [*candidates, (default, ENGINE_DEFAULT_CONFIG_ID)]
    keys = [scenario_keys()[row] for row in _rows_of(split)]
    grid = [
        [table.cells[_key(model, workload, clients, config_id).cell_id] for table, config_id in configurations]
        for model, workload, clients in keys
    ]
    return LabelledSet(questions=_questions(split, features), outcomes=_outcomes(grid))


def _outcomes(grid: list[list[CellResult]]) -> Outcomes:
    def latency(value: float | None, cell: CellResult) -> float:
        if cell.status == "failed":
            return float("inf")
        return float("nan") if value is None else value

    return Outcomes(
        throughput_tps=np.array([[cell.output_throughput_tps for cell in row] for row in grid], dtype=np.float64),
        ttft_p95_ms=np.array([[latency(cell.ttft_p95_ms, cell) for cell in row] for row in grid], dtype=np.float64),
        tpot_p95_ms=np.array([[latency(cell.tpot_p95_ms, cell) for cell in row] for row in grid], dtype=np.float64),
        slo_met=np.array([[cell.slo_met for cell in row] for row in grid], dtype=np.bool_),
        failed=np.array([[cell.status == "failed" for cell in row] for row in grid], dtype=np.bool_),
    )


def _sources(reference: CellTable, default: CellTable, features: NDArray[np.float32]) -> Sources:
    return Sources(
        provenance=reference.provenance,
        cells_sha256={"reference": reference.sha256, "engine_default": default.sha256},
        plan_sha256={"reference": reference.plan_sha256, "engine_default": default.plan_sha256},
        split_sha256=sha256_json(split_definition()),
        features_sha256=sha256_bytes(features.tobytes()),
    )
