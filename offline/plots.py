"""The bundle's plots, as PNG bytes that depend on nothing but the evaluation."""

import io
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from offline.policies import FIXED, POLICIES

_DPI = 100
_DIFFERENCES = ("output_throughput_tps", "goodput_tps")


def draw_plots(evaluation: dict[str, Any]) -> dict[str, bytes]:
    """Two plots per test set, by file name: the policies' goodput and violations, and differences to FIXED."""
    plots = {}
    # A matplotlibrc of the user would change the bytes.
    with style.context("default"):
        for name, test_set in sorted(evaluation["test_sets"].items()):
            title = f"{name}, {test_set['n']} scenarios, {evaluation['evidence']} cells"
            plots[f"{name}_policies.png"] = _png(_policies(test_set, title))
            plots[f"{name}_differences.png"] = _png(_differences(test_set, title))
    return plots


def _policies(test_set: dict[str, Any], title: str) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    columns = {"goodput_tps": "goodput, tokens/s", "slo_violation_rate": "share of scenarios violating the SLO"}
    for axes, (metric, label) in zip(figure.subplots(1, 2, sharey=True), columns.items(), strict=True):
        axes.barh(POLICIES, [test_set["policies"][policy][metric] for policy in POLICIES], color="#4477aa")
        axes.set_xlabel(label)
    figure.axes[0].set_ylim(len(POLICIES) - 0.5, -0.5)
    return figure


def _differences(test_set: dict[str, Any], title: str) -> Figure:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    figure.suptitle(f"policy − {FIXED}, 95 % interval; {title}")
    names = [policy for policy in POLICIES if f"{policy}-vs-{FIXED}" in test_set["comparisons"]]
    for axes, metric in zip(figure.subplots(1, 2, sharey=True), _DIFFERENCES, strict=True):
        for row, policy in enumerate(names):
            difference = test_set["comparisons"][f"{policy}-vs-{FIXED}"][metric]
            axes.plot(difference["ci"], [row, row], color="#4477aa", linewidth=2)
            axes.plot([difference["delta"]], [row], "o", color="#4477aa")
        axes.axvline(0, color="#888888", linewidth=1)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(metric)
    figure.axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # Without this, matplotlib writes its own version into the file.
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()
