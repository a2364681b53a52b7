"""The sensitivity result as a section of Markdown and as a picture. Nothing is simulated here."""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context, style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SETS = {
    "reference": "of the reference",
    "dev": "of the ranker's dev set, each coming exactly as announced",
}
_LIGHT, _DARK, _LOSS = "#bbccdd", "#4477aa", "#ee9955"
_PNG = {"Software": None}


def section(result: Mapping[str, Any], *, plot: str) -> str:
    """Markdown, from a heading of level 2 on. plot: the picture's name relative to it."""
    near_tie = result["near_tie"]
    lines = [
        "## How choices depend on what is assumed",
        "",
        "Simulated. One uncertain parameter is moved at a time, the others stay as assumed; every candidate of every "
        "scenario is simulated again with the same random numbers. The choice is the fastest candidate that meets the "
        "SLO. *Loses* is the share of goodput that a choice made under the assumed values loses where the moved value "
        "is the true one (or the other way round) against the best candidate there; a choice that violates the SLO "
        f"loses everything. A change among near ties, which costs at most {near_tie:.0%} either way, is counted in "
        "*changed* and not in *beyond near ties*. The first row moves no assumption: it is what chance alone changes.",
        "",
        f"![Share of scenarios with another best candidate, and what the assumed choice loses]({plot})",
        "",
    ]
    for name, what in SETS.items():
        rows = [row for row in result["rows"] if row["set"] == name]
        if rows:
            lines += [f"### {rows[0]['scenarios']} scenarios {what}", "", *_table(rows), "", *_reading(rows), ""]
    return "\n".join(lines)


def _table(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| parameter | value | changed | beyond near ties | assumed choice loses: mean, p95, max | beyond near ties: "
        "median, max | newly violates | moved choice loses: mean, p95, max |",
        "| --- | --- | ---: | ---: | --- | --- | ---: | --- |",
    ]
    for row in rows:
        cells = [
            row["parameter"],
            row["value"],
            f"{row['changed']:.1%}",
            f"{row['changed_beyond_near_ties']:.1%}",
            _shares(row["assumed_choice_loses"], "mean", "p95", "max"),
            _shares(row["assumed_choice_loses_beyond_near_ties"], "median", "max"),
            f"{row['assumed_choice_newly_violates']:.1%}",
            _shares(row["varied_choice_loses"], "mean", "p95", "max"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _shares(distribution: Mapping[str, Any], *names: str) -> str:
    return "–" if not distribution["n"] else ", ".join(f"{distribution[name]:.1%}" for name in names)


def _reading(rows: list[Mapping[str, Any]]) -> list[str]:
    """Which parameters matter most, in one sentence that the numbers write."""
    moved = [row for row in rows if row["parameter"] != "random numbers"]
    most = max(moved, key=lambda row: row["changed_beyond_near_ties"])
    dearest = max(moved, key=lambda row: row["assumed_choice_loses"]["mean"] or 0.0)
    median = max(row["assumed_choice_loses"]["median"] or 0.0 for row in moved)
    return [
        f"Over all scenarios the median loss is at most {median:.1%} in every row. Most choices change in substance "
        f"with {most['parameter']} {most['value']} "
        f"({most['changed_beyond_near_ties']:.1%} of the scenarios); the assumed choice loses most with "
        f"{dearest['parameter']} {dearest['value']} (mean {dearest['assumed_choice_loses']['mean']:.1%})."
    ]


def draw(result: Mapping[str, Any]) -> bytes:
    """A PNG: per variation the scenarios with another best candidate, and the mean loss of the assumed choice."""
    names = [name for name in SETS if any(row["set"] == name for row in result["rows"])]
    with style.context("default"), rc_context({"svg.hashsalt": "sensitivity"}):
        figure = Figure(figsize=(11, 7), layout="constrained")
        grid = figure.subplots(1, 2 * len(names), sharey=True, squeeze=False)[0]
        for position, name in enumerate(names):
            rows = [row for row in result["rows"] if row["set"] == name]
            changes, loss = grid[2 * position], grid[2 * position + 1]
            places = range(len(rows))
            changes.barh(places, [100 * row["changed"] for row in rows], color=_LIGHT, label="changed")
            beyond = [100 * row["changed_beyond_near_ties"] for row in rows]
            changes.barh(places, beyond, color=_DARK, label="beyond near ties")
            changes.set_xlabel(f"{name}: another best,\n% of {rows[0]['scenarios']} scenarios")
            means = [100 * (row["assumed_choice_loses"]["mean"] or 0.0) for row in rows]
            loss.barh(places, means, color=_LOSS)
            loss.set_xlabel(f"{name}: mean loss,\n% of goodput")
            changes.set_yticks(places, [f"{row['parameter']} {row['value']}" for row in rows])
            changes.set_ylim(len(rows) - 0.5, -0.5)
            for axes in (changes, loss):
                axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle("One assumption moved at a time (simulated)", fontsize=11)
        FigureCanvasAgg(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100, metadata=_PNG)
    return buffer.getvalue()
