"""The maps of a card: over prompt × concurrency, which configuration is best and what the best gains."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offline.robust.curves import CONCURRENCY_EDGES, PROMPT_EDGES
from offline.robust.protocol import TEST_SETS
from offline.robust.report import Report

# The set that is drawn from the whole of the trained space comes first.
_ORDER = ("T6-typical", "T2", *TEST_SETS)
# Where less is gained, several are as good as one another and the first of them would be shown.
ALL_ALIKE = 0.005
_SHADES = ("#88ccee", "#ddcc77", "#cc6677", "#44aa99", "#aa4499", "#999933", "#6699cc", "#ee8866", "#bbcc33", "#aaaaaa")


def set_of(report: Report) -> str | None:
    """The set whose map is shown."""
    tables = report.evaluation["test_sets"]
    return next((name for name in _ORDER if tables.get(name, {}).get("map")), None)


def draw_best(report: Report) -> Figure:
    """Which configuration is best most often; an empty field: no scenario."""
    figure, axes, cells = _begin(report, "best in hindsight most often, sequences-tokens-memory")
    apart = [cell for cell in cells if cell["gain"] > ALL_ALIKE]
    kinds = sorted({cell["best"] for cell in apart})
    shade = {kind: _SHADES[number % len(_SHADES)] for number, kind in enumerate(kinds)}
    for cell in cells:
        row, column = position(cell)
        alike = cell["gain"] <= ALL_ALIKE
        sides, ends = [column - 0.5, column + 0.5, column + 0.5, column - 0.5], np.repeat([row - 0.5, row + 0.5], 2)
        axes.fill(sides, ends, "#eeeeee" if alike else shade[cell["best"]])
        text = "–" if alike else f"{_short(cell['best'])}\n{100 * cell['best_share']:.0f} % of {cell['n']}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8)
    axes.set_title("of equals the first candidate; –: nothing gains; *: without prefix caching", fontsize=8)
    return figure


def draw_gain(report: Report) -> Figure:
    """What the best gains over the engine's default, and how often flags are set; an empty field: no scenario."""
    figure, axes, cells = _begin(report, "what the best in hindsight gains over the engine's default")
    grid = np.full((len(PROMPT_EDGES) - 1, len(CONCURRENCY_EDGES) - 1), np.nan)
    for cell in cells:
        grid[position(cell)] = cell["gain"]
    axes.imshow(grid, cmap="YlGn", vmin=0.0, aspect="auto", origin="lower")
    for cell in cells:
        row, column = position(cell)
        text = f"{cell['gain']:.3f}\n{100 * cell['flags_set']:.0f} %"
        dark = cell["gain"] > 0.6 * float(np.nanmax(grid))
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_title("mean gain of expected utility; how often flags are set", fontsize=8)
    return figure


def _begin(report: Report, text: str) -> tuple[Figure, Axes, list[dict[str, Any]]]:
    name = set_of(report)
    if name is None:
        raise ValueError("no test set was opened, so there is no map; ask set_of before")
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    figure.suptitle(f"{report.manifest.name}, {report.manifest.evidence}, {name}: {text}", fontsize=9)
    axes = figure.subplots()
    for edges, place in ((CONCURRENCY_EDGES, axes.set_xticks), (PROMPT_EDGES, axes.set_yticks)):
        labels = [f"{low:,}–{high - 1:,}" for low, high in pairwise(edges)]
        place(range(len(labels)), labels, fontsize=8)
    axes.set_xlim(-0.5, len(CONCURRENCY_EDGES) - 1.5)
    axes.set_ylim(-0.5, len(PROMPT_EDGES) - 1.5)
    axes.set_xlabel("concurrent clients, announced", fontsize=8)
    axes.set_ylabel("prompt tokens, announced", fontsize=8)
    return figure, axes, report.evaluation["test_sets"][name]["map"]


def position(cell: dict[str, Any]) -> tuple[int, int]:
    """Row (prompt) and column (concurrency) of a cell."""
    return PROMPT_EDGES.index(cell["prompt_tokens"][0]), CONCURRENCY_EDGES.index(cell["concurrency"][0])


def _short(config_id: str) -> str:
    """s512-b8192-g0.85-p1 as 512-8192-.85; without prefix caching with a mark."""
    if not config_id.startswith("s"):
        return "default"
    sequences, tokens, memory, prefix = (part[1:] for part in config_id.split("-"))
    return f"{sequences}-{tokens}-{memory[1:]}" + ("" if prefix == "1" else "*")
