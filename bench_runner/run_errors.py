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
# Stretches of a run's output tokens over which throughput is compared, and neighbours whose latencies are averaged.
STRETCHES = 25
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
    arrived = np.searchsorted(np.sort(arrival_ms), end_ms, side="right")
    ended = np.searchsorted(np.sort(run.last_ms), end_ms, side="right")
    # An idle engine's last step was of requests that have ended.
    running = np.where(active, np.minimum(steps.requests[before], arrived - ended), 0).astype(np.float64)
    waiting = np.maximum(arrived - ended - running, 0.0)
    kv_share = np.where(running > 0, steps.held_tokens[before], 0) / run.kv_tokens
    return SimulatedSeconds(
        prompt_tps=per_second(steps.prompt_tokens),
        output_tps=per_second(_output_tokens(run)),
        running=running,
        waiting=waiting,
        kv_share=kv_share,
        prefill_share=share,
        regimes=[
            regime_of_state(waiting=w, running=r, kv_full=k >= FULL, prefill_share=p)
            for w, r, k, p in zip(waiting, running, kv_share, share, strict=True)
        ],
    )


def _output_tokens(run: SimulatedRun) -> NDArray[np.int64]:
    """[steps]: one token for each decode, and the first of every request whose prompt a step completed."""
    ends = run.steps.end_ms
    first = np.bincount(np.searchsorted(ends, run.first_ms, side="left"), minlength=len(ends))
    return run.steps.decodes + first[: len(ends)]


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
    """Relative errors (simulated − measured) ÷ measured, each under the regime that the simulator was in.

    throughput: measured ÷ simulated time for the same stretch of the run's output tokens, so that what came before does
    not count. ttft, tpot: means of NEIGHBOURS requests that arrived one after the other and spent most of their time in
    one regime, until their first token and after it.
    """
    regimes, end_ms = seconds.regimes, measured.series.end_ms
    found: dict[BandMetric, dict[Regime, list[float]]] = {"throughput": defaultdict(list), "ttft": {}, "tpot": {}}
    marks = np.linspace(0.0, 1.0, STRETCHES + 1)
    lasted = _times_of(marks, end_ms, measured.series.output_tps)
    would_last = _times_of(marks, simulated.steps.end_ms, _output_tokens(simulated))
    for real_ms, ms, begin, end in zip(
        np.diff(lasted), np.diff(would_last), would_last[:-1], would_last[1:], strict=True
    ):
        found["throughput"][_most(_between(regimes, end_ms, begin, end))].append(float(real_ms / ms - 1))
    requests = measured.requests
    found["ttft"] = _latency_errors(
        requests.ttft_ms, simulated.ttft_ms, _lived(regimes, end_ms, simulated.queued_ms, simulated.first_ms)
    )
    found["tpot"] = _latency_errors(
        requests.tpot_ms, simulated.tpot_ms, _lived(regimes, end_ms, simulated.first_ms, simulated.last_ms)
    )
    return found


def _times_of(
    shares: NDArray[np.float64], end_ms: NDArray[np.float64], tokens: NDArray[np.float64] | NDArray[np.int64]
) -> NDArray[np.float64]:
    """When each share of all tokens was out, milliseconds. tokens: out by each end_ms and not by the one before."""
    out = np.cumsum(tokens)
    grows = np.diff(out, prepend=0) > 0
    return np.interp(shares, np.concatenate(([0], out[grows])) / out[-1], np.concatenate(([0.0], end_ms[grows])))


def _lived(
    regimes: list[Regime],
    end_ms: NDArray[np.float64],
    begins_ms: NDArray[np.float64],
    ends_ms: NDArray[np.float64],
) -> list[Regime]:
    return [_most(_between(regimes, end_ms, begin, end)) for begin, end in zip(begins_ms, ends_ms, strict=True)]


def _latency_errors(
    measured_ms: NDArray[np.float64], simulated_ms: NDArray[np.float64], lived: list[Regime]
) -> dict[Regime, list[float]]:
    errors: dict[Regime, list[float]] = {}
    for regime in sorted(set(lived)):
        known = [row for row, of_row in enumerate(lived) if of_row == regime and np.isfinite(measured_ms[row])]
        groups = [known[start : start + NEIGHBOURS] for start in range(0, len(known) - NEIGHBOURS + 1, NEIGHBOURS)]
        if groups:
            errors[regime] = [float(simulated_ms[rows].mean() / measured_ms[rows].mean() - 1) for rows in groups]
    return errors


def _between(regimes: list[Regime], end_ms: NDArray[np.float64], begin: float, end: float) -> list[Regime]:
    first = min(int(np.searchsorted(end_ms, begin, side="left")), len(regimes) - 1)
    last = min(int(np.searchsorted(end_ms, end, side="left")), len(regimes) - 1)
    return regimes[first : last + 1]


def _most(regimes: list[Regime]) -> Regime:
    return Counter(regimes).most_common(1)[0][0]
