"""The fit to the published dev table as a picture: how the least misfit depends on each parameter."""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context, style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench_runner.published_cells import RULES

_COLOURS = dict(zip(RULES, ("#4477aa", "#ee9955"), strict=True))


def draw(fit: Mapping[str, Any]) -> bytes:
    """A PNG of a fit record; equal records give equal bytes."""
    with style.context("default"), rc_context({"svg.hashsalt": "published"}):
        names = list(fit["ranges"])
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
            for rule in RULES:
                found = fit["rules"][rule]
                known = [(x, y) for x, y in found["profile"][name] if y is not None]
                axes.plot(*zip(*known, strict=True), "o-", markersize=3, linewidth=1, color=_COLOURS[rule], label=rule)
                axes.axhline(found["misfit"]["limit"], color=_COLOURS[rule], linestyle=":", linewidth=1)
            axes.axvline(fit["assumed"]["values"][name], color="#bb2222", linestyle="--", linewidth=1, label="assumed")
            axes.set_xscale("log")
            axes.set_xlabel(name)
            axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("least misfit")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        FigureCanvasAgg(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    return buffer.getvalue()
