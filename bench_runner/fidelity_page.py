"""What the fidelity command puts together: a run's page, FIDELITY.md, the figures as JSON and the error bands."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench_runner.band_table import ErrorsByRegime, band_table
from bench_runner.batch_sweep import BatchComparison
from bench_runner.fidelity_plots import draw_distributions, draw_series
from bench_runner.fidelity_report import (
    LABELS,
    band_lines,
    batch_lines,
    engine_lines,
    error_lines,
    fit_lines,
    percent,
    series_lines,
)
from bench_runner.measured_run import MeasuredRun
from bench_runner.published_summary import PublishedSummary
from bench_runner.run_comparison import AS_PRODUCT, UNFITTED, RunComparison
from bench_runner.run_errors import (
    LATENCIES,
    NEIGHBOURS,
    STRETCHES,
    SimulatedSeconds,
    errors_by_regime,
    latency_statistics,
    series_errors,
    simulated_seconds,
)
from service.domain.error_bands import ErrorBands
from service.domain.regime import REGIMES, Regime

RESULT_SCHEMA_VERSION = 1
WRITTEN = "Written by `make fidelity` from what lies in [measured](measured/README.md); change nothing here."


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison with what it is about. run: None where only the statistics of the measured run are known."""

    name: str
    requests: int
    run: MeasuredRun | None
    comparison: RunComparison
    published: PublishedSummary | None

    def seconds(self, assumption: str) -> SimulatedSeconds:
        """That simulation, second by second as the run was measured."""
        if self.run is None:
            raise ValueError(f"{self.name} has no time series")
        simulated = self.comparison.simulated[assumption]
        return simulated_seconds(simulated, self.run.requests.arrival_ms, self.run.series.end_ms)

    def errors_by_regime(self) -> ErrorsByRegime:
        """Relative errors of what the product would say: nothing fitted, steps priced as its tables price them.

        Of a run that is known by its statistics, each statistic of TTFT and TPOT is one comparison.
        """
        simulated = self.comparison.simulated[AS_PRODUCT]
        if self.run is not None:
            return errors_by_regime(self.run, simulated, self.seconds(AS_PRODUCT))
        errors = self.comparison.errors(AS_PRODUCT)
        # Such a run is kept because memory bound it: without preemptions it would be no evidence for that.
        regime: Regime = "kv-bound" if simulated.preemptions else "decode-bound"
        return {metric: {regime: list(errors[metric].values())} for metric in ("ttft", "tpot")}


def run_pictures(compared: Compared) -> dict[str, bytes]:
    """{file name: PNG}; nothing for a run that is known by its statistics."""
    if compared.run is None:
        return {}
    best = compared.comparison.simulated[compared.comparison.best]
    return {
        f"{compared.name}-seconds.png": draw_series(compared.run, compared.seconds(compared.comparison.best)),
        f"{compared.name}-requests.png": draw_distributions(compared.run, best),
    }


def run_page(compared: Compared, *, pictures: str) -> list[str]:
    """The lines about one run. pictures: the folder of its pictures, as a link has it."""
    lines = [
        f"## {compared.name}",
        "",
        *engine_lines(compared.name, compared.comparison, compared.requests),
        "",
        *fit_lines(compared.comparison),
        "",
        *error_lines(compared.comparison, compared.published),
    ]
    if compared.run is not None:
        lines += ["", *series_lines(series_errors(compared.run.series, compared.seconds(compared.comparison.best)))]
        lines += [line for name in run_pictures(compared) for line in ("", f"![{name[:-4]}]({pictures}{name})")]
    return lines


def cpu_page(lines: Sequence[str]) -> list[str]:
    """Cells measured on a CPU as a page of their own."""
    return ["# Cells measured on a CPU beside simulated ones", "", *lines]


def page(
    runs: Sequence[Compared],
    batches: Sequence[BatchComparison],
    cpu_lines: Sequence[str],
    bands: ErrorBands,
    *,
    further: Sequence[str],
) -> list[str]:
    """FIDELITY.md."""
    lines = ["# Fidelity of the simulator", "", WRITTEN, "", *_in_short(runs)]
    for compared in runs:
        lines += ["", *run_page(compared, pictures="fidelity/")]
    lines += ["", "## Decode times by batch size, 2024", "", *batch_lines(batches, runs[0].comparison.step_ms)]
    lines += ["", "## A tiny model on a CPU", "", "`make fidelity-cpu` measures this again.", "", *cpu_lines]
    lines += ["", "## Error bands by regime", "", *_band_text(), "", *band_lines(bands)]
    lines += ["", "## What is not checked", "", *_unchecked()]
    return [*lines, *further]


def _in_short(runs: Sequence[Compared]) -> list[str]:
    lines = []
    for compared in runs:
        comparison = compared.comparison
        best, unfitted = comparison.errors(comparison.best), comparison.errors(UNFITTED)
        means = ", ".join(f"{LABELS[name]} {percent(best[name]['mean'])}" for name in LATENCIES)
        there = ", ".join(f"{LABELS[name]} {percent(unfitted[name]['mean'])}" for name in LATENCIES)
        line = f"- `{compared.name}`, means: {means} with {comparison.step_ms:.2f} ms a step"
        line += " (fitted on its first half)" if comparison.fit else " (fitted on the other run)"
        line += f"; {there} with nothing added"
        if compared.published is not None:
            other = ", ".join(
                f"{LABELS[name]} {percent(compared.published.errors[name]['mean'])}" for name in LATENCIES
            )
            line += f"; the simulator that it was published with: {other}"
        lines.append(f"{line}.")
    return lines


def _band_text() -> list[str]:
    return [
        "`error_bands.json` beside this file: relative errors (simulated − measured) ÷ measured, their mean, "
        "their 5th to 95th percentile, and how many there are. The simulation is the one that the product's "
        "answers rest on: nothing fitted, the host hidden behind the GPU, prompts and decodes priced apart. "
        "`measured` is what an answer about a GPU uses; `measured-cpu` stands beside it and is never mixed in. An "
        "error counts for the regime that the simulator itself was in (`service/domain/regime.py`). Throughput is "
        f"compared over stretches of a run's output tokens ({STRETCHES} of equal size), TTFT and TPOT as means of "
        f"{NEIGHBOURS} requests in a row, or, where a run is known by its statistics alone, one comparison for "
        "each statistic; such comparisons are not independent. All of it is one model on two GPUs, whose step "
        "times come from profiles of these very GPUs: on others, the error of the tables comes on top, and no "
        "band knows it.",
    ]


def _unchecked() -> list[str]:
    return [
        "- B200, H200 and H100 with a current engine: no measured run is at hand, so the tables behind the product's "
        "answers are checked by nothing but their own source.",
        "- Prefix caching, cancelled requests and other models on a GPU: no measured run has them.",
        "- The API server in front of the engine: the runs above are timed inside the engine's process.",
        "- Under memory pressure: throughput, and when requests are preempted; of that run only statistics are "
        "published, and how often its engine preempted is not among them.",
        "- Whether other GPUs also serve decodes worse beside a prompt, as both profiles here have it: the product's "
        "tables cannot say. The rows that price them apart show what that costs: much where many sequences decode "
        "(max_num_seqs 128 full), hardly anything where memory admits few.",
    ]


def error_bands(runs: Sequence[Compared], on_cpu: ErrorsByRegime) -> ErrorBands:
    """The bands of both classes of evidence."""
    gpu_reasons = dict.fromkeys(REGIMES, "no measured run on a GPU was in this regime for long")
    cpu_reasons = dict.fromkeys(REGIMES, "no cell on the CPU announces this regime, or it was not compared")
    return ErrorBands(
        bands={
            "measured": band_table({run.name: run.errors_by_regime() for run in runs}, gpu_reasons),
            "measured-cpu": band_table({"the tiny model's cells": on_cpu}, cpu_reasons),
        },
        provenance={
            "written_by": "python -m bench_runner fidelity",
            "step_ms": round(runs[0].comparison.step_ms, 4),
            "runs": [run.name for run in runs],
        },
    )


def result_of(runs: Sequence[Compared]) -> dict[str, Any]:
    """The figures of the runs for a machine to read."""
    return {"schema_version": RESULT_SCHEMA_VERSION, "runs": [_figures(run) for run in runs]}


def _figures(compared: Compared) -> dict[str, Any]:
    comparison = compared.comparison
    figures: dict[str, Any] = {
        "name": compared.name,
        "engine": asdict(comparison.engine),
        "kv_blocks": comparison.kv_blocks,
        "step_ms": round(comparison.step_ms, 4),
        "fit": None if comparison.fit is None else _rounded(asdict(comparison.fit)),
        "measured_ms": _rounded(comparison.measured),
        "simulated_ms": {name: _rounded(latency_statistics(run)) for name, run in comparison.simulated.items()},
        "errors": {name: _rounded(comparison.errors(name)) for name in comparison.simulated},
        "steps": len(comparison.simulated[comparison.best].steps.end_ms),
        "steps_beyond_profile": dict(comparison.simulated[comparison.best].beyond),
        "preemptions": comparison.simulated[comparison.best].preemptions,
    }
    if compared.published is not None:
        figures["published_errors"] = _rounded(compared.published.errors)
    if compared.run is not None:
        figures["seconds"] = _rounded(series_errors(compared.run.series, compared.seconds(compared.comparison.best)))
    return figures


def _rounded(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _rounded(value) for key, value in values.items()}
    return round(values, 4) if isinstance(values, float) else values
