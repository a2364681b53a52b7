"""FIDELITY.md: how far the simulator is from real machines, section by section, from committed measurements."""

from collections.abc import Sequence

import numpy as np

from bench_runner.batch_sweep import BatchComparison, milliseconds_per_sequence
from bench_runner.published_summary import PublishedSummary
from bench_runner.run_comparison import (
    ADDED,
    APART_FITTED,
    AS_PRODUCT,
    HIDDEN,
    UNFITTED,
    RunComparison,
    held_share,
)
from bench_runner.run_errors import LATENCIES, STATISTICS
from service.domain.error_bands import BAND_METRICS, ErrorBands
from service.domain.regime import REGIMES

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
_SERIES = {
    "running": "requests running",
    "waiting": "requests waiting",
    "prompt_tps": "prompt tokens/s",
    "output_tps": "output tokens/s",
    "kv_share": "share of the KV cache",
}


def percent(value: float) -> str:
    """A relative error as a reader expects it."""
    return f"{value:+.1%}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def engine_lines(name: str, comparison: RunComparison, requests: int) -> list[str]:
    """What was measured, and what the simulation of it rests on."""
    engine, best = comparison.engine, comparison.simulated[comparison.best]
    steps = len(best.steps.end_ms)
    outside = {kind: count for kind, count in best.beyond.items() if count}
    covered = (
        f"none of {steps:,} steps lies beyond the profile"
        if not outside
        else "beyond the profile, so extrapolated by continuing the last segment, are "
        + ", ".join(f"{count:,} of {steps:,} steps in {kind}" for kind, count in outside.items())
    )
    mixed = "" if comparison.has_mixed else " The profile has no steps of both prompts and decodes: they add up."
    same = engine.engine_version == comparison.profile_version
    version = "" if same else f" The profile is of vLLM {comparison.profile_version}."
    return [
        f"`{name}`: {requests} requests of a trace to {engine.model} on one {engine.gpu}, vLLM "
        f"{engine.engine_version}, {engine.dtype}, max_num_seqs {engine.max_num_seqs}, max_num_batched_tokens "
        f"{engine.max_num_batched_tokens}. The simulated engine has {comparison.kv_blocks:,} blocks of KV cache "
        f"({comparison.kv_source}); sequences hold up to {held_share(best):.0%} of it, and {best.preemptions} are "
        f"preempted. Step times are those of the layer profile `{comparison.profile_name}`: {covered}.{mixed}{version}",
    ]


def fit_lines(comparison: RunComparison) -> list[str]:
    """What was fitted, on what, and how sure that is."""
    fit = comparison.fit
    if fit is None:
        given, without = (comparison.errors(name)["tpot"]["mean"] for name in (comparison.best, UNFITTED))
        own_ms = comparison.step_ms * without / (without - given)
        return [
            f"Nothing was fitted on this run: {comparison.step_ms:.2f} ms per step come from the other one. Mean "
            f"TPOT would be unbiased with {own_ms:.2f} ms here, so **that number belongs to a GPU and its profile** "
            "and cannot be taken elsewhere; what is between the two rows is how wrong a GPU without a measured run "
            "may be.",
        ]
    others = "; ".join(f"{value:.2f} ms from {name}" for name, value in fit.others.items())
    return [
        f"**Fitted: {fit.step_ms:.2f} ms per step** [{fit.low_ms:.2f}, {fit.high_ms:.2f}], one number, so that the "
        f"simulated TPOT of the {fit.requests} requests that ended in the first {fit.until_ms / 1000:.0f} s is "
        "unbiased (95 % interval of a bootstrap over blocks of neighbouring requests). Everything else is a check. "
        f"The same rule elsewhere, unused: {others}. It is the time between steps and in kernels that the profile "
        "does not have; under asynchronous scheduling it is not the host's work, which hides behind the GPU.",
    ]


def error_lines(comparison: RunComparison, published: PublishedSummary | None) -> list[str]:
    """Relative errors by statistic, one row for each assumption and one for the published simulator."""
    head = ["(simulated − measured) ÷ measured", *(f"{LABELS[n]} {s}" for n in LATENCIES for s in STATISTICS)]
    rows = [["measured, ms", *(f"{comparison.measured[n][s]:,.1f}" for n in LATENCIES for s in STATISTICS)]]
    for assumption in (comparison.best, UNFITTED, HIDDEN, ADDED, AS_PRODUCT, APART_FITTED):
        errors = comparison.errors(assumption)
        label = f"**{assumption}**" if assumption == comparison.best else assumption
        rows.append([label, *(percent(errors[n][s]) for n in LATENCIES for s in STATISTICS)])
    if published is not None:
        errors_there = [percent(published.errors[n][s]) for n in LATENCIES for s in STATISTICS]
        rows.append(["the simulator that the run was published with", *errors_there])
    return table(head, rows)


def series_lines(errors: dict[str, dict[str, float]]) -> list[str]:
    """Mean error and RMSE over the seconds of the run."""
    rows = [
        [_SERIES[name], f"{of['measured_mean']:,.4g}", f"{of['mean_error']:+,.3g}", f"{of['rmse']:,.3g}"]
        for name, of in errors.items()
    ]
    lines = table(["every second", "measured mean", "mean error", "RMSE"], rows)
    if "kv_share" not in errors:
        lines += ["", "The run reports a KV use of 0 throughout, so KV use is simulated only."]
    return lines


def batch_lines(comparisons: Sequence[BatchComparison], step_ms: float) -> list[str]:
    """Decode times of 2024's engines by batch size: measured, and as simulated for today's."""
    rows, slopes, simulated = [], [], []
    for model in dict.fromkeys(comparison.row.model for comparison in comparisons):
        of_model = [comparison for comparison in comparisons if comparison.row.model == model]
        places = [c.row.max_num_seqs for c in of_model]
        slopes.append(milliseconds_per_sequence(places, [c.row.tpot_ms for c in of_model]))
        simulated.append(milliseconds_per_sequence(places, [c.assumed_tpot_ms for c in of_model]))
        rows += [
            [
                model.split("/")[-1],
                str(c.row.max_num_seqs),
                f"{c.row.tpot_ms:.1f}",
                f"{c.assumed_tpot_ms:.1f} ({percent(c.assumed_tpot_ms / c.row.tpot_ms - 1)})",
                f"{c.fitted_tpot_ms:.1f} ({percent(c.fitted_tpot_ms / c.row.tpot_ms - 1)})",
            ]
            for c in of_model
        ]
    return [
        "The ML.ENERGY leaderboard v2 has TPOT by max_num_seqs on one H100, of a vLLM of 2024 whose version it does "
        "not say. The simulator, with the product's H100 tables and today's settings, is **far below it**: per further "
        f"place the measured token takes {min(slopes):.2f} to {max(slopes):.2f} ms longer, the simulated one "
        f"{min(simulated):.2f} to {max(simulated):.2f} ms. Whether that is the host's work of a two years older "
        "engine, the load generator or the kernels cannot be told apart here. **So neither the assumed nor the "
        "fitted value holds on these runs, and they are in no error band.**",
        "",
        *table(
            [
                "model",
                "max_num_seqs",
                "measured TPOT, ms",
                "simulated, assumed settings",
                f"simulated, {step_ms:.2f} ms a step",
            ],
            rows,
        ),
    ]


def band_lines(bands: ErrorBands) -> list[str]:
    """The content of error_bands.json for people."""
    rows = []
    for evidence, by_metric in bands.bands.items():
        for metric in BAND_METRICS:
            cells = []
            for regime in REGIMES:
                band = by_metric[metric][regime]
                known = band.bias is not None and band.low is not None and band.high is not None
                cells.append(
                    f"{percent(band.bias or 0)} [{percent(band.low or 0)}, {percent(band.high or 0)}], {band.n}"
                    if known
                    else f"– ({band.reason})"
                )
            rows.append([evidence, metric, *cells])
    return table(["evidence", "metric", *REGIMES], rows)


def worst(errors: dict[str, dict[str, float]]) -> float:
    """The largest absolute error of any statistic."""
    return float(np.max([abs(value) for of_latency in errors.values() for value in of_latency.values()]))
