"""`python -m service workload from-log FILE`: a request log or trace -> the workload to ask about."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.commands.memory import add_json_flag

if TYPE_CHECKING:
    from service.commands.log_line import Reading
    from service.commands.log_reader import RequestLog
    from service.commands.log_workload import LogNumbers

_UNITS = ("s", "ms", "us", "ns", "iso")
# A file that takes long enough to wonder.
_PROGRESS_FROM_BYTES = 32 * 2**20


def add_parser(commands: Any) -> None:
    """Adds the command `workload`."""
    parser = commands.add_parser("workload", help="describe a workload", description="Finds out what a workload is.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    log = actions.add_parser(
        "from-log",
        help="read a request log or trace",
        description="Reads a request log or trace (CSV with a header, or JSON lines; also .gz) and says which workload "
        "it is. Lengths, times and token hashes are read; what a server measured of itself is refused.",
    )
    log.add_argument("file", type=Path, metavar="FILE")
    columns = log.add_argument_group("columns; keys inside JSON objects are written with dots: usage.prompt_tokens")
    columns.add_argument("--prompt-tokens", metavar="COL", required=True, help="tokens of the prompt")
    columns.add_argument("--output-tokens", metavar="COL", required=True, help="tokens of the answer")
    columns.add_argument("--arrival", metavar="COL", help="when the request arrived")
    columns.add_argument("--end", metavar="COL", help="when its last token was sent, on the same clock")
    columns.add_argument("--latency", metavar="COL", help="how long it took; instead of --end")
    columns.add_argument("--token-hashes", metavar="COL", help="hashes of the prompt's blocks of tokens, in order")
    reading = log.add_argument_group("reading")
    reading.add_argument("--unit", choices=_UNITS, default="s", help="of arrival and end (default: s)")
    reading.add_argument("--latency-unit", choices=_UNITS[:-1], help="default: that of --unit, or s")
    reading.add_argument("--block-tokens", type=_positive, default=512, metavar="N", help="of one hash (default: 512)")
    reading.add_argument(
        "--cache-window", type=_seconds, default=300.0, metavar="S",
        help="seconds after its last use in which a prefix counts as shared (default: 300)",
    )  # fmt: skip
    reading.add_argument(
        "--where", type=_where, action="append", default=[], metavar="COL=VALUE",
        help="only these requests, such as model=qwen3-8b; repeatable",
    )  # fmt: skip
    reading.add_argument("--format", choices=("csv", "jsonl"), help="default: by the file's name")
    reading.add_argument("--delimiter", metavar="CHAR", help="of a CSV file (default: a comma; a tab for .tsv)")
    reading.add_argument(
        "--most-bad", type=_share, default=0.01, metavar="SHARE",
        help="of lines that may be unusable before the file is refused (default: 0.01)",
    )  # fmt: skip
    answer = log.add_argument_group("what is written")
    answer.add_argument("--model", metavar="NAME", help="make the --json a whole request for this model")
    answer.add_argument("--plot", type=Path, metavar="FILE", help="write lengths and arrivals as an SVG picture")
    add_json_flag(answer)
    log.set_defaults(run=_from_log)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 to 1000000")
    return int(text)


def _bounded(text: str, *, high: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: give {what}")
    return value


def _seconds(text: str) -> float:
    return _bounded(text, high=1e9, what="seconds from 0 to 1e9")


def _share(text: str) -> float:
    return _bounded(text, high=1.0, what="a share from 0 to 1")


def _where(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not column or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write COLUMN=VALUE")
    return column, value


def _from_log(arguments: argparse.Namespace) -> None:
    from service.commands.log_plot import panels_of, svg_of
    from service.commands.log_reader import read_log
    from service.commands.log_workload import numbers_of, workload_of

    path: Path = arguments.file
    reading = _reading(arguments)
    with _opened(path) as file:
        log = read_log(file, str(path), reading)
    numbers = numbers_of(log, block_tokens=reading.block_tokens, window_s=arguments.cache_window)
    workload = workload_of(numbers)
    if arguments.plot is not None:
        title = f"{path.name}: {len(log.prompt):,} requests"
        _write(arguments.plot, svg_of(panels_of(log, numbers.concurrency), title=title))
    notes = _notes(log, numbers, arguments.cache_window)
    if arguments.json:
        for note in notes:
            print(f"memorypolicy: {note}", file=sys.stderr)
        model = {} if arguments.model is None else {"model": {"name": arguments.model}}
        print(json.dumps({**model, "workload": workload}, indent=2, ensure_ascii=False))
    else:
        _print(log, numbers, workload, notes)


def _reading(arguments: argparse.Namespace) -> "Reading":
    from service.commands.log_line import ISO, Columns, Reading
    from service.commands.log_reader import form_of
    from service.domain.errors import InvalidInputError

    path: Path = arguments.file
    form = arguments.format or form_of(path)
    if form is None:
        raise InvalidInputError(path="FILE", value=path.name, remedy="say what it is: --format csv or --format jsonl")
    delimiter = arguments.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidInputError(path="--delimiter", value=delimiter, remedy="give one character")
    return Reading(
        columns=Columns(**{name: getattr(arguments, name) for name in Columns.__slots__}),
        form=form,
        delimiter=delimiter,
        unit=arguments.unit,
        latency_unit=arguments.latency_unit or ("s" if arguments.unit == ISO else arguments.unit),
        block_tokens=arguments.block_tokens,
        where=dict(arguments.where),
        most_bad=arguments.most_bad,
    )


def _opened(path: Path) -> Any:
    """The file's bytes, with a bar on a terminal while a long one is read."""
    from rich.console import Console
    from rich.progress import open as open_with_progress

    console = Console(stderr=True)
    if path.stat().st_size < _PROGRESS_FROM_BYTES or not console.is_terminal:
        return path.open("rb")
    return open_with_progress(path, "rb", description=path.name, console=console, transient=True)


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _notes(log: "RequestLog", numbers: "LogNumbers", window_s: float) -> list[str]:
    """What limits the numbers, and what the log does not say."""
    notes = [f"left out: {bad}" for bad in log.bad]
    if log.bad_lines > len(log.bad):
        notes.append(f"left out: {log.bad_lines - len(log.bad)} more lines")
    if numbers.parts == 1:
        notes.append("too few requests for ranges of the lengths: one number for the whole log")
    if numbers.shared_prefix is None:
        notes.append("add shared_prefix_ratio: without --token-hashes the log does not say what prompts have in common")
    elif log.arrival_s is None:
        notes.append("shared_prefix_ratio is an upper bound: no prefix is ever forgotten, since no arrival is known")
    else:
        notes.append(
            f"shared_prefix_ratio is a share of all prompt tokens, from prefixes used in the last {window_s:g} s to "
            "prefixes that are never forgotten: an upper bound, and more than a beginning common to all"
        )
    if numbers.concurrency is not None:
        notes.append(
            "concurrency is that of the server that wrote the log, time-weighted mean to p95: a faster one holds fewer"
        )
    elif numbers.requests_per_second is not None:
        notes.append("no --latency or --end: concurrency is not known, only the rate of requests")
    elif log.arrival_s is None:
        notes.append("add concurrency: without times the log does not say how many requests are in flight")
    else:
        notes.append(
            f"add concurrency: {'all requests arrive' if len(log.prompt) > 1 else 'the one request arrives'} at one "
            "moment, and it takes a time between arrivals to know a rate or how many requests are in flight"
        )
    return notes


def _print(log: "RequestLog", numbers: "LogNumbers", workload: dict[str, Any], notes: Sequence[str]) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from service.commands.log_plot import panels_of, spark

    span = "" if log.arrival_s is None else f" in {log.arrival_s[-1] - log.arrival_s[0]:,.1f} s"
    print(f"{len(log.prompt):,} requests{span}; {log.lines:,} lines, {log.bad_lines:,} unusable", end="")
    print(f", {log.passed_over:,} of others" if log.passed_over else "")
    table = Table(box=None, pad_edge=False)
    for column in ("", "mean", "p5", "p50", "p95", "p99", "max"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("prompt tokens", log.prompt), ("output tokens", log.output)):
        quantiles = np.quantile(values, [0.05, 0.5, 0.95, 0.99, 1.0])
        table.add_row(name, f"{values.mean():,.1f}", *(f"{value:,.0f}" for value in quantiles))
    console = Console(highlight=False, soft_wrap=True, width=200)
    console.print(table)
    for panel in panels_of(log, numbers.concurrency):
        ends = f" ({panel.ticks[0][1]} to {panel.ticks[-1][1]})" if panel.ticks else ""
        print(f"{panel.title}{ends}\n  |{spark(panel.heights)}|")
    if numbers.parts > 1:
        print(f"workload; a range is p10 to p90 of {numbers.parts} consecutive parts of the log:")
    else:
        print("workload:")
    for name, value in workload.items():
        shown = f"{value[0]:,} to {value[1]:,}" if isinstance(value, list) else f"{value:,}"
        print(f"  {name}: {shown} ({_MEANING[name]})")
    for note in notes:
        print(f"note: {note}")


_MEANING = {
    "prompt_tokens": "mean of a request",
    "max_new_tokens": "p95 of the answers, a cap that 95 of 100 stay within",
    "output_tokens": "mean of an answer",
    "max_output_tokens": "the longest answer",
    "shared_prefix_ratio": "share of all prompt tokens",
    "concurrency": "requests in flight, mean to p95 over time",
    "requests_per_second": "arrivals",
}
