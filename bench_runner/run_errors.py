"""How far a simulated run is from the measured one: percentiles, seconds, and errors in each regime."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.measured_run import MS_PER_S, MeasuredRun, TimeSeries
from bench_runner.trace_driven import SimulatedRun
from service.domain.error_bands import BandMetric
from service.domain.regime import Regime, regime_of_state

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "latency")
# Windows of a run over which throughput is compared, and neighbours whose latencies are averaged.
WINDOW_S = 2
NEIGHBOURS = 5
# From this share of the KV cache on, memory is why a request waits although there is a place for it.
FULL = 0.95


def statistics_of(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and percentiles by linear interpolation, without the values that are undefined."""
    known = values[np.isfinite(values)]
    return {
        "mean": float(known.mean()),
        **{name: float(np.percentile(known, int(name[1:]))) for name in STATISTICS[1:]},
    }


def latency_statistics(run: MeasuredRun | SimulatedRun) -> dict[str, dict[str, float]]:
    """{latency: {statistic: milliseconds}} of a run."""
    source = run.requests if isinstance(run, MeasuredRun) else run
    return {name: statistics_of(getattr(source, f"{name}_ms")) for name in LATENCIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSeconds:
    """[seconds] arrays at the times of a TimeSeries: the same quantities, the KV share, and the regime."""

    prompt_tps: NDArray[np.float64]
    output_tps: NDArray[np.float64]
    running: NDArray[np.float64]
    waiting: NDArray[np.float64]
    kv_share: NDArray[np.float64]
    prefill_share: NDArray[np.float64]
    regimes: list[Regime]


def simulated_seconds(
    run: SimulatedRun, arrival_ms: NDArray[np.float64], end_ms: NDArray[np.float64]
) -> SimulatedSeconds:
    """What the simulated engine did in the second before each end_ms. arrival_ms: [requests]."""
    steps = run.steps
    last = np.searchsorted(steps.end_ms, end_ms, side="right")
    first = np.searchsorted(steps.end_ms, end_ms - MS_PER_S, side="right")
    before = np.maximum(last - 1, 0)
    active = (last > 0) & (end_ms < steps.end_ms[-1])

    def per_second(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        sums = np.concatenate(([0], np.cumsum(tokens)))
        return (sums[last] - sums[first]).astype(np.float64)

    lasted = np.diff(steps.end_ms, prepend=0.0)
    busy, prefill = (np.concatenate(([0.0], np.cumsum(x))) for x in (lasted, lasted * steps.prefill_share))
    share = (prefill[last] - prefill[first]) / np.maximum(busy[last] - busy[first], 1e-9)
    running = np.where(active, steps.requests[before], 0).astype(np.float64)
    arrived = np.searchsorted(np.sort(arrival_ms), end_ms, side="right")
    ended = np.searchsorted(np.sort(run.last_ms), end_ms, side="right")
    waiting = np.maximum(arrived - ended - running, 0.0)
    kv_share = np.where(active, steps.held_tokens[before], 0) / run.kv_tokens
    emitted = np.bincount(np.searchsorted(steps.end_ms, run.first_ms, side="left"), minlength=len(steps.end_ms))
    return SimulatedSeconds(
        prompt_tps=per_second(steps.prompt_tokens),
        output_tps=per_second(steps.decodes + emitted[: len(steps.end_ms)]),
        running=running,
        waiting=waiting,
        kv_share=kv_share,
        prefill_share=share,
        regimes=[
            regime_of_state(waiting=w, running=r, kv_full=k >= FULL, prefill_share=p)
            for w, r, k, p in zip(waiting, running, kv_share, share, strict=True)
        ],
    )


def series_errors(measured: TimeSeries, simulated: SimulatedSeconds) -> dict[str, dict[str, float]]:
    """{quantity: mean, RMSE of simulated − measured, and the measured mean} over the seconds."""
    found = {}
    for name in ("running", "waiting", "prompt_tps", "output_tps", "kv_share"):
        known = getattr(measured, name)
        if known is not None:
            difference = getattr(simulated, name) - known
            found[name] = {
                "mean_error": float(difference.mean()),
                "rmse": float(np.sqrt((difference**2).mean())),
                "measured_mean": float(known.mean()),
            }
    return found


def errors_by_regime(
    measured: MeasuredRun, simulated: SimulatedRun, seconds: SimulatedSeconds
) -> Mapping[BandMetric, Mapping[Regime, list[float]]]:
    """Relative errors (simulated − measured) ÷ measured, each under the regime in which it arose.

    throughput: output tokens of windows of WINDOW_S seconds. ttft, tpot: means of NEIGHBOURS requests that arrived one
    after the other and spent most of their time in one regime, until their first token and after it.
    """
    series, requests = measured.series, measured.requests
    found: dict[BandMetric, dict[Regime, list[float]]] = {"throughput": {}, "ttft": {}, "tpot": {}}
    throughput: dict[Regime, list[float]] = defaultdict(list)
    for start in range(0, len(series.end_ms) - WINDOW_S + 1, WINDOW_S):
        window = slice(start, start + WINDOW_S)
        tokens = series.output_tps[window].sum()
        if tokens > 0:
            throughput[_most(seconds.regimes[window])].append(float(seconds.output_tps[window].sum() / tokens - 1))
    found["throughput"] = dict(throughput)
    for metric, begins, ends in (
        ("ttft", requests.queued_ms, requests.first_ms),
        ("tpot", requests.first_ms, requests.last_ms),
    ):
        of_run, of_simulation = getattr(requests, f"{metric}_ms"), getattr(simulated, f"{metric}_ms")
        lived = [
            _most(_between(seconds.regimes, series.end_ms, begin, end)) for begin, end in zip(begins, ends, strict=True)
        ]
        by_regime: dict[Regime, list[float]] = {}
        for regime in set(lived):
            rows = np.array([row for row, of_row in enumerate(lived) if of_row == regime and np.isfinite(of_run[row])])
            groups = [rows[start : start + NEIGHBOURS] for start in range(0, len(rows) - NEIGHBOURS + 1, NEIGHBOURS)]
            errors = [float(of_simulation[group].mean() / of_run[group].mean() - 1) for group in groups]
            if errors:
                by_regime[regime] = errors
        found["ttft" if metric == "ttft" else "tpot"] = by_regime
    return found


def _between(regimes: list[Regime], end_ms: NDArray[np.float64], begin: float, end: float) -> list[Regime]:
    first = min(int(np.searchsorted(end_ms, begin, side="left")), len(regimes) - 1)
    last = min(int(np.searchsorted(end_ms, end, side="left")), len(regimes) - 1)
    return regimes[first : last + 1]


def _most(regimes: list[Regime]) -> Regime:
    return Counter(regimes).most_common(1)[0][0]
