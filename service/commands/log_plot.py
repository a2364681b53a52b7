"""Lengths, arrivals and concurrency of a log as one SVG file: bars on one axis each, no library needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from service.commands.log_reader import RequestLog
from service.commands.log_workload import Concurrency

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 780, 190, 64, 40, 34, 40
TIME_BINS = 80
_SPARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Bars of equal width. heights: [bars]; ticks: (bar edge from 0 to the number of bars, label) on the axis."""

    title: str
    heights: NDArray[np.float64]
    ticks: tuple[tuple[float, str], ...]


def length_panel(title: str, tokens: NDArray[np.int64]) -> Panel:
    """How many requests have how many tokens, in bars of half a power of two."""
    first = math.floor(2 * math.log2(int(tokens.min())))
    last = math.floor(2 * math.log2(int(tokens.max()))) + 1
    edges = 2.0 ** (np.arange(first, last + 1) / 2)
    heights = np.histogram(tokens, bins=edges)[0].astype(np.float64)
    every = 2 * max(1, math.ceil((last - first) / 24))
    ticks = tuple((float(i), f"{2 ** ((first + i) // 2):,}") for i in range(first % 2, last - first + 1, every))
    return Panel(title=title, heights=heights, ticks=ticks if first >= 0 else ())


def arrival_panel(arrival_s: NDArray[np.float64]) -> Panel:
    """Requests per second over the time of the log."""
    elapsed = arrival_s - arrival_s.min()
    span = float(elapsed.max()) or 1.0
    counts = np.histogram(elapsed, bins=TIME_BINS, range=(0.0, span))[0]
    return Panel(
        title="Arrivals: requests per second over time", heights=counts * TIME_BINS / span, ticks=_time_ticks(span)
    )


def concurrency_panel(seen: Concurrency, span: float) -> Panel:
    """Mean number of requests in flight over the time of the log."""
    edges = np.linspace(0.0, span, TIME_BINS + 1)
    times = np.append(seen.starts_s, span)
    # The integral of a step function is piecewise linear, so its value at any edge is interpolated exactly.
    integral = np.concatenate([[0.0], np.cumsum(seen.count * np.diff(times))])
    heights = np.diff(np.interp(edges, times, integral)) / (span / TIME_BINS)
    return Panel(title="Requests in flight over time", heights=heights, ticks=_time_ticks(span))


def panels_of(log: RequestLog, concurrency: Concurrency | None) -> tuple[Panel, ...]:
    """Every panel that the log has the data for."""
    panels = [
        length_panel("Prompt tokens: number of requests", log.prompt),
        length_panel("Output tokens: number of requests", log.output),
    ]
    if log.arrival_s is not None:
        panels.append(arrival_panel(log.arrival_s))
        if concurrency is not None:
            panels.append(concurrency_panel(concurrency, float(log.arrival_s[-1] - log.arrival_s[0])))
    return tuple(panels)


def spark(heights: NDArray[np.float64], *, bars: int = 24) -> str:
    """The bars as one line of a terminal, at most `bars` of them."""
    groups = np.array_split(heights, min(bars, len(heights)))
    sums = np.array([group.mean() for group in groups])
    top = float(sums.max()) or 1.0
    # What is there at all can be seen.
    return "".join(_SPARKS[math.ceil(8 * float(value) / top)] for value in sums)


def svg_of(panels: Sequence[Panel], *, title: str) -> str:
    """The panels under each other. Colours are the reader's own: dark text on white, one blue."""
    height = PANEL * len(panels) + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12" fill="#1a1a1a">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {28 + PANEL * index})">')
        parts.extend(_panel(panel))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    floor, room = PANEL - BOTTOM, PANEL - BOTTOM - TOP
    bar = (WIDTH - LEFT - RIGHT) / len(panel.heights)
    top = float(panel.heights.max()) or 1.0
    lines = [f'<text x="{LEFT}" y="{TOP - 12}">{escape(panel.title)}</text>']
    for i, value in enumerate(panel.heights):
        high = room * float(value) / top
        lines.append(
            f'<rect x="{LEFT + bar * i:.2f}" y="{floor - high:.2f}" width="{max(bar - 1, 0.5):.2f}" '
            f'height="{high:.2f}" fill="#2b6cb0"><title>{_amount(value)}</title></rect>'
        )
    lines.append(f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" fill="none" stroke="#1a1a1a"/>')
    for share in (0.0, 0.5, 1.0):
        y = floor - room * share
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_amount(top * share)}</text>')
    lines.extend(
        f'<text x="{LEFT + bar * edge:.1f}" y="{floor + 16}" text-anchor="middle">{escape(label)}</text>'
        for edge, label in panel.ticks
    )
    return lines


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time_ticks(span: float) -> tuple[tuple[float, str], ...]:
    unit, name = next(((u, n) for u, n in ((86400, "d"), (3600, "h"), (60, "min")) if span >= 2 * u), (1, "s"))
    return tuple((TIME_BINS * share, f"{span * share / unit:.3g} {name}") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
