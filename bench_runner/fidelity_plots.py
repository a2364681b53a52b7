"""Pictures of a measured run beside its simulation. A matplotlibrc of the user does not change their bytes."""

import io

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench_runner.measured_run import MS_PER_S, MeasuredRun
from bench_runner.run_errors import SimulatedSeconds
from bench_runner.trace_driven import SimulatedRun

MEASURED, SIMULATED = "#4477aa", "#ee6677"
_DPI = 90


def draw_series(run: MeasuredRun, seconds: SimulatedSeconds) -> bytes:
    """Running, waiting, KV use and tokens a second over time, as PNG; equal runs give equal bytes."""
    with style.context("default"):
        return _png(_series(run, seconds), f"{run.name}: every second")


def _series(run: MeasuredRun, seconds: SimulatedSeconds) -> Figure:
    figure = Figure(figsize=(10, 9), layout="constrained")
    axes = figure.subplots(5, 1, sharex=True)
    at_s = run.series.end_ms / MS_PER_S
    for one, name, label in zip(
        axes,
        ("running", "waiting", "kv_share", "prompt_tps", "output_tps"),
        ("running", "waiting", "KV cache held", "prompt tokens/s", "output tokens/s"),
        strict=True,
    ):
        known = getattr(run.series, name)
        if known is not None:
            one.plot(at_s, known, color=MEASURED, label="measured")
        one.plot(at_s, getattr(seconds, name), color=SIMULATED, linestyle="--", label="simulated")
        one.set_ylabel(label)
        if known is None:
            one.text(0.01, 0.85, "simulated only: the run reports no KV use", transform=one.transAxes, fontsize=8)
        _plain(one)
    axes[0].legend(frameon=False)
    axes[-1].set_xlabel("seconds from the first arrival")
    return figure


def draw_distributions(run: MeasuredRun, simulated: SimulatedRun) -> bytes:
    """The distributions of TTFT, TPOT and latency over the requests, as PNG."""
    with style.context("default"):
        return _png(_distributions(run, simulated), f"{run.name}: requests")


def _distributions(run: MeasuredRun, simulated: SimulatedRun) -> Figure:
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), ("ttft", "tpot", "latency"), strict=True):
        for source, colour, label in ((run.requests, MEASURED, "measured"), (simulated, SIMULATED, "simulated")):
            values = np.sort(getattr(source, f"{name}_ms"))
            values = values[np.isfinite(values)]
            axes.plot(values, (np.arange(len(values)) + 0.5) / len(values), color=colour, label=label)
        axes.set_xlabel(f"{name.upper() if name != 'latency' else name}, ms")
        _plain(axes)
    figure.axes[0].set_ylabel("share of requests")
    figure.axes[0].legend(frameon=False)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)


def _png(figure: Figure, title: str) -> bytes:
    figure.suptitle(title, fontsize=11, parse_math=False)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()
