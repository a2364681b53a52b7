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
from bench_runner.architectures import FAMILIES, HELD_OUT_FAMILIES, Architecture, architectures, step_tables
from bench_runner.length_shapes import traces
from bench_runner.simulator import SCHEDULER, SimulationSettings
from bench_runner.true_workload import Uncertainty
from service.domain.scenario import Workload
from service.domain.slo import REFERENCE_SLO

DEFINITION_VERSION = 1
# A choice mattered in a list if the best configuration's utility exceeds that of the engine's default or of candidate
# 0 by more than this; utility is throughput as a share of the list's best, −1 where the SLO is violated.
MATTERS_ABOVE = 0.05
ANCHOR_SET = "train-base"
# Further draws, on which oracles choose, belong to every third scenario of T2 and T3.
ORACLE_DRAWS, ORACLE_EVERY = 24, 3
# The number of the one draw in which exactly what was announced comes: what a chooser without doubts looks at.
NOMINAL_DRAW = 99
TYPICAL = Uncertainty()
EXACT = Uncertainty(length_factor=1.0, concurrency_factor=1.0, ratio_error=0.0, fixed_only=True)
ROUGH = Uncertainty(length_factor=1.4**2, concurrency_factor=1.8**2, ratio_error=0.1)
PREFIX_SWEEP = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# Sources whose text decides what a list is; the engine itself is named by SCHEDULER and its settings.
_SOURCES = ("announced", "architectures", "length_shapes", "list_run", "list_sets", "stand_in", "true_workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSet:
    """base, focus, beyond: scenarios of each stratum, in that order. seed: of the scenarios; draws have their own.

    region: which blocks of the announced space; families: of which models; traffic: drawn or from traces; machine: the
    assumed one, or another for every scenario. further: the draws that only oracles look at, of the scenarios of the
    set with the same seeds: ORACLE_DRAWS for every third, and the NOMINAL_DRAW of each.
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
    sweep: tuple[float, ...] = ()
    test: bool = False

    @property
    def scenarios(self) -> int:
        """Announced workloads."""
        return (self.base + self.focus + self.beyond) * max(len(self.sweep), 1)

    def items(self) -> list[tuple[int, int]]:
        """(scenario, draw) of every list, in order."""
        return [(scenario, draw) for scenario in range(self.scenarios) for draw in self._draws_of(scenario)]

    def _draws_of(self, scenario: int) -> list[int]:
        if not self.further:
            return list(range(self.draws))
        oracle = ORACLE_DRAWS if scenario % ORACLE_EVERY == 0 else 0
        return [*range(self.draws, self.draws + oracle), NOMINAL_DRAW]

    def uncertainty_of(self, draw: int) -> Uncertainty:
        """How far a draw may be from what was announced."""
        return EXACT if draw == NOMINAL_DRAW else self.uncertainty


_T2: dict[str, Any] = {
    "seed": 22, "draw_seed": 122, "base": 1200, "focus": 400, "beyond": 400, "draws": 8, "region": "held out",
    "test": True,
}  # fmt: skip
_T3: dict[str, Any] = {
    "seed": 23, "draw_seed": 123, "base": 1500, "focus": 500, "draws": 8, "families": "held out", "test": True,
}  # fmt: skip
_T6: dict[str, Any] = {"seed": 26, "base": 1500, "focus": 500, "draws": 8, "test": True}
# The special cases have scenarios of their own, and fewer.
_T6_FACTOR: dict[str, Any] = {**_T6, "seed": 28, "base": 750, "focus": 250}

SETS: dict[str, ListSet] = {
    one.name: one
    for one in (
        ListSet(name="train-base", seed=11, draw_seed=111, base=30_000, focus=0),
        ListSet(name="train-focus", seed=12, draw_seed=112, base=0, focus=10_000),
        ListSet(name="train-nominal", seed=15, draw_seed=115, base=6_000, focus=2_000, uncertainty=EXACT),
        ListSet(name="dev", seed=13, draw_seed=113, base=700, focus=300, draws=8),
        ListSet(name="calibration", seed=14, draw_seed=114, base=700, focus=300, draws=8),
        ListSet(name="T2", **_T2),
        ListSet(name="T3", **_T3),
        ListSet(
            name="T4", seed=24, draw_seed=124, base=1500, focus=500, draws=8, traffic="traces", test=True,
        ),
        ListSet(
            name="T5", seed=25, draw_seed=125, base=1500, focus=500, draws=8, machine="moved", test=True,
        ),
        ListSet(name="T2-oracle", further=True, **_T2),
        ListSet(name="T3-oracle", further=True, **_T3),
        ListSet(name="T6-typical", draw_seed=126, **_T6),
        ListSet(name="T6-exact", draw_seed=127, uncertainty=EXACT, **_T6),
        ListSet(name="T6-rough", draw_seed=128, uncertainty=ROUGH, **_T6),
        ListSet(name="T6-2x", draw_seed=129, uncertainty=replace(TYPICAL, clients_factor=2.0), **_T6_FACTOR),
        ListSet(name="T6-4x", draw_seed=130, uncertainty=replace(TYPICAL, clients_factor=4.0), **_T6_FACTOR),
        ListSet(
            name="prefix-sweep", seed=27, draw_seed=131, base=100, focus=50, draws=4, sweep=PREFIX_SWEEP, test=True,
        ),
    )
}  # fmt: skip


def definition() -> dict[str, Any]:
    """Everything that decides what the lists are, as values and digests."""
    folder = Path(__file__).parent
    return {
        "version": DEFINITION_VERSION,
        "sets": {name: asdict(one) for name, one in SETS.items()},
        "oracle_draws": [ORACLE_DRAWS, ORACLE_EVERY],
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
        "step_tables": [tables.sha256 for tables in step_tables()],
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
        models = tuple(one for one in architectures() if (one.family in HELD_OUT_FAMILIES) == held_out)
        return cls(list_set=list_set, models=models, anchors=tuple(anchors))

    def scenario(self, index: int) -> Announced:
        """Scenario `index` of the set; the same whichever scenarios were drawn before it."""
        one = self.list_set
        index, step = divmod(index, max(len(one.sweep), 1))
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
                return _with_ratio(found, one.sweep[step]) if one.sweep else found


def _with_ratio(found: Announced, ratio: float) -> Announced:
    return replace(found, workload=replace(found.workload, shared_prefix_ratio=ratio))


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
