"""`bench_runner published`: host and front-end times fitted to the dev table, the test table compared once."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench_runner.files import create_once, make_folder, write_atomically
from bench_runner.published import open_test, read_fit, read_opened
from bench_runner.published_cells import RULES
from bench_runner.published_fit import FIRST_ROUND, SECOND_ROUND, Evaluated, evaluate, fit, sources_sha256
from bench_runner.results import JsonLines, read_json_lines
from bench_runner.step_time import StepTables, load_step_tables
from bench_runner.stop import Stop
from service.domain.errors import ArtefactError

FOLDER = Path(__file__).parent / "fidelity"
FIT, OPENED, SECTION, PLOT = "published_fit.json", "published.json", "published.md", "published.png"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("published", help="the published B200 tables of FIXED and HEUR beside the simulator")
    steps = parser.add_subparsers(required=True, metavar="STEP")
    fitting = steps.add_parser("fit", help="fit to the dev table, write the fit record once; resumes (minutes)")
    fitting.add_argument(
        "--work", type=Path, default=Path("build/published"), metavar="DIR", help="what is done so far"
    )
    _add_fit(fitting)
    fitting.set_defaults(run=_fit)
    comparing = steps.add_parser("compare", help="compare the test table under a fit record, once")
    _add_fit(comparing)
    comparing.add_argument("--output", type=Path, default=FOLDER / OPENED, metavar="FILE", help="written once")
    comparing.set_defaults(run=_compare)
    reporting = steps.add_parser("report", help="both records as a Markdown section with a plot; simulates nothing")
    _add_fit(reporting)
    reporting.add_argument("--opened", type=Path, default=FOLDER / OPENED, metavar="FILE", help="what compare wrote")
    reporting.add_argument("--output", type=Path, default=FOLDER / SECTION, metavar="FILE", help="Markdown to write")
    reporting.set_defaults(run=_report)


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fit", type=Path, default=FOLDER / FIT, metavar="FILE", help="the fit record")


def _fit(arguments: argparse.Namespace) -> int:
    if arguments.fit.exists():
        raise ArtefactError(f"{arguments.fit} exists, and a fit record does not change; give another --fit")
    make_folder(arguments.work)
    tables = load_step_tables()
    work = WorkFile(arguments.work / f"evaluated-{sources_sha256()[:12]}.jsonl", tables=tables)
    try:
        with _progress() as progress, Stop() as stop:
            # Compiled code that is entered or left does not survive an exception, so a signal waits for the next check.
            stop.at_once = False
            total = 1 + FIRST_ROUND + len(RULES) * SECOND_ROUND
            task = progress.add_task("fitting to the dev table", total=total)

            def evaluated(settings: Iterable[Mapping[str, float]]) -> Iterator[Evaluated]:
                for values in settings:
                    stop.check()
                    yield work.evaluated(values)
                    progress.advance(task)

            record = fit(evaluated, tables=tables)
    finally:
        work.close()
    make_folder(arguments.fit.parent)
    create_once(arguments.fit, (json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    for rule, found in record["rules"].items():
        print(f"{rule}: least misfit {found['misfit']['least']}, assumed setting {found['misfit']['assumed']}")
    return 0


class WorkFile:
    """Settings that were evaluated, one line each: a run that is stopped goes on behind the last of them."""

    def __init__(self, path: Path, *, tables: StepTables) -> None:
        # Opened first: that cuts off a line which a kill tore.
        self._lines = JsonLines(path)
        self._tables = tables
        self._done = {_name(line["values"]): Evaluated(**line) for line in read_json_lines(path)}

    def evaluated(self, values: Mapping[str, float]) -> Evaluated:
        """From the file, or simulated now and then on disk."""
        found = self._done.get(_name(values))
        if found is None:
            found = evaluate(values, tables=self._tables)
            self._lines.append(found.to_json())
        return found

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def _name(values: Mapping[str, float]) -> str:
    return json.dumps(values, sort_keys=True)


def _compare(arguments: argparse.Namespace) -> int:
    content = open_test(arguments.fit, arguments.output, tables=load_step_tables())
    for name, published in content["table"].items():
        best = {rule: content["rules"][rule]["best"][name] for rule in RULES}
        print(f"{name}: published {published}, simulated {best}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    # matplotlib takes a second to import, which no other command should wait for.
    from bench_runner.published_drawing import draw
    from bench_runner.published_section import section

    fit_record = read_fit(arguments.fit)
    opened = read_opened(arguments.opened, arguments.fit)
    write_atomically(arguments.output.with_name(PLOT), draw(fit_record))
    write_atomically(arguments.output, section(fit_record, opened, plot=PLOT).encode())
    print(f"{arguments.output} and {PLOT} beside it", file=sys.stderr)
    return 0


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
    )
