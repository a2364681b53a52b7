"""Host and front-end times fitted to the published dev table of FIXED and HEUR, with what the table leaves open.

The dev table is 16 scenarios of one workload, so it says little: rates are multiples of 1/16, and one scenario at the
edge of the SLO moves two of them. Hence no single best value but every setting of a space-filling design is judged:
`misfit` is the sum of squared differences in units of TOLERANCES. The test table is not looked at here.
"""

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.plan import reference_plan
from bench_runner.published_cells import RULES, CellRunner, Rule, dev_metrics, scenarios
from bench_runner.simulator import SCHEDULER, SimulationSettings
from bench_runner.step_time import StepTables, load_step_tables
from service.domain.candidate import CANDIDATES

FIT_SCHEMA_VERSION = 1
TABLE_SOURCE = "ThakiCloud MemoryPolicy vLLM ranker, research preview, Apache-2.0: its dev table, measured on a B200"
DEV_TABLE: Mapping[str, float] = {
    "FIXED violation": 0.5625,
    "FIXED failure": 0.375,
    "FIXED goodput_tps": 593.0,
    "FIXED regret": 0.194,
    "HEUR violation": 0.5,
    "HEUR failure": 0.125,
    "HEUR goodput_tps": 682.0,
    "HEUR regret": 0.024,
}
# One scenario of 16 for a rate, 5 % for a goodput, 0.02 for a regret: what measuring the table again may change.
TOLERANCES: Mapping[str, float] = {
    name: 1 / 16 if name.endswith(("violation", "failure")) else 0.02 if name.endswith("regret") else 0.05 * value
    for name, value in DEV_TABLE.items()
}
# Log-uniform ranges in milliseconds: from next to nothing to far beyond what a healthy server takes.
RANGES: Mapping[str, tuple[float, float]] = {
    "host_step_ms": (0.3, 12.0),
    "host_sequence_ms": (0.001, 0.1),
    "request_ms": (0.3, 100.0),
    "prompt_token_ms": (0.00001, 0.02),
    "output_token_ms": (0.003, 0.3),
}
# The hypothesis of a serial stage in front of the engine was read off the test table, so what it gives there proves
# nothing. Its settings are named before the test table is compared, and reported apart from the fit.
EXPLORATORY: Mapping[str, Mapping[str, float]] = {
    "serial front end: 20 ms a request, 60 µs a token": {"request_ms": 20.0, "output_token_ms": 0.06},
    "serial front end: 30 ms a request, 2 µs a prompt token": {"request_ms": 30.0, "prompt_token_ms": 0.002},
    "serial front end: 40 ms a request": {"request_ms": 40.0},
    "serial front end: 60 ms a request": {"request_ms": 60.0},
    "tokens one by one: 120 µs a token": {"output_token_ms": 0.12},
}
SEED = 20_261
FIRST_ROUND, SECOND_ROUND, KEPT = 1024, 192, 24
REPEATS = 12
# 95 % of one parameter's chi-squared.
PROFILE_RISE = 3.84
PROFILE_BINS = 12
_SOURCES = (
    "published_cells",
    "published_fit",
    "simulator",
    "engine",
    "scheduler",
    "kv_cache",
    "front_end",
    "step_time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One setting with the dev table's numbers that it gives, by rule."""

    values: Mapping[str, float]
    metrics: Mapping[Rule, Mapping[str, float | None]]

    def misfit(self, rule: Rule) -> float:
        """Sum over the table of ((simulated − published) ÷ tolerance)²; infinite where a number is undefined."""
        total = 0.0
        for name, value in DEV_TABLE.items():
            found = self.metrics[rule][name]
            total += math.inf if found is None else ((found - value) / TOLERANCES[name]) ** 2
        return total

    def within(self, rule: Rule) -> list[str]:
        """The numbers of the table that it gives within their tolerance."""
        found = self.metrics[rule]
        return [
            name
            for name, value in DEV_TABLE.items()
            if (given := found[name]) is not None and abs(given - value) <= TOLERANCES[name] * (1 + 1e-9)
        ]

    def to_json(self) -> dict[str, Any]:
        """As a line of the work file."""
        return {"values": dict(self.values), "metrics": {rule: dict(found) for rule, found in self.metrics.items()}}


def sources_sha256() -> str:
    """One digest over what decides a fit: its design, the simulator's sources, the step tables."""
    folder = Path(__file__).parent
    parts = {name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in _SOURCES}
    parts |= {"step tables": load_step_tables().sha256, "plan": reference_plan().sha256, "scheduler": SCHEDULER}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def settings_of(values: Mapping[str, float]) -> SimulationSettings:
    """The assumed settings with these in their place."""
    chosen: dict[str, Any] = dict(values)
    return replace(SimulationSettings(), **chosen)


def assumed_values() -> dict[str, float]:
    """The fitted parameters' values that every other result of the project assumes."""
    return {name: value for name, value in asdict(SimulationSettings()).items() if name in RANGES}


def evaluate(values: Mapping[str, float], *, tables: StepTables, reseed: int = 0) -> Evaluated:
    """The dev table's numbers under a setting: 16 scenarios × 15 candidates on the virtual clock."""
    runner = CellRunner(plan=reference_plan(), tables=tables, settings=settings_of(values), reseed=reseed)
    found = [(scenario, runner.outcomes(scenario, range(len(CANDIDATES)))) for scenario in scenarios("dev")]
    metrics = {rule: dev_metrics([(scenario, by_rule[rule]) for scenario, by_rule in found]) for rule in RULES}
    return Evaluated(values=values, metrics=metrics)


def latin_hypercube(
    rng: np.random.Generator, count: int, ranges: Mapping[str, tuple[float, float]]
) -> list[dict[str, float]]:
    """`count` settings; of each parameter one value in every of `count` equal parts of its logarithmic range."""
    columns = {}
    for name, (low, high) in ranges.items():
        share = (rng.permutation(count) + rng.random(count)) / count
        columns[name] = np.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return [{name: float(column[row]) for name, column in columns.items()} for row in range(count)]


def first_round(*, count: int = FIRST_ROUND) -> list[dict[str, float]]:
    """The assumed setting, then a design over the whole ranges."""
    return [assumed_values(), *latin_hypercube(np.random.default_rng(SEED), count, RANGES)]


def second_round(done: Sequence[Evaluated], *, count: int = SECOND_ROUND) -> list[dict[str, float]]:
    """For each rule a design over the box around the KEPT best settings of the first round."""
    found: list[dict[str, float]] = []
    for number, rule in enumerate(RULES):
        best = sorted(done, key=lambda one: one.misfit(rule))[:KEPT]
        box = {name: (min(one.values[name] for one in best), max(one.values[name] for one in best)) for name in RANGES}
        found += latin_hypercube(np.random.default_rng([SEED, number]), count, box)
    return found


def fit(
    evaluated: Callable[[Iterable[Mapping[str, float]]], Iterator[Evaluated]],
    *,
    tables: StepTables,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """The fit's record. evaluated: yields one result for each setting given, in order (from a work file where it can).

    By rule: the best setting, how far the table is met, what each parameter may be, and the settings kept for the test.
    """
    done = list(evaluated(first_round()))
    done += list(evaluated(second_round(done)))
    return {
        "schema_version": FIT_SCHEMA_VERSION,
        "evidence": "simulated",
        "table": dict(DEV_TABLE),
        "table_source": TABLE_SOURCE,
        "tolerances": dict(TOLERANCES),
        "ranges": {name: list(bounds) for name, bounds in RANGES.items()},
        "design": {"seed": SEED, "first_round": FIRST_ROUND, "second_round": SECOND_ROUND, "settings": len(done)},
        "sources_sha256": sources_sha256(),
        "exploratory": {name: dict(values) for name, values in EXPLORATORY.items()},
        "assumed": _described(done[0]),
        "noise": noise(tables, repeats=repeats),
        "rules": {rule: summary(done, rule) for rule in RULES},
    }


def noise(tables: StepTables, *, repeats: int) -> dict[str, dict[str, float]]:
    """By rule: standard deviation of each number over so many runs of the assumed setting with other random numbers."""
    runs = [evaluate(assumed_values(), tables=tables, reseed=number + 1) for number in range(repeats)]
    found: dict[str, dict[str, float]] = {}
    for rule in RULES:
        columns = {name: [one.metrics[rule][name] for one in runs] for name in DEV_TABLE}
        known = {name: [value for value in column if value is not None] for name, column in columns.items()}
        found[rule] = {name: _rounded(statistics.stdev(values)) for name, values in known.items()}
    return found


def summary(done: Sequence[Evaluated], rule: Rule) -> dict[str, Any]:
    """What the settings say under one rule.

    The misfit's expectation for a true model with tolerances as one standard deviation is 8 numbers less 5 parameters.
    Where the least misfit is above it the model is wrong or the tolerances are small, and the profile's rise is widened
    in proportion (the scale factor of Birge, Phys. Rev. 40, 207, 1932), so that intervals do not pretend otherwise.
    """
    ordered = sorted(done, key=lambda one: one.misfit(rule))
    least = ordered[0].misfit(rule)
    scale = max(1.0, least / (len(DEV_TABLE) - len(RANGES)))
    limit = least + PROFILE_RISE * scale
    inside = [one for one in ordered if one.misfit(rule) <= limit]
    counts = [len(one.within(rule)) for one in done]
    return {
        "best": _described(ordered[0])["values"],
        "best_metrics": _described(ordered[0])["metrics"][rule],
        "misfit": {"least": _rounded(least), "limit": _rounded(limit), "assumed": _rounded(done[0].misfit(rule))},
        "settings_with_every_number_within": sum(count == len(DEV_TABLE) for count in counts),
        "most_numbers_within_at_once": max(counts),
        "settings_within_by_number": {name: sum(name in one.within(rule) for one in done) for name in DEV_TABLE},
        "settings_inside": len(inside),
        "interval": {name: _span([one.values[name] for one in inside]) for name in RANGES},
        "dev_prompt_ms": {
            "best": _rounded(dev_prompt_ms(ordered[0].values)),
            "interval": _span([dev_prompt_ms(one.values) for one in inside]),
        },
        "profile": {name: _profile(done, rule, name) for name in RANGES},
        "kept": [_described(one)["values"] for one in inside[:KEPT]],
    }


def dev_prompt_ms(values: Mapping[str, float]) -> float:
    """What the front end takes for one prompt of the dev table. All have one length, so it sees this sum alone."""
    return values["request_ms"] + values["prompt_token_ms"] * scenarios("dev")[0].workload.prompt_tokens


def _span(values: Sequence[float]) -> list[float]:
    return [_rounded(min(values)), _rounded(max(values))]


def _profile(done: Sequence[Evaluated], rule: Rule, name: str) -> list[list[float | None]]:
    """(centre of the bin, least misfit in it; None where no setting lies) over the parameter's logarithmic range."""
    low, high = (math.log(bound) for bound in RANGES[name])
    edges = np.linspace(low, high, PROFILE_BINS + 1)
    values: NDArray[np.float64] = np.array([math.log(one.values[name]) for one in done])
    misfits = np.array([one.misfit(rule) for one in done])
    rows: list[list[float | None]] = []
    for left, right in itertools.pairwise(edges):
        inside = misfits[(values >= left) & (values <= right)]
        least = float(inside.min()) if len(inside) else math.inf
        rows.append([_rounded(math.exp((left + right) / 2)), _rounded(least) if math.isfinite(least) else None])
    return rows


def _described(one: Evaluated) -> dict[str, Any]:
    return {
        "values": {name: _rounded(value) for name, value in one.values.items()},
        "metrics": {
            rule: {name: None if value is None else _rounded(value) for name, value in one.metrics[rule].items()}
            for rule in RULES
        },
    }


def _rounded(value: float) -> float:
    """Five significant digits: files of equal runs are equal, and short."""
    return float(f"{value:.5g}")
