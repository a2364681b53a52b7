"""A card's pictures, as PNG bytes that depend on nothing but the report."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from offline.robust import losses, maps
from offline.robust.protocol import CENTRAL, ENGINE_DEFAULT, FIXED, ORACLE_SUFFIX, POLICIES, RISK, ROBUST
from offline.robust.report import CHANCE_NAMES, Report

_DPI = 72
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa8800", "#66ccee", "#aa3377", "#777777", "#000000")
_GREY = "#888888"
_ACROSS = 4
# Most scenarios lose next to nothing; drawn is what is lost beyond this.
_LEAST_REGRET = 0.005
POLICIES_PICTURE, REGRET, COVERAGE_RISK = "policies_{}.png", "regret.png", "coverage_risk.png"
RELIABILITY, LOSSES = "reliability.png", "losses.png"
MAP_BEST, MAP_GAIN = "map_best.png", "map_gain.png"
# By name, points of coverage, risk and the price of risk.
_Curves = dict[str, list[tuple[float, float, float]]]


def draw_pictures(report: Report) -> dict[str, bytes]:
    """By file name, in the order of the card. Of a bundle with closed test sets: what the calibration split has."""
    pictures: dict[str, Figure] = {}
    # A matplotlibrc of the user would change the bytes.
    with style.context("default"):
        names = judged_sets(report)
        for number, first in enumerate(range(0, len(names), _ACROSS), start=1):
            pictures[POLICIES_PICTURE.format(number)] = _policies(report, names[first : first + _ACROSS])
        if report.scenarios:
            pictures[REGRET] = _regret(report)
            pictures[LOSSES] = _losses(report)
        pictures[COVERAGE_RISK] = _coverage_and_risk(report)
        pictures[RELIABILITY] = _reliability(report)
        if maps.set_of(report) is not None:
            pictures[MAP_BEST] = maps.draw_best(report)
            pictures[MAP_GAIN] = maps.draw_gain(report)
        return {name: _png(figure) for name, figure in pictures.items()}


def judged_sets(report: Report) -> tuple[str, ...]:
    """The opened sets without those of the oracles, central ones first."""
    names = [name for name in report.evaluation["test_sets"] if not name.endswith(ORACLE_SUFFIX)]
    return tuple(sorted(names, key=lambda name: (name not in CENTRAL, name)))


def _main_sets(report: Report) -> tuple[str, ...]:
    """At most four that fit into one picture: the central ones if there are any."""
    names = judged_sets(report)
    return tuple(name for name in names if name in CENTRAL) or names[:_ACROSS]


def _title(figure: Figure, report: Report, text: str) -> None:
    figure.suptitle(f"{report.manifest.name}, {report.manifest.evidence}: {text}", fontsize=10)


def _policies(report: Report, names: Sequence[str]) -> Figure:
    """Violations above goodput for each set; of one set beside each other."""
    alone = len(names) == 1
    figure = Figure(figsize=(9, 2.9) if alone else (3 * max(len(names), 3), 5.4), layout="constrained")
    _title(figure, report, f"policy − {ENGINE_DEFAULT}, paired 95 % interval (hollow: no interval)")
    grid = figure.subplots(*((1, 2) if alone else (2, len(names))), squeeze=False, sharey=True)
    pairs = [tuple(grid[0])] if alone else list(zip(*grid, strict=True))
    for name, (violations, goodput) in zip(names, pairs, strict=True):
        table = report.evaluation["test_sets"][name]
        base = table["policies"][ENGINE_DEFAULT]
        _forest(violations, table, "slo_violation_rate", 100.0)
        _forest(goodput, table, "goodput_tps", 1.0)
        violating = f"{100 * base['slo_violation_rate']:.1f} % violate"
        violations.set_title(f"{name}, n = {table['n']:,}\ndefault: {violating}", fontsize=9)
        violations.set_xlabel("SLO violations, points", fontsize=8)
        goodput.set_title(f"default: {base['goodput_tps']:,.0f} tok/s", fontsize=9)
        goodput.set_xlabel("goodput, tok/s", fontsize=8)
    return figure


def _forest(axes: Axes, table: dict[str, Any], metric: str, scale: float) -> None:
    names = [name for name in POLICIES if name in table["policies"] and name != ENGINE_DEFAULT]
    for row, name in enumerate(names):
        colour = _COLOURS[1] if name == ROBUST else _COLOURS[0]
        one = table["comparisons"].get(f"{name}-vs-{ENGINE_DEFAULT}")
        if one is None:
            delta = table["policies"][name][metric] - table["policies"][ENGINE_DEFAULT][metric]
            axes.plot([scale * delta], [row], "o", color=colour, markerfacecolor="none")
            continue
        axes.plot([scale * end for end in one[metric]["ci"]], [row, row], color=colour, linewidth=2)
        axes.plot([scale * one[metric]["delta"]], [row], "o", color=colour, markersize=5)
    axes.axvline(0, color=_GREY, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(axis="x", labelsize=8)


def _regret(report: Report) -> Figure:
    names = [name for name in _main_sets(report) if name in report.scenarios]
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    _title(figure, report, "regret of expected utility against the best in hindsight, by scenario")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        columns = report.scenarios[name]
        base = np.maximum(np.asarray(columns["gain_of_the_best"], dtype=np.float64), 0.0)
        for values, policy, colour in (
            (base, ENGINE_DEFAULT, _GREY),
            (losses.regrets(columns), ROBUST, _COLOURS[1]),
        ):
            above = 100 * (1 - np.arange(1, len(values) + 1) / len(values))
            p95 = float(np.quantile(values, 0.95))
            axes.step(np.sort(values), above, where="post", color=colour, label=f"{policy}: p95 {p95:.3f}")
        axes.set_xlim(_LEAST_REGRET, None)
        axes.set_ylim(0, 1.05 * max(100 * float((base > _LEAST_REGRET).mean()), 1.0))
        axes.set_title(f"{name}, n = {len(base):,}", fontsize=9)
        axes.set_xlabel(f"regret, from {_LEAST_REGRET:g} on", fontsize=8)
        axes.legend(fontsize=8, loc="upper right")
    figure.axes[0].set_ylabel("% of scenarios with more", fontsize=8)
    return figure


def _losses(report: Report) -> Figure:
    figure = Figure(figsize=(9, 1.2 + 0.4 * len(report.scenarios)), layout="constrained")
    _title(figure, report, f"utility that {ROBUST} loses against the best in hindsight, mean per scenario")
    axes = figure.subplots()
    names = [name for name in judged_sets(report) if name in report.scenarios]
    start = np.zeros(len(names))
    for reason, colour in zip(losses.REASONS, ("#bbbbbb", "#4477aa", "#ccbb44", "#ee6677"), strict=True):
        lost = np.array([losses.losses_of(report.scenarios[name])[reason].lost for name in names])
        axes.barh(names, lost, left=start, color=colour, label=reason)
        start += lost
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("utility", fontsize=8)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _coverage_and_risk(report: Report) -> Figure:
    chosen = report.evaluation["calibration"]["rule"]["risk_price"]
    tables = {name: report.evaluation["test_sets"][name] for name in _main_sets(report)}
    tables = {name: table for name, table in tables.items() if "coverage_risk" in table}
    panels = 2 if tables else 1
    figure = Figure(figsize=(5.3 * panels, 3.8), layout="constrained")
    _title(figure, report, f"coverage against risk{', price of risk from high to low' if tables else ''}")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _of_the_calibration(axes[0], report.evaluation["calibration"]["rows"], chosen)
    if tables:
        _of_the_sets(axes[1], tables, chosen)
    return figure


def _of_the_calibration(axes: Axes, steps: list[dict[str, Any]], chosen: float) -> None:
    rows = [row for row in steps if "risk_price" in row]
    curves: _Curves = {}
    for base, key in ((ENGINE_DEFAULT, "default"), (FIXED, "fixed")):
        bounds = [max(one["upper95"][key] for one in row["by_group"].values()) for row in rows]
        curves[f"than {base}, worst group's 95 % bound"] = [
            (row["coverage"], bound, row["risk_price"]) for row, bound in zip(rows, bounds, strict=True)
        ]
        curves[f"than {base}, share"] = [(row["coverage"], row["worse"][key], row["risk_price"]) for row in rows]
    _curves(axes, curves, chosen, "% of the calibration split's lists with flags set")
    axes.set_ylabel("% of draws that flags made worse", fontsize=9)
    axes.legend(fontsize=8, loc="upper left", title=f"★: the bundle's price, {chosen:g}", title_fontsize=8)


def _of_the_sets(axes: Axes, tables: dict[str, Any], chosen: float) -> None:
    """Curves against the engine's default; of candidate 0, tables have the risk at the bundle's own price alone."""
    curves: _Curves = {
        name: [
            (point["coverage_where_it_matters"], point["worse_rate"], point["risk_price"])
            for point in table["coverage_risk"]
        ]
        for name, table in tables.items()
    }
    _curves(axes, curves, chosen, "% with flags set where the choice matters, test sets, in support")
    shares = [table["risk"][FIXED]["in support"]["value"] for table in tables.values()]
    for number, (points, share) in enumerate(zip(curves.values(), shares, strict=True)):
        (covered,) = (coverage for coverage, _, price in points if price == chosen)
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot([100 * covered], [100 * share], "D", color=colour, markerfacecolor="none")
    axes.set_ylim(0, max(300 * RISK, 110 * max(shares)))
    axes.set_ylabel(f"% of draws worse than {ENGINE_DEFAULT}", fontsize=9)
    axes.legend(fontsize=8, loc="upper left", title=f"◇: worse than {FIXED}, any answer", title_fontsize=8)


def _curves(axes: Axes, curves: _Curves, chosen: float, label: str) -> None:
    for number, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        x, y, _ = (100 * np.array(values) for values in zip(*points, strict=True))
        axes.plot(x, y, ".-", color=colour, label=name, linewidth=1)
        star = [point for point in points if point[2] == chosen]
        axes.plot([100 * p[0] for p in star], [100 * p[1] for p in star], "*", color=colour, markersize=13)
    axes.axhline(100 * RISK, color=_GREY, linewidth=1, linestyle="--")
    axes.set_xlabel(label, fontsize=9)
    # What matters is around the goal; without any price of risk the curves go far beyond.
    axes.set_ylim(0, 300 * RISK)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _reliability(report: Report) -> Figure:
    evaluation = report.evaluation
    tables = {"calibration split": evaluation["calibration"]["reliability"]} | {
        name: evaluation["test_sets"][name]["reliability"]
        for name in _main_sets(report)
        if "reliability" in evaluation["test_sets"][name]
    }
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    _title(figure, report, "predicted chance against what happened, over draws and configurations in support")
    for axes, (chance, label) in zip(figure.subplots(1, len(CHANCE_NAMES)), CHANCE_NAMES.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=_GREY, linewidth=1)
        for number, (name, table) in enumerate(tables.items()):
            bins = [one for one in table[chance]["bins"] if one["n"]]
            axes.plot(
                [one["predicted"] for one in bins],
                [one["happened"] for one in bins],
                ".-",
                color=_COLOURS[number % len(_COLOURS)],
                linewidth=1,
                label=f"{name}: ECE {table[chance]['ece']:.4f}",
            )
        axes.set_xlabel(f"predicted: {label}", fontsize=9)
        axes.set_ylabel("happened", fontsize=9)
        axes.legend(fontsize=7, loc="upper left")
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # Without this, matplotlib writes its own version into the file.
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None}, pil_kwargs={"optimize": True})
    return buffer.getvalue()
