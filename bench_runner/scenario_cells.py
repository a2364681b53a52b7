"""The cells of one scenario, from a merged file or a folder of results, with the plan that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_runner.plan import BUILT_IN_PLANS, Plan, load_plan
from bench_runner.plan_inputs import engine_default
from bench_runner.report import read_cells
from bench_runner.results import PLAN_FILE, ResultsFolder
from service.domain.cell import CellResult
from service.domain.errors import ArtefactError, InvalidInputError, UnknownNameError
from service.domain.gpu import Gpu
from service.domain.reference import REFERENCE_CONCURRENCIES, REFERENCE_WORKLOADS, TEST_MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsOfPlan:
    """Rows of one plan, complete or not, all of one provenance."""

    plan: Plan
    cells: tuple[CellResult, ...]

    def __post_init__(self) -> None:
        for cell in self.cells:
            if cell.plan_sha256 != self.plan.sha256:
                raise ArtefactError(
                    f"{cell.key.cell_id} belongs to plan {cell.plan_sha256}, not to {self.plan.sha256}; give its --plan"
                )
        if len({cell.key for cell in self.cells}) < len(self.cells):
            raise ArtefactError("cells are doubled; merge them, which says which")
        if len({cell.provenance for cell in self.cells}) > 1:
            raise ArtefactError("rows of different provenance never stand in one picture; keep each in its own folder")

    @classmethod
    def read(cls, path: Path, *, plan: str | None = None) -> "CellsOfPlan":
        """A folder of results, which knows its plan, or a merged file, whose plan is a built-in one or is given."""
        if path.is_dir():
            if not (path / PLAN_FILE).exists():
                raise ArtefactError(f"{path} holds no {PLAN_FILE}; give a folder of results or a merged file")
            folder = ResultsFolder(path=path, plan=load_plan(plan or str(path / PLAN_FILE)))
            return cls(plan=folder.plan, cells=tuple(folder.rows()))
        cells = tuple(read_cells(path))
        if plan is not None:
            return cls(plan=load_plan(plan), cells=cells)
        digest = cells[0].plan_sha256 if cells else None
        for known in (load_plan(name) for name in BUILT_IN_PLANS):
            if known.sha256 == digest:
                return cls(plan=known, cells=cells)
        raise ArtefactError(f"{path} holds cells of plan {digest}; give that plan's file as --plan, it has the SLO")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCells:
    """One scenario: a cell per candidate in the order of the plan. engine_default is its config_id on this device."""

    plan: Plan
    cells: tuple[CellResult, ...]
    engine_default: str

    @classmethod
    def of(
        cls, source: CellsOfPlan, *, model: str, workload: str, concurrency: int, config_ids: Sequence[str] = ()
    ) -> "ScenarioCells":
        """Those cells of the source, or only those of config_ids. UnknownNameError lists what there is.

        A scenario of the reference's test split is refused: it is looked at only by its evaluation.
        """
        kept = source.cells
        for path, wanted in (("model", model), ("workload", workload), ("concurrency", concurrency)):
            known = dict.fromkeys(str(getattr(cell.key, path)) for cell in kept)
            kept = tuple(cell for cell in kept if getattr(cell.key, path) == wanted)
            if not kept:
                raise UnknownNameError(path=path, value=wanted, known=known)
        if any(held_out(cell) for cell in kept):
            raise InvalidInputError(
                path="workload",
                value=workload,
                remedy=f"with {model} it is in the test split, which only its evaluation looks at; name another",
            )
        for config_id in config_ids:
            if config_id not in {cell.key.config_id for cell in kept}:
                raise UnknownNameError(path="config", value=config_id, known=[cell.key.config_id for cell in kept])
        order = {candidate.config_id: index for index, candidate in enumerate(source.plan.candidates)}
        chosen = [cell for cell in kept if not config_ids or cell.key.config_id in config_ids]
        return cls(
            plan=source.plan,
            cells=tuple(sorted(chosen, key=lambda cell: order[cell.key.config_id])),
            engine_default=engine_default(Gpu(name=source.plan.gpu, memory_gib=source.plan.memory_gib)).config_id,
        )

    def beside(self, defaults: Sequence[CellResult]) -> "ScenarioCells":
        """With the engine default's cell of the same scenario, if there is one and it is not among the cells.

        ArtefactError if that cell is of another provenance or of other numbers under the same name.
        """
        first = self.cells[0]
        found = next((cell for cell in defaults if cell.key.scenario_id == first.key.scenario_id), None)
        if found is None or any(cell.key == found.key for cell in self.cells):
            return self
        if (found.provenance, found.workload) != (first.provenance, first.workload):
            raise ArtefactError(
                f"{found.key.cell_id}: cells of another provenance or workload; give engine default cells of this run"
            )
        return ScenarioCells(plan=self.plan, cells=(*self.cells, found), engine_default=found.key.config_id)


def held_out(cell: CellResult) -> bool:
    """A scenario of the reference's test split, in a cell of the reference's own plans or in any simulated one.

    It is known by its numbers, so that a part of the reference under another name is no way around.
    """
    in_reference = cell.plan_sha256 in {load_plan(name).sha256 for name in BUILT_IN_PLANS}
    test = [named.at(cell.key.concurrency) for named in REFERENCE_WORKLOADS if named.split == "test"]
    return (
        (in_reference or cell.provenance.evidence == "simulated")
        and cell.key.model in TEST_MODELS
        and cell.key.concurrency in REFERENCE_CONCURRENCIES
        and cell.workload in test
    )
