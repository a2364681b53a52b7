"""A picture of one scenario: throughput and p95 TTFT per candidate, with the SLO line."""

import io

from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench_runner.scenario_cells import ScenarioCells
from service.domain.cell import CellResult
from service.domain.errors import InvalidInputError

FORMATS = ("png", "svg")
MET, VIOLATED, LIMIT = "#4477aa", "#ee9955", "#bb2222"
_DPI = 100
# Without these, matplotlib writes its version and the date into the file.
_METADATA = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}
_EVIDENCE = {
    "simulated": "simulated: a virtual clock, no server was measured",
    "measured": "measured on a real server",
    "measured-cpu": "measured on a real server without a GPU (measured-cpu)",
}


def draw(scenario: ScenarioCells, *, format_name: str) -> bytes:
    """The picture as PNG or SVG; equal cells give equal bytes. A failed cell shows its cause instead of a bar."""
    if format_name not in FORMATS:
        raise InvalidInputError(path="draw", value=format_name, remedy="the file's name ends in .png or .svg")
    # A matplotlibrc of the user would change the bytes, and so would random ids in an SVG.
    with style.context("default"), rc_context({"svg.hashsalt": "cells"}):
        figure = _figure(scenario)
        FigureCanvasAgg(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format_name, dpi=_DPI, metadata=_METADATA[format_name])
    return buffer.getvalue()


def _figure(scenario: ScenarioCells) -> Figure:
    cells, slo = scenario.cells, scenario.plan.slo
    figure = Figure(figsize=(11, 1.9 + 0.32 * len(cells)), layout="constrained")
    throughput, ttft = figure.subplots(1, 2, sharey=True)
    _throughput(throughput, cells)
    _ttft(ttft, cells, limit_ms=slo.max_p95_ttft_ms)
    throughput.set_yticks(range(len(cells)), [_label(scenario, cell) for cell in cells])
    throughput.set_ylim(len(cells) - 0.5, -0.5)
    # A name may hold a dollar sign, which would begin a formula.
    figure.suptitle(_title(scenario), fontsize=11, parse_math=False)
    figure.legend(
        handles=[
            Patch(color=MET, label="meets the SLO"),
            Patch(color=VIOLATED, label="violates the SLO (TTFT, TPOT or errors)"),
            Line2D([], [], color=LIMIT, linestyle="--", label=f"SLO: p95 TTFT ≤ {slo.max_p95_ttft_ms:g} ms"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return figure


def _throughput(axes: Axes, cells: tuple[CellResult, ...]) -> None:
    for row, cell in enumerate(cells):
        if cell.status == "failed":
            axes.text(0, row, f" failed: {cell.failure_cause}", va="center", fontsize=8, parse_math=False)
        else:
            axes.barh(row, cell.output_throughput_tps, color=_colour(cell))
            axes.text(cell.output_throughput_tps, row, f" {cell.output_throughput_tps:,.0f}", va="center", fontsize=8)
    # Room for the numbers behind the bars, and for a picture of nothing but failures.
    axes.set_xlim(0, 1.15 * max((cell.output_throughput_tps for cell in cells), default=0) or 1)
    axes.set_xlabel("output throughput, tokens/s")
    axes.spines[["top", "right"]].set_visible(False)


def _ttft(axes: Axes, cells: tuple[CellResult, ...], *, limit_ms: float) -> None:
    # Points, because the axis has to be logarithmic: 20 ms and a limit of 3 s stand in one picture.
    shown = [limit_ms]
    for row, cell in enumerate(cells):
        if cell.ttft_p95_ms is not None:
            shown.append(max(cell.ttft_p95_ms, 0.01))
            axes.plot(shown[-1], row, "o", color=_colour(cell), markersize=7)
            axes.text(shown[-1], row, f"   {cell.ttft_p95_ms:,.0f}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(shown) / 1.5, 2 * max(shown))
    axes.axvline(limit_ms, color=LIMIT, linestyle="--", linewidth=1.5)
    axes.grid(axis="x", which="both", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.set_xlabel("p95 TTFT, ms (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)


def _colour(cell: CellResult) -> str:
    return MET if cell.slo_met else VIOLATED


def _label(scenario: ScenarioCells, cell: CellResult) -> str:
    is_default = cell.key.config_id == scenario.engine_default
    return f"engine default: {cell.key.config_id}" if is_default else cell.key.config_id


def _title(scenario: ScenarioCells) -> str:
    cell = scenario.cells[0]
    workload = cell.workload
    return (
        f"{cell.key.model}, {cell.key.workload}: {workload.prompt_tokens} + {workload.max_new_tokens} tokens, "
        f"shared prefix {workload.shared_prefix_ratio:g}, {cell.key.concurrency} clients\n"
        f"{cell.provenance.gpu}, vLLM {cell.provenance.engine_version}, {_EVIDENCE[cell.provenance.evidence]}"
    )
