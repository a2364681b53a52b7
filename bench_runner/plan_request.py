"""A plan as a user asks for it: a plan to start from, and what is to be different."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench_runner.plan import Plan, too_long
from bench_runner.plan_inputs import device_of, engine_default, read_candidates, read_model, read_slo, read_workloads
from service.domain.candidate import Candidate
from service.domain.errors import InvalidInputError
from service.domain.gpu import Gpu
from service.domain.reference import NamedWorkload
from service.domain.scenario import MAX_CONCURRENCY, ModelArch, Scenario, check_float, check_int

OWN_NAME = "own"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Names that `base` knows restrict it, in its order; other names and files (see plan_inputs) come after them.

    None and empty lists keep what the base has. Concurrencies of workload files count where none are given here.
    """

    base: Plan
    name: str | None = None
    gpu: str | None = None
    memory_gib: float | None = None
    models: Sequence[str] = ()
    workloads: Sequence[str] = ()
    concurrencies: Sequence[int] = ()
    slo: Path | None = None
    configs: Sequence[str] = ()
    engine_default: bool = False
    warm_up_s: float | None = None
    window_s: float | None = None

    def plan(self) -> Plan:
        """The plan; InvalidInputError if two parts share a name or no scenario fits into its model's context."""
        base = self.base
        device = self._device()
        workloads, concurrencies = self._workloads()
        plan = replace(
            base,
            gpu=device.name,
            memory_gib=device.memory_gib,
            slo=read_slo(self.slo) if self.slo else base.slo,
            warm_up_s=_seconds("warm_up_s", self.warm_up_s, low=0.0, default=base.warm_up_s),
            window_s=_seconds("window_s", self.window_s, low=0.1, default=base.window_s),
            models=self._models(),
            workloads=workloads,
            concurrencies=concurrencies,
            candidates=self._candidates(device),
        )
        plan = replace(plan, name=self.name or (base.name if _is_part(plan, base) else OWN_NAME))
        if next(plan.cells(), None) is None:
            # Refuses with the numbers of the first one.
            Scenario(model=plan.models[0], workload=plan.workloads[0].at(plan.concurrencies[0]))
        return plan

    def _device(self) -> Gpu:
        base = Gpu(name=self.base.gpu, memory_gib=self.base.memory_gib)
        if self.gpu is None and self.memory_gib is None:
            return base
        return device_of(self.gpu or base.name, self.memory_gib)

    def _models(self) -> tuple[ModelArch, ...]:
        known = {str(model.name): model for model in self.base.models}
        wanted = [known.get(name) or read_model(name) for name in self.models]
        models = _chosen(self.base.models, wanted)
        _refuse_doubles("model", [str(model.name) for model in models])
        return models

    def _workloads(self) -> tuple[tuple[NamedWorkload, ...], tuple[int, ...]]:
        known = {workload.name: workload for workload in self.base.workloads}
        wanted: list[NamedWorkload] = []
        in_files: set[tuple[int, ...]] = set()
        for name in self.workloads:
            if name in known:
                wanted.append(known[name])
            elif Path(name).is_file():
                read, concurrencies = read_workloads(Path(name))
                wanted += read
                in_files |= {clients for clients in concurrencies if clients}
            else:
                raise InvalidInputError(
                    path="workload", value=name, remedy=f"no such file; known: {', '.join(known)}; or give a JSON file"
                )
        workloads = _chosen(self.base.workloads, wanted)
        _refuse_doubles("workload", [workload.name for workload in workloads])
        return workloads, self._concurrencies(in_files)

    def _concurrencies(self, in_files: set[tuple[int, ...]]) -> tuple[int, ...]:
        for clients in self.concurrencies:
            check_int("concurrency", clients, high=MAX_CONCURRENCY)
        if not self.concurrencies and len(in_files) > 1:
            raise InvalidInputError(
                path="concurrency",
                value=sorted(in_files),
                remedy="a plan runs every workload at the same ones; give --concurrency or one plan for each",
            )
        return _chosen(self.base.concurrencies, self.concurrencies or next(iter(in_files), ()))

    def _candidates(self, device: Gpu) -> tuple[Candidate, ...]:
        base = self.base
        default = engine_default(device)
        known = {candidate.config_id: candidate for candidate in base.candidates}
        wanted = [
            candidate
            for given in self.configs
            for candidate in ([known[given]] if given in known else read_candidates(given, device))
        ]
        if wanted:
            candidates = _chosen(base.candidates, wanted)
        elif base.candidates == (engine_default(Gpu(name=base.gpu, memory_gib=base.memory_gib)),):
            # A plan of the engine's default stays one on another device.
            candidates = (default,)
        else:
            candidates = base.candidates
        return tuple(dict.fromkeys((*candidates, default))) if self.engine_default else candidates


def left_out(plan: Plan) -> list[str]:
    """One line for each model and workload of the plan that has no cells, with the reason."""
    return [
        f"{model.name}|{workload.name} is left out: {workload.prompt_tokens + workload.max_new_tokens} tokens exceed "
        f"the model's context of {model.max_model_len}"
        for model in plan.models
        for workload in plan.workloads
        if too_long(model, workload)
    ]


def _chosen(known: Sequence[T], wanted: Sequence[T]) -> tuple[T, ...]:
    """All that are known if none is wanted; else those wanted: the known ones in their order, then the new ones."""
    if not wanted:
        return tuple(known)
    return tuple(dict.fromkeys((*(item for item in known if item in wanted), *wanted)))


def _is_part(plan: Plan, base: Plan) -> bool:
    protocol = replace(
        plan, models=base.models, workloads=base.workloads, concurrencies=base.concurrencies, candidates=base.candidates
    )
    return (
        protocol == base
        and set(plan.models) <= set(base.models)
        and set(plan.workloads) <= set(base.workloads)
        and set(plan.concurrencies) <= set(base.concurrencies)
        and set(plan.candidates) <= set(base.candidates)
    )


def _seconds(path: str, value: float | None, *, low: float, default: float) -> float:
    return default if value is None else check_float(path, value, low=low, high=3600.0)


def _refuse_doubles(path: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(path=path, value=name, remedy="two different ones have this name; rename one")
