"""A plan: which cells to fill, and everything about the protocol that a row depends on."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from bench_runner.files import read_json, write_atomically
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.catalogue import model_by_name
from service.domain.cell import CellKey
from service.domain.errors import ArtefactError, InvalidInputError, UnknownNameError
from service.domain.gpu import B200, ENGINE_VERSION
from service.domain.reference import REFERENCE_CONCURRENCIES, REFERENCE_MODELS, REFERENCE_WORKLOADS, NamedWorkload
from service.domain.scenario import ModelArch, Workload
from service.domain.slo import REFERENCE_SLO, Slo

PLAN_SCHEMA_VERSION = 1
# `gpu` of a plan for a machine without one.
CPU = "CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """models × workloads × concurrencies × candidates, in that order, the last varying fastest.

    memory_gib is what the engine can use of the GPU; where gpu is CPU, it is the size of the KV cache
    (VLLM_CPU_KVCACHE_SPACE), and gpu_memory_utilization has no effect. The window starts when the warm-up ends; seed
    starts every source of randomness. max_model_len is left to the engine: each model's own, recorded with the model;
    a workload that is longer has no cells with that model.
    """

    name: str
    gpu: str
    memory_gib: float
    engine_version: str
    slo: Slo
    warm_up_s: float
    window_s: float
    seed: int
    models: tuple[ModelArch, ...]
    workloads: tuple[NamedWorkload, ...]
    concurrencies: tuple[int, ...]
    candidates: tuple[Candidate, ...]

    def cells(self) -> Iterator[CellKey]:
        """Every cell of the plan, in plan order."""
        for model in self.models:
            for workload in self.workloads:
                if too_long(model, workload):
                    continue
                for concurrency in self.concurrencies:
                    for candidate in self.candidates:
                        yield CellKey(
                            model=str(model.name),
                            workload=workload.name,
                            concurrency=concurrency,
                            config_id=candidate.config_id,
                        )

    def model(self, key: CellKey) -> ModelArch:
        """The model of a cell."""
        return next(model for model in self.models if model.name == key.model)

    def workload(self, key: CellKey) -> Workload:
        """The workload of a cell, at its concurrency."""
        return next(named for named in self.workloads if named.name == key.workload).at(key.concurrency)

    def candidate(self, key: CellKey) -> Candidate:
        """The configuration of a cell."""
        return next(candidate for candidate in self.candidates if candidate.config_id == key.config_id)

    def scenario_seed(self, key: CellKey) -> int:
        """One seed per scenario: all candidates meet the same arrivals, so their difference is not luck."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}|{key.scenario_id}".encode()).digest()[:8], "big")

    def restricted(self, *, models: Sequence[str], workloads: Sequence[str], config_ids: Sequence[str]) -> Self:
        """The part of the plan with these names, in plan order; an empty list keeps all. UnknownNameError otherwise."""
        by_name: dict[str, tuple[Mapping[str, Any], Sequence[str]]] = {
            "model": ({str(model.name): model for model in self.models}, models),
            "workload": ({workload.name: workload for workload in self.workloads}, workloads),
            "config": ({candidate.config_id: candidate for candidate in self.candidates}, config_ids),
        }
        kept: dict[str, Any] = {}
        for path, (known, wanted) in by_name.items():
            for name in wanted:
                if name not in known:
                    raise UnknownNameError(path=path, value=name, known=known)
            kept[path] = tuple(item for name, item in known.items() if not wanted or name in wanted)
        return replace(self, models=kept["model"], workloads=kept["workload"], candidates=kept["config"])

    @property
    def sha256(self) -> str:
        """Names the plan: equal hashes, equal cells under an equal protocol."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        content = {"schema_version": PLAN_SCHEMA_VERSION, **asdict(self)}
        for model in content["models"]:
            # A cell depends on the numbers, not on where they were read.
            del model["architecture"]
        return content

    def to_json(self) -> dict[str, Any]:
        """The content of a plan file."""
        return {"plan_sha256": self.sha256, **self._content()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of to_json; ArtefactError if it is no plan or its hash is not its own."""
        values = dict(content)
        digest, version = values.pop("plan_sha256", None), values.pop("schema_version", None)
        if version != PLAN_SCHEMA_VERSION:
            raise ArtefactError(f"plan schema_version {version!r}, this program reads {PLAN_SCHEMA_VERSION}")
        try:
            for name, kind in (("models", ModelArch), ("workloads", NamedWorkload), ("candidates", Candidate)):
                values[name] = tuple(kind(**item) for item in values[name])
            values["models"] = tuple(_with_tuples(model) for model in values["models"])
            values["concurrencies"] = tuple(values["concurrencies"])
            values["slo"] = Slo(**values["slo"])
            plan = cls(**values)
        except (KeyError, TypeError, InvalidInputError) as error:
            raise ArtefactError(f"not a plan: {error}; write it again with `bench_runner plan --output`") from error
        if plan.sha256 != digest:
            raise ArtefactError(f"plan file says {digest}, its content is {plan.sha256}; write it again")
        return plan


def too_long(model: ModelArch, workload: NamedWorkload) -> bool:
    """Whether a request of the workload exceeds the model's context, where that is known."""
    limit = model.max_model_len
    return limit is not None and workload.prompt_tokens + workload.max_new_tokens > limit


def _with_tuples(model: ModelArch) -> ModelArch:
    """JSON has no tuples: what `assumed` holds came back as lists."""
    return ModelArch(**{**asdict(model), "assumed": tuple((path, value) for path, value in model.assumed)})


def _plan(name: str, candidates: tuple[Candidate, ...]) -> Plan:
    return Plan(
        name=name,
        gpu=B200.name,
        memory_gib=B200.memory_gib,
        engine_version=ENGINE_VERSION,
        slo=REFERENCE_SLO,
        warm_up_s=4.0,
        window_s=15.0,
        seed=0,
        models=tuple(model_by_name(model) for model in REFERENCE_MODELS),
        workloads=REFERENCE_WORKLOADS,
        concurrencies=REFERENCE_CONCURRENCIES,
        candidates=candidates,
    )


def reference_plan() -> Plan:
    """The 1,440 cells: 96 scenarios under the 15 candidates."""
    return _plan("reference", CANDIDATES)


def engine_default_plan() -> Plan:
    """The 96 scenarios under what the engine starts with when the user sets nothing."""
    return _plan("engine_default", (B200.engine_default,))


BUILT_IN_PLANS = {"reference": reference_plan, "engine_default": engine_default_plan}


def load_plan(name_or_path: str) -> Plan:
    """A built-in plan by name, or a plan file."""
    if name_or_path in BUILT_IN_PLANS:
        return BUILT_IN_PLANS[name_or_path]()
    path = Path(name_or_path)
    if not path.exists():
        raise ArtefactError(f"plan {name_or_path!r} is neither a file nor one of {', '.join(BUILT_IN_PLANS)}")
    return Plan.from_json(read_json(path))


def save_plan(plan: Plan, path: Path) -> None:
    """Writes the plan file, whole or not at all."""
    write_atomically(path, (json.dumps(plan.to_json(), indent=1) + "\n").encode())
