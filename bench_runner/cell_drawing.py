"""A picture of one simulated cell over time: requests, KV cache, tokens per step, first tokens."""

import io

import numpy as np
from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench_runner.cell_view import CellView
from bench_runner.drawing import FORMATS, LIMIT
from service.domain.candidate import Candidate
from service.domain.cell import CellKey
from service.domain.errors import InvalidInputError
from service.domain.slo import Slo

_BLUE, _ORANGE, _GREEN = "#4477aa", "#ee9955", "#228833"
_DPI = 100
_METADATA = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}


def draw_view(view: CellView, *, key: CellKey, candidate: Candidate, slo: Slo, format_name: str) -> bytes:
    """The picture as PNG or SVG; equal views give equal bytes."""
    if format_name not in FORMATS:
        raise InvalidInputError(path="plot", value=format_name, remedy="the file's name ends in .png or .svg")
    # A matplotlibrc of the user would change the bytes, and so would random ids in an SVG.
    with style.context("default"), rc_context({"svg.hashsalt": "cell"}):
        figure = _figure(view, key=key, candidate=candidate, slo=slo)
        FigureCanvasAgg(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format_name, dpi=_DPI, metadata=_METADATA[format_name])
    return buffer.getvalue()


def _figure(view: CellView, *, key: CellKey, candidate: Candidate, slo: Slo) -> Figure:
    figure = Figure(figsize=(11, 11), layout="constrained")
    requests, cache, tokens, first = figure.subplots(4, 1, sharex=True)
    seconds = view.end_ms / 1000
    requests.step(seconds, view.running, where="pre", color=_BLUE, linewidth=1, label="running")
    requests.step(seconds, view.waiting, where="pre", color=_ORANGE, linewidth=1, label="waiting at the engine")
    _limit(requests, candidate.max_num_seqs, "max_num_seqs", shown=float(view.running.max(initial=0)))
    requests.set_ylabel("requests")
    cache.step(seconds, 100 * view.kv_usage, where="pre", color=_GREEN, linewidth=1)
    cache.set_ylim(0, 105)
    cache.set_ylabel("KV cache in use, %")
    # A step without any is a gap, not a zero that would hide the other.
    for values, colour, label in ((view.prefill_tokens, _ORANGE, "prefill"), (view.decode_tokens, _BLUE, "decode")):
        some = values > 0
        tokens.plot(seconds[some], values[some], ".", color=colour, markersize=2, label=label)
    _limit(tokens, candidate.max_num_batched_tokens, "max_num_batched_tokens", shown=np.inf)
    tokens.set_yscale("log")
    tokens.set_ylabel("tokens per step")
    first.plot(view.first_token_ms / 1000, view.ttft_ms, ".", color=_BLUE, markersize=3, label="a first token")
    _limit(first, slo.max_p95_ttft_ms, "SLO on p95 TTFT", shown=np.inf)
    first.set_yscale("log")
    first.set_ylabel("TTFT, ms")
    first.set_xlabel("seconds since the first client started")
    first.set_xlim(0, view.window.end_ms / 1000)
    for axes in (requests, cache, tokens, first):
        axes.axvspan(0, view.window.warm_up_ms / 1000, color="#eeeeee", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (requests, tokens, first):
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), frameon=False, ncols=3, markerscale=4)
    figure.suptitle(
        f"{key.cell_id}\nsimulated: a virtual clock, no server was measured; grey: warm-up",
        fontsize=11,
        parse_math=False,
    )
    return figure


def _limit(axes: Axes, value: float, label: str, *, shown: float) -> None:
    """The configuration's limit as a line, unless it lies so far above that the rest would be squeezed flat."""
    if value <= 2 * shown:
        axes.axhline(value, color=LIMIT, linestyle="--", linewidth=1, label=f"{label} {value:g}")
