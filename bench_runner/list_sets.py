"""The sets of lists: how many scenarios and draws each has, where its scenarios come from, and by which seeds.

A list is one announced workload with one draw of the true one, under all 16 configurations. The `definition` of all
sets is what a registration fixes; a set with `test` is simulated only under one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench_runner import announced, length_shapes
from bench_runner.announced import Announced, draw_base, draw_focus, in_held_out_block, push_beyond
from bench_runner.architectures import FAMILIES, HELD_OUT_FAMILIES, SYSTEMS, Architecture, architectures, step_tables
from bench_runner.length_shapes import traces
from bench_runner.simulator import SCHEDULER, SimulationSettings
from bench_runner.true_workload import Uncertainty
from service.domain.gpu import B200
from service.domain.scenario import Workload
from service.domain.slo import REFERENCE_SLO

DEFINITION_VERSION = 3
# A choice mattered in a list if the best configuration's utility exceeds that of the engine's default or of candidate
# 0 by more than this; utility is throughput as a share of the list's best, −1 where the SLO is violated.
MATTERS_ABOVE = 0.05
ANCHOR_SET = "train-base"
# Further draws, on which oracles choose, of every scenario of a set.
ORACLE_DRAWS = 20
# The number of the one draw in which exactly what was announced comes: what a chooser without doubts looks at.
NOMINAL_DRAW = 99
TYPICAL = Uncertainty()
EXACT = Uncertainty(length_factor=1.0, concurrency_factor=1.0, ratio_error=0.0, fixed_only=True)
ROUGH = Uncertainty(length_factor=1.4**2, concurrency_factor=1.8**2, ratio_error=0.1)
# Sources whose text decides what a list is; the engine itself is named by SCHEDULER and its settings.
_SOURCES = ("announced", "architectures", "length_shapes", "list_run", "list_sets", "stand_in", "true_workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSet:
    """base, focus, beyond: scenarios of each stratum, in that order. seed: of the scenarios; draws have their own.

    region: which blocks of the announced space; families: of which models; traffic: drawn or from traces; machine: the
    assumed one, or another for every scenario. further: the draws that only oracles look at, of the scenarios of the
    set with the same seeds: ORACLE_DRAWS and the NOMINAL_DRAW of each. gpu: by its name.
    """

    name: str
    seed: int
    draw_seed: int
    base: int
    focus: int
    beyond: int = 0
    draws: int = 1
    further: bool = False
    region: Literal["trained", "held out"] = "trained"
    families: Literal["trained", "held out"] = "trained"
    traffic: Literal["drawn", "traces"] = "drawn"
    machine: Literal["assumed", "moved"] = "assumed"
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    gpu: str = B200.name
    test: bool = False

    @property
    def scenarios(self) -> int:
        """Announced workloads."""
        return self.base + self.focus + self.beyond

    def items(self) -> list[tuple[int, int]]:
        """(scenario, draw) of every list, in order."""
        return [(scenario, draw) for scenario in range(self.scenarios) for draw in self._draws()]

    def _draws(self) -> list[int]:
        if not self.further:
            return list(range(self.draws))
        return [*range(self.draws, self.draws + ORACLE_DRAWS), NOMINAL_DRAW]

    def uncertainty_of(self, draw: int) -> Uncertainty:
        """How far a draw may be from what was announced."""
        return EXACT if draw == NOMINAL_DRAW else self.uncertainty


_T2: dict[str, Any] = {
    "seed": 242, "draw_seed": 342, "base": 750, "focus": 250, "beyond": 100, "draws": 8, "region": "held out",
    "test": True,
}  # fmt: skip
_T3: dict[str, Any] = {
    "seed": 243, "draw_seed": 343, "base": 750, "focus": 250, "draws": 8, "families": "held out", "test": True,
}  # fmt: skip
_T4: dict[str, Any] = {
    "seed": 244, "draw_seed": 344, "base": 750, "focus": 250, "draws": 8, "traffic": "traces", "test": True,
}  # fmt: skip
_T6: dict[str, Any] = {"seed": 246, "base": 750, "focus": 250, "test": True}
# The special cases have scenarios of their own, and fewer.
_FEWER: dict[str, Any] = {"base": 300, "focus": 100, "draws": 8, "test": True}
_DEV: dict[str, Any] = {"base": 225, "focus": 75, "draws": 8}
H200, H100 = "NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"

SETS: dict[str, ListSet] = {
    one.name: one
    for one in (
        ListSet(name="train-base", seed=11, draw_seed=111, base=30_000, focus=0),
        ListSet(name="train-focus", seed=12, draw_seed=112, base=0, focus=10_000),
        ListSet(name="train-nominal", seed=15, draw_seed=115, base=6_000, focus=2_000, uncertainty=EXACT),
        ListSet(name="train-rough", seed=31, draw_seed=171, base=7_500, focus=2_500, uncertainty=ROUGH),
        ListSet(name="h200-train", seed=32, draw_seed=172, base=5_250, focus=1_750, gpu=H200),
        ListSet(name="h100-train", seed=33, draw_seed=173, base=5_250, focus=1_750, gpu=H100),
        ListSet(name="train-more", seed=61, draw_seed=161, base=30_000, focus=20_000),
        ListSet(name="train-further", seed=66, draw_seed=166, base=36_000, focus=24_000),
        ListSet(name="nominal-more", seed=62, draw_seed=162, base=9_000, focus=3_000, uncertainty=EXACT),
        ListSet(name="rough-more", seed=63, draw_seed=163, base=15_000, focus=5_000, uncertainty=ROUGH),
        ListSet(name="h200-more", seed=64, draw_seed=164, base=10_500, focus=3_500, gpu=H200),
        ListSet(name="h100-more", seed=65, draw_seed=165, base=10_500, focus=3_500, gpu=H100),
        ListSet(name="dev", seed=13, draw_seed=113, base=700, focus=300, draws=8),
        ListSet(name="dev-exact", seed=34, draw_seed=174, base=750, focus=250, uncertainty=EXACT),
        ListSet(name="dev-rough", seed=35, draw_seed=175, uncertainty=ROUGH, **_DEV),
        ListSet(name="h200-dev", seed=36, draw_seed=176, gpu=H200, **_DEV),
        ListSet(name="h100-dev", seed=37, draw_seed=177, gpu=H100, **_DEV),
        ListSet(name="T2", **_T2),
        ListSet(name="T3", **_T3),
        ListSet(name="T4", **_T4),
        ListSet(name="T6-typical", draw_seed=346, draws=8, **_T6),
        ListSet(name="T2-oracle", further=True, **_T2),
        ListSet(name="T3-oracle", further=True, **_T3),
        ListSet(name="T4-oracle", further=True, **_T4),
        ListSet(name="T6-typical-oracle", draw_seed=346, draws=8, further=True, **_T6),
        # Nothing is drawn about exactly known workloads but who comes first, so two draws tell as much as eight.
        ListSet(name="T6-exact", draw_seed=347, draws=2, uncertainty=EXACT, **_T6),
        ListSet(name="T6-rough", seed=247, draw_seed=348, uncertainty=ROUGH, **_FEWER),
        ListSet(name="T6-2x", seed=248, draw_seed=349, uncertainty=replace(TYPICAL, clients_factor=2.0), **_FEWER),
        ListSet(name="T6-4x", seed=248, draw_seed=350, uncertainty=replace(TYPICAL, clients_factor=4.0), **_FEWER),
        ListSet(name="T5", seed=245, draw_seed=345, machine="moved", **_FEWER),
        ListSet(name="T7-h200", seed=251, draw_seed=351, gpu=H200, region="held out", **_FEWER),
        ListSet(name="T7-h100", seed=252, draw_seed=352, gpu=H100, region="held out", **_FEWER),
    )
}  # fmt: skip


def definition() -> dict[str, Any]:
    """Everything that decides what the lists are, as values and digests."""
    folder = Path(__file__).parent
    return {
        "version": DEFINITION_VERSION,
        "sets": {name: asdict(one) for name, one in SETS.items()},
        "oracle_draws": ORACLE_DRAWS,
        "matters_above": MATTERS_ABOVE,
        "ranges": {
            "prompts": announced.PROMPTS,
            "outputs": announced.OUTPUTS,
            "concurrencies": announced.CONCURRENCIES,
            "most_prefix": announced.MOST_PREFIX,
            "beyond": announced.BEYOND,
        },
        "families": FAMILIES,
        "held_out_families": HELD_OUT_FAMILIES,
        "slo": asdict(REFERENCE_SLO),
        "scheduler": SCHEDULER,
        "simulation_settings": asdict(SimulationSettings()),
        "step_tables": {gpu: [tables.sha256 for tables in step_tables(gpu)] for gpu in SYSTEMS},
        "traffic_tables": hashlib.sha256(length_shapes.LENGTHS_PATH.read_bytes()).hexdigest(),
        "sources": {name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in _SOURCES},
    }


def definition_sha256() -> str:
    """Names the definition of all sets."""
    return hashlib.sha256(json.dumps(definition(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSource:
    """Draws the scenarios of a set. anchors: scenarios (model, workload) in which the choice mattered."""

    list_set: ListSet
    models: tuple[Architecture, ...]
    anchors: tuple[tuple[str, Workload], ...]

    @classmethod
    def of(cls, list_set: ListSet, anchors: Sequence[tuple[str, Workload]]) -> "ScenarioSource":
        """With the models that the set may use."""
        held_out = list_set.families == "held out"
        models = tuple(one for one in architectures(list_set.gpu) if (one.family in HELD_OUT_FAMILIES) == held_out)
        return cls(list_set=list_set, models=models, anchors=tuple(anchors))

    def scenario(self, index: int) -> Announced:
        """Scenario `index` of the set; the same whichever scenarios were drawn before it."""
        one = self.list_set
        rng = np.random.default_rng([one.seed, index])
        beyond = index >= one.base + one.focus
        focus = one.base <= index if not beyond else bool(rng.random() < 0.5)
        while True:
            found = draw_focus(rng, self.models, self.anchors) if focus else draw_base(rng, self.models)
            if beyond:
                names = tuple(announced.BEYOND)
                pushed = push_beyond(rng, found, names[index % len(names)])
                if pushed is not None:
                    return pushed
            elif in_held_out_block(found.workload) == (one.region == "held out"):
                return found


def kind_of(list_set: ListSet, scenario: int, draw: int) -> str | None:
    """The trace that a scenario's requests come from; None where the kind of traffic is drawn, or all are equal."""
    names = tuple(traces())
    return names[scenario % len(names)] if list_set.traffic == "traces" and draw != NOMINAL_DRAW else None


def anchors_of(rows: Mapping[str, Any]) -> list[tuple[str, Workload]]:
    """The scenarios of simulated lists in which the choice mattered. rows: columns as list_files reads them."""
    met = rows["status"] == 0
    throughput = np.where(met, rows["throughput_tps"], 0.0)
    best = throughput.max(axis=1, keepdims=True)
    utility = np.where(met, throughput / np.maximum(best, 1e-9), -1.0)
    gain = utility.max(axis=1) - np.minimum(utility[:, 0], utility[:, -1])
    return [
        (
            str(rows["model"][row]),
            Workload(
                prompt_tokens=int(rows["prompt_tokens"][row]),
                max_new_tokens=int(rows["max_new_tokens"][row]),
                shared_prefix_ratio=float(rows["shared_prefix_ratio"][row]),
                concurrency=int(rows["concurrency"][row]),
            ),
        )
        for row in np.flatnonzero(gain > MATTERS_ABOVE)
    ]
