"""How much a choice of configuration hangs on what the simulator assumes: one uncertain parameter moved at a time.

Every candidate of every scenario is simulated under the assumed values and under each variation, with the same random
numbers. A choice is the fastest candidate that meets the SLO. Everything here is simulated: it says how far answers
depend on assumptions, not how far these are from a real machine.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench_runner.architectures import architectures
from bench_runner.kv_cache import blocks_of
from bench_runner.plan import reference_plan
from bench_runner.request_stream import longest
from bench_runner.simulator import SCHEDULER, Load, Observed, SimulationSettings, Window
from bench_runner.stand_in import Setup, run_all
from bench_runner.step_time import StepTable, load_step_tables
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.errors import ArtefactError
from service.domain.gpu import B200
from service.domain.memory import OVERHEAD_GIB, kv_blocks, start_up_tokens
from service.domain.scenario import ModelArch, Workload
from service.domain.slo import REFERENCE_SLO

ASSUMED = "assumed"
# What a choice may lose without being another choice in substance.
NEAR_TIE = 0.02
DEV_PATH = Path(__file__).parent / "list_samples" / "dev.parquet"
DEV_SCENARIOS = 300
# The longest that a list of the ranker's sets is simulated for.
DEV_WINDOW = Window(warm_up_ms=2500.0, length_ms=8000.0)
_SOURCES = ("sensitivity", "simulator", "engine", "scheduler", "kv_cache", "front_end", "step_time", "stand_in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One parameter with one value; the others are as assumed. settings: changed fields of SimulationSettings.

    dense, attention: factors on the kernel tables. other_memory_gib: what is neither weights nor KV cache. reseed:
    another sequence of random numbers, which changes no assumption: what it changes is chance.
    """

    parameter: str
    value: str
    settings: Mapping[str, float] = field(default_factory=dict)
    dense: float = 1.0
    attention: float = 1.0
    other_memory_gib: float = OVERHEAD_GIB
    reseed: int = 0

    @property
    def name(self) -> str:
        """Unique among the variations."""
        return f"{self.parameter} {self.value}".strip()

    def table(self, table: StepTable) -> StepTable:
        """Step times, moved."""
        return table._replace(
            dense_ms=table.dense_ms * self.dense,
            head_ms=table.head_ms * self.dense,
            context_ms=table.context_ms * self.attention,
            generation_ms=table.generation_ms * self.attention,
        )


def _settings(parameter: str, *factors: float, also: Sequence[float] = ()) -> list[Variation]:
    """A field of SimulationSettings times each factor, and further values of it."""
    assumed = getattr(SimulationSettings(), parameter)
    values = [*(assumed * factor for factor in factors), *also]
    return [Variation(parameter=parameter, value=f"{value:g}", settings={parameter: value}) for value in values]


VARIATIONS: tuple[Variation, ...] = (
    Variation(parameter=ASSUMED, value=""),
    Variation(parameter="random numbers", value="another seed", reseed=1),
    *_settings("host_step_ms", 0.5, 2.0),
    *_settings("host_sequence_ms", 0.5, 2.0),
    # 20 ms: the serial front end of the exploratory hypothesis about the published tables.
    *_settings("request_ms", 0.5, 2.0, also=(20.0,)),
    *_settings("prompt_token_ms", 0.5, 2.0),
    *_settings("output_token_ms", 0.5, 2.0),
    *(
        Variation(parameter="other memory", value=f"{gib:g} GiB", other_memory_gib=gib)
        for gib in (OVERHEAD_GIB / 2, OVERHEAD_GIB - 1, OVERHEAD_GIB + 1, OVERHEAD_GIB * 2)
    ),
    Variation(parameter="dense kernels", value="-20 %", dense=0.8),
    Variation(parameter="dense kernels", value="+20 %", dense=1.2),
    Variation(parameter="attention kernels", value="-20 %", attention=0.8),
    Variation(parameter="attention kernels", value="+20 %", attention=1.2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario: one announced workload, which comes exactly as announced."""

    name: str
    model: ModelArch
    table: StepTable
    workload: Workload
    window: Window
    seed: int


def reference_cases() -> list[Case]:
    """The reference's 96 scenarios under its protocol."""
    plan, tables = reference_plan(), load_step_tables()
    window = Window(warm_up_ms=plan.warm_up_s * 1000, length_ms=plan.window_s * 1000)
    keys = {key.scenario_id: key for key in plan.cells()}
    return [
        Case(
            name=name,
            model=plan.model(key),
            table=tables.of(key.model),
            workload=plan.workload(key),
            window=window,
            seed=plan.scenario_seed(key),
        )
        for name, key in keys.items()
    ]


def dev_cases(path: Path = DEV_PATH, *, count: int = DEV_SCENARIOS) -> list[Case]:
    """`count` scenarios, evenly spread over those of the ranker's dev set (all, where it has fewer)."""
    columns = ("scenario", "model", "prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
    try:
        rows = pq.read_table(path, columns=list(columns)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ArtefactError(f"{path} cannot be read as a set of lists: {error}; restore the committed file") from error
    by_scenario = {row["scenario"]: row for row in rows}
    picked = [sorted(by_scenario)[index * len(by_scenario) // count] for index in range(min(count, len(by_scenario)))]
    known = {one.name: one for one in architectures()}
    return [
        Case(
            name=f"dev {scenario}",
            model=known[by_scenario[scenario]["model"]].model,
            table=known[by_scenario[scenario]["model"]].table,
            workload=Workload(**{name: by_scenario[scenario][name] for name in columns[2:]}),
            window=DEV_WINDOW,
            seed=scenario,
        )
        for scenario in picked
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """[scenarios, 15] each: output tokens per second, 0 where nothing completed; whether the SLO is met."""

    tps: NDArray[np.float64]
    met: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.tps.shape != self.met.shape or self.tps.ndim != 2:
            raise ValueError(f"tps {self.tps.shape} and met {self.met.shape} are not one table")


def run_case(case: Case, variation: Variation) -> tuple[list[float], list[bool]]:
    """(output tokens per second, SLO met) of each candidate."""
    stream = Load.of(case.workload).stream()
    needed = max(blocks_of(start_up_tokens(case.model, case.workload)), blocks_of(longest(stream)) + 1)
    changed: dict[str, Any] = dict(variation.settings)
    setups = []
    for candidate in CANDIDATES:
        blocks = blocks_under(variation, case.model, candidate)
        setups.append(Setup(candidate=candidate, kv_blocks=blocks if blocks >= needed else None))
    observed, _ = run_all(
        stream,
        setups,
        table=variation.table(case.table),
        settings=replace(SimulationSettings(), **changed),
        window=case.window,
        seed=(case.seed + variation.reseed) % 2**64,
    )
    return _outcomes(observed, window_s=case.window.length_ms / 1000)


def blocks_under(variation: Variation, model: ModelArch, candidate: Candidate) -> int:
    """KV cache blocks of a candidate. More memory for other things is like a GPU that has less of it."""
    moved_gib = (variation.other_memory_gib - OVERHEAD_GIB) / candidate.gpu_memory_utilization
    return kv_blocks(model, candidate, memory_gib=B200.memory_gib - moved_gib)


def _outcomes(observed: Sequence[Observed | None], *, window_s: float) -> tuple[list[float], list[bool]]:
    tps, met = [], []
    for one in observed:
        ttft = None if one is None else one.ttft_percentile(95)
        alive = one is not None and ttft is not None
        tps.append(one.tokens / window_s if one is not None and alive else 0.0)
        tpot = None if one is None else one.tpot_percentile(95)
        met.append(alive and REFERENCE_SLO.met(ttft_p95_ms=ttft, tpot_p95_ms=tpot, error_rate=0.0))
    return tps, met


def choices(outcomes: Outcomes) -> NDArray[np.int64]:
    """[scenarios]: the fastest candidate that meets the SLO, the fastest of all where none does; ties to the lower."""
    eligible = outcomes.met | ~outcomes.met.any(axis=1, keepdims=True)
    return np.asarray(np.where(eligible, outcomes.tps, -1.0).argmax(axis=1), dtype=np.int64)


def losses(chosen: NDArray[np.int64], outcomes: Outcomes) -> NDArray[np.float64]:
    """[scenarios]: 1 − goodput of the choice ÷ goodput of the best candidate under these outcomes.

    Goodput is throughput where the SLO is met, else 0: a choice that violates it loses everything. NaN where no
    candidate meets the SLO, since nothing is to be lost there.
    """
    goodput = np.where(outcomes.met, outcomes.tps, 0.0)
    best = goodput.max(axis=1)
    picked = goodput[np.arange(len(chosen)), chosen]
    return np.where(best > 0, 1 - picked / np.where(best > 0, best, 1.0), np.nan)


def compare(assumed: Outcomes, varied: Outcomes) -> dict[str, Any]:
    """What a variation changes.

    changed: share of the scenarios with another best candidate. changed_beyond_near_ties: of those, the ones in which
    a choice loses more than NEAR_TIE under the other values. assumed_choice_loses, varied_choice_loses: the loss of the
    choice made under one set of values where the other holds, over all scenarios in which something can be lost.
    """
    under_assumed, under_varied = choices(assumed), choices(varied)
    forward, backward = losses(under_assumed, varied), losses(under_varied, assumed)
    changed = under_assumed != under_varied
    beyond = changed & ((np.nan_to_num(forward) > NEAR_TIE) | (np.nan_to_num(backward) > NEAR_TIE))
    return {
        "scenarios": len(changed),
        "changed": float(changed.mean()),
        "changed_beyond_near_ties": float(beyond.mean()),
        "assumed_choice_loses": distribution(forward),
        "varied_choice_loses": distribution(backward),
        "assumed_choice_loses_beyond_near_ties": distribution(forward[beyond]),
        "varied_choice_loses_beyond_near_ties": distribution(backward[beyond]),
        "assumed_choice_newly_violates": _newly_violates(under_assumed, varied),
        "varied_choice_newly_violates": _newly_violates(under_varied, assumed),
    }


def distribution(loss: NDArray[np.float64]) -> dict[str, float | int | None]:
    """n, mean, median, p95 and max of the values that are defined; None where there are none."""
    known = loss[~np.isnan(loss)]
    if not len(known):
        return {"n": 0, "mean": None, "median": None, "p95": None, "max": None}
    values = {"mean": known.mean(), "median": np.median(known), "p95": np.percentile(known, 95), "max": known.max()}
    return {"n": len(known), **{name: round(float(value), 5) for name, value in values.items()}}


def _newly_violates(chosen: NDArray[np.int64], outcomes: Outcomes) -> float:
    """Share of scenarios in which some candidate meets the SLO and the chosen one does not."""
    return float((outcomes.met.any(axis=1) & ~outcomes.met[np.arange(len(chosen)), chosen]).mean())


def sources_sha256(cases: Mapping[str, Sequence[Case]]) -> str:
    """One digest over what decides the outcomes: sources, step tables, scenarios."""
    folder = Path(__file__).parent
    parts: dict[str, Any] = {
        name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in _SOURCES
    }
    parts |= {"tables": [load_step_tables().sha256, load_step_tables(system="b200_sxm").sha256], "scheduler": SCHEDULER}
    parts["cases"] = {
        name: [f"{case.name} {case.workload} {case.seed}" for case in some] for name, some in cases.items()
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
