"""The cells of a plan as ranking lists: features, what happened, and which lists belong together."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from offline.artefacts import read_json, sha256_bytes, sha256_file
from offline.sweep_cells import SweepCells, read_sweep
from offline.utility import best_feasible_tps, utilities
from service.domain.candidate import Candidate
from service.domain.cell import CellResult, Provenance
from service.domain.errors import ArtefactError, InvalidInputError
from service.domain.features import encode_candidate, encode_state
from service.domain.leakage import check_state_invariance
from service.domain.scenario import ModelArch, Scenario
from service.domain.slo import Slo

_PLAN_AGAIN = "give the plan file that the cells were filled by"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLists:
    """Lists of one plan and one provenance, [lists] in the order of the file; arrays [lists, configurations].

    features: [lists, configurations, 12] float32, unnormalised. group: lists of one model and one workload, which
    differ in concurrency alone, are held out together. memory_gib: of the device, as the plan has it.
    """

    scenario_ids: tuple[str, ...]
    group: tuple[str, ...]
    config_ids: tuple[str, ...]
    features: NDArray[np.float32]
    throughput_tps: NDArray[np.float64]
    slo_met: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    ttft_p95_ms: NDArray[np.float64]
    tpot_p95_ms: NDArray[np.float64]
    provenance: Provenance
    slo: Slo
    memory_gib: float
    plan_sha256: str
    cells_sha256: str

    @property
    def teaches(self) -> NDArray[np.bool_]:
        """[lists]: whether a configuration meets the SLO, without which a list has no order to teach."""
        return np.asarray(self.slo_met.any(axis=1))

    def utilities(self) -> NDArray[np.float64]:
        """[lists, configurations], as the ranker is taught them."""
        return utilities(throughput_tps=self.throughput_tps, slo_met=self.slo_met)

    def best_tps(self) -> NDArray[np.float64]:
        """[lists]: the best throughput that meets the SLO, NaN where none does."""
        return best_feasible_tps(throughput_tps=self.throughput_tps, slo_met=self.slo_met)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a plan file says beside its cells. models by name, candidates by config_id."""

    sha256: str
    models: dict[str, ModelArch]
    candidates: dict[str, Candidate]
    slo: Slo
    memory_gib: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """ArtefactError if the file is no plan or not what its own digest names."""
        content = read_json(path, remedy=_PLAN_AGAIN)
        try:
            digest = str(content.pop("plan_sha256"))
            plan = cls(
                sha256=digest,
                models={str(one["name"]): _model(one) for one in content["models"]},
                candidates={one.config_id: one for one in (Candidate(**given) for given in content["candidates"])},
                slo=Slo(**content["slo"]),
                memory_gib=float(content["memory_gib"]),
            )
        except (KeyError, TypeError, ValueError, InvalidInputError) as error:
            raise ArtefactError(f"{path}: not a plan ({error}); {_PLAN_AGAIN}") from error
        found = sha256_bytes(_as_hashed(content))
        if found != digest:
            raise ArtefactError(f"{path} says {digest}, its content is {found}; write the plan again")
        return plan


def read_lists(cells: Path, plan: Path) -> MeasuredLists:
    """Cells with the numbers of their models and configurations from the plan; ArtefactError if they do not belong."""
    sweep = read_sweep(cells)
    read = _Plan.read(plan)
    models, candidates = read.models, read.candidates
    if sweep.plan_sha256 != read.sha256:
        raise ArtefactError(
            f"{cells} was filled by plan {sweep.plan_sha256[:12]}…, {plan} is {read.sha256[:12]}…; {_PLAN_AGAIN}"
        )
    rows = [sorted(found, key=lambda cell: cell.key.config_id) for found in sweep.lists.values()]
    unknown = sorted({cell.key.config_id for row in rows for cell in row} - candidates.keys())
    unknown += sorted({cell.key.model for row in rows for cell in row} - models.keys())
    if unknown:
        raise ArtefactError(f"{cells}: {unknown[0]!r} is not in {plan}; {_PLAN_AGAIN}")
    _check_slo(cells, rows, read.slo)
    features = np.array([[_features(cell, models, candidates) for cell in row] for row in rows], dtype=np.float32)
    check_state_invariance(features, tuple(sweep.lists))
    return _arrays(sweep, rows, features, sha256_file(cells), plan=read)


def _arrays(
    sweep: SweepCells, rows: list[list[CellResult]], features: NDArray[np.float32], digest: str, *, plan: _Plan
) -> MeasuredLists:
    def latency(name: str) -> NDArray[np.float64]:
        """A failure is +inf; one output token has no TPOT."""
        values = [
            [np.inf if cell.status == "failed" else (np.nan if getattr(cell, name) is None else getattr(cell, name))
             for cell in row]
            for row in rows
        ]  # fmt: skip
        return np.array(values, dtype=np.float64)

    return MeasuredLists(
        scenario_ids=tuple(sweep.lists),
        group=tuple(f"{row[0].key.model}|{row[0].key.workload}" for row in rows),
        config_ids=tuple(cell.key.config_id for cell in rows[0]),
        features=features,
        throughput_tps=np.array([[cell.output_throughput_tps for cell in row] for row in rows], dtype=np.float64),
        slo_met=np.array([[cell.slo_met for cell in row] for row in rows], dtype=np.bool_),
        failed=np.array([[cell.status == "failed" for cell in row] for row in rows], dtype=np.bool_),
        ttft_p95_ms=latency("ttft_p95_ms"),
        tpot_p95_ms=latency("tpot_p95_ms"),
        provenance=sweep.provenance,
        slo=plan.slo,
        memory_gib=plan.memory_gib,
        plan_sha256=sweep.plan_sha256,
        cells_sha256=digest,
    )


def _features(cell: CellResult, models: dict[str, ModelArch], candidates: dict[str, Candidate]) -> tuple[float, ...]:
    scenario = Scenario(model=models[cell.key.model], workload=cell.workload)
    return (*encode_state(scenario), *encode_candidate(candidates[cell.key.config_id]))


def _check_slo(path: Path, rows: list[list[CellResult]], slo: Slo) -> None:
    for cell in (cell for row in rows for cell in row):
        met = cell.status == "ok" and slo.met(
            ttft_p95_ms=cell.ttft_p95_ms, tpot_p95_ms=cell.tpot_p95_ms, error_rate=cell.error_rate
        )
        if met != cell.slo_met:
            raise ArtefactError(
                f"{path}: slo_met of {cell.key.cell_id} contradicts its percentiles under the plan's SLO; merge again"
            )


def _as_hashed(content: dict[str, Any]) -> bytes:
    # As the plan's own writer spells it, which offline shares no code with.
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _model(one: dict[str, Any]) -> ModelArch:
    return ModelArch(**{**one, "assumed": tuple(tuple(pair) for pair in one["assumed"])})
