"""Cells measured on a real server beside the same cells simulated with step times measured on such a server."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bench_runner.files import read_json
from bench_runner.kv_cache import BLOCK
from bench_runner.measurement import percentile
from bench_runner.plan import Plan
from bench_runner.simulator import Load, SimulationSettings, Window, simulate
from bench_runner.step_time import StepTable
from service.domain.cell import CellKey, CellResult
from service.domain.errors import ArtefactError

METRICS: Mapping[str, str] = {
    "output_throughput_tps": "tokens/s",
    "ttft_p50_ms": "p50 TTFT, ms",
    "ttft_p95_ms": "p95 TTFT, ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric of a cell: as measured over all repetitions, the repetitions' range, and as predicted.

    low and high are None where there was one repetition, which says nothing about noise.
    """

    measured: float
    low: float | None
    high: float | None
    predicted: float

    @property
    def error(self) -> float:
        """(predicted − measured) ÷ measured."""
        return self.predicted / self.measured - 1

    @property
    def noise(self) -> float | None:
        """Half the range of the repetitions ÷ measured: what measuring again may change."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.measured

    @property
    def within_range(self) -> bool | None:
        """Whether the prediction is no worse than one of the repetitions."""
        return None if self.low is None or self.high is None else self.low <= self.predicted <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCell:
    """A cell whose row is ok. invalid_cause: why the row is no label, None if it is one."""

    key: CellKey
    metrics: Mapping[str, Compared]
    invalid_cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a cell's server said about itself, in the simulator's units."""

    kv_blocks: int
    ramp_s: float

    @classmethod
    def read(cls, path: Path) -> "ServerFacts":
        """From the run file of a server; ArtefactError if its blocks are not those of the simulator."""
        content = read_json(path)
        try:
            config: Mapping[str, str] = content["cache_config"]
            block, blocks = int(config["block_size"]), int(config["num_gpu_blocks"])
            ramp_s = float(content["protocol"]["ramp_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtefactError(f"{path}: no block size, number of blocks or ramp ({error}); sweep again") from error
        if block != BLOCK:
            raise ArtefactError(
                f"{path}: blocks of {block} tokens, the simulator has {BLOCK}; "
                f"sweep with --server-args=--block-size={BLOCK}"
            )
        return cls(kv_blocks=blocks, ramp_s=ramp_s)


def compare_cell(
    result: CellResult,
    run: Mapping[str, Any],
    *,
    plan: Plan,
    facts: ServerFacts,
    table: StepTable,
    settings: Callable[[float], SimulationSettings],
) -> ComparedCell:
    """Simulates the cell once per repetition that was measured. settings: by the ramp in milliseconds."""
    each: Sequence[Mapping[str, Any]] = run["each"]
    predicted = _predicted(
        result, plan=plan, facts=facts, table=table, settings=settings(1000 * facts.ramp_s), repetitions=len(each)
    )
    metrics = {}
    for name in METRICS:
        measured, values = getattr(result, name), [item[name] for item in each if item[name] is not None]
        found = predicted[name]
        if measured and found is not None:
            spread = (min(values), max(values)) if len(values) > 1 else (None, None)
            metrics[name] = Compared(measured=measured, low=spread[0], high=spread[1], predicted=found)
    return ComparedCell(key=result.key, metrics=metrics, invalid_cause=run.get("invalid_cause"))


def _predicted(
    result: CellResult,
    *,
    plan: Plan,
    facts: ServerFacts,
    table: StepTable,
    settings: SimulationSettings,
    repetitions: int,
) -> dict[str, float | None]:
    observed = [
        simulate(
            Load.of(result.workload).stream(),
            plan.candidate(result.key),
            kv_blocks=facts.kv_blocks,
            table=table,
            settings=settings,
            window=Window(warm_up_ms=1000 * plan.warm_up_s, length_ms=1000 * plan.window_s),
            seed=(plan.scenario_seed(result.key) + index) % 2**64,
        )
        for index in range(repetitions)
    ]
    ttft_ms = np.concatenate([item.ttft_ms for item in observed])
    return {
        "output_throughput_tps": sum(item.tokens for item in observed) / (plan.window_s * repetitions),
        "ttft_p50_ms": percentile(ttft_ms, 50),
        "ttft_p95_ms": percentile(ttft_ms, 95),
    }


def ordered_alike(cells: Iterable[ComparedCell]) -> tuple[int, int]:
    """Pairs of configurations of one scenario whose measured throughputs do not overlap: (simulated alike, all)."""
    by_scenario: dict[str, list[Compared]] = {}
    for cell in cells:
        if "output_throughput_tps" in cell.metrics:
            by_scenario.setdefault(cell.key.scenario_id, []).append(cell.metrics["output_throughput_tps"])
    alike = total = 0
    for metrics in by_scenario.values():
        for one, other in combinations(metrics, 2):
            slow, fast = sorted((one, other), key=lambda metric: metric.measured)
            if slow.high is None or fast.low is None or slow.high >= fast.low:
                continue
            total += 1
            alike += slow.predicted < fast.predicted
    return alike, total


def cell_lines(cells: Sequence[ComparedCell]) -> list[str]:
    """A Markdown table: measured ± half the range of the repetitions, predicted beside it."""
    head = [f"{text} measured | predicted" for text in METRICS.values()]
    lines = [f"| configuration | workload | clients | {' | '.join(head)} |", "| --- " * (3 + 2 * len(METRICS)) + "|"]
    for cell in cells:
        flag = f" ({cell.invalid_cause})" if cell.invalid_cause else ""
        columns = [_columns(cell.metrics.get(name)) for name in METRICS]
        lines.append(
            f"| {cell.key.config_id}{flag} | {cell.key.workload} | {cell.key.concurrency} | {' | '.join(columns)} |"
        )
    return lines


def _columns(metric: Compared | None) -> str:
    if metric is None:
        return "– | –"
    noise = "" if metric.noise is None else f" ± {_number(metric.noise * metric.measured)}"
    return f"{_number(metric.measured)}{noise} | {_number(metric.predicted)} ({metric.error:+.0%})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary_lines(cells: Sequence[ComparedCell]) -> list[str]:
    """A Markdown table: medians over the cells of the prediction's error and of the measurement's own noise."""
    lines = ["| | " + " | ".join(METRICS.values()) + " |", "| --- " * (1 + len(METRICS)) + "|"]
    columns = [[cell.metrics[name] for cell in cells if name in cell.metrics] for name in METRICS]
    rows: tuple[tuple[str, Callable[[Sequence[Compared]], str]], ...] = (
        ("error of the prediction, median (largest)", lambda metrics: _median([abs(m.error) for m in metrics])),
        ("noise of the measurement, median (largest)", lambda metrics: _median([m.noise for m in metrics])),
        ("predictions inside the range of the repetitions", _inside),
    )
    lines += [f"| {name} | {' | '.join(text(metrics) for metrics in columns)} |" for name, text in rows]
    return lines


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0%} ({max(known):.0%})" if known else "–"


def _inside(metrics: Sequence[Compared]) -> str:
    known = [metric.within_range for metric in metrics if metric.within_range is not None]
    return f"{sum(known)} of {len(known)}" if known else "–"
