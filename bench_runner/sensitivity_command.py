"""`bench_runner sensitivity`: every uncertain parameter moved one at a time, and what a choice loses by it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench_runner.files import make_folder, read_json, write_atomically, write_json
from bench_runner.results import JsonLines, read_json_lines
from bench_runner.sensitivity import (
    ASSUMED,
    NEAR_TIE,
    VARIATIONS,
    Case,
    Outcomes,
    Variation,
    compare,
    dev_cases,
    reference_cases,
    run_case,
    sources_sha256,
)
from bench_runner.stop import Stop
from service.domain.errors import ArtefactError

SCHEMA_VERSION = 1
FOLDER = Path(__file__).parent / "fidelity"
RESULT, SECTION, PLOT = "sensitivity.json", "sensitivity.md", "sensitivity.png"
Key = tuple[str, str, str]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("sensitivity", help="how a choice depends on what the simulator assumes; resumes")
    parser.add_argument(
        "--work", type=Path, default=Path("build/sensitivity"), metavar="DIR", help="what is done so far"
    )
    parser.add_argument("--output", type=Path, default=FOLDER / RESULT, metavar="FILE", help="JSON to write")
    parser.add_argument("--sets", nargs="+", choices=("reference", "dev"), default=["reference", "dev"], metavar="SET",
        help="reference (96 scenarios), dev (300 of the ranker's dev set); default: both")  # fmt: skip
    parser.add_argument(
        "--report", action="store_true", help="write the section and plot of an --output; simulate nothing"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulates what is missing, then writes the result; or writes the section of one."""
    if arguments.report:
        return _report(arguments.output)
    made = {"reference": reference_cases, "dev": dev_cases}
    cases = {name: made[name]() for name in dict.fromkeys(arguments.sets)}
    make_folder(arguments.work)
    write_json(arguments.output, sensitivity(cases, VARIATIONS, work=arguments.work))
    return _report(arguments.output)


def sensitivity(cases: Mapping[str, Sequence[Case]], variations: Sequence[Variation], *, work: Path) -> dict[str, Any]:
    """The result over all sets. work: folder of what is done; InterruptedRunError on a signal, nothing is lost then."""
    digest = sources_sha256(cases)
    path = work / f"outcomes-{digest[:12]}.jsonl"
    lines = JsonLines(path)
    try:
        done: dict[Key, dict[str, Any]] = {_key(line): line for line in read_json_lines(path)}
        _fill(cases, variations, done, lines)
    finally:
        lines.close()
    rows = []
    for name, some in cases.items():
        by_variation = {one.name: _outcomes(done, name, one, some) for one in variations}
        for one in variations:
            if one.parameter != ASSUMED:
                found = compare(by_variation[ASSUMED], by_variation[one.name])
                rows.append({"set": name, "parameter": one.parameter, "value": one.value, **found})
    return {
        "schema_version": SCHEMA_VERSION,
        "evidence": "simulated",
        "sources_sha256": digest,
        "near_tie": NEAR_TIE,
        "rows": rows,
    }


def _fill(
    cases: Mapping[str, Sequence[Case]],
    variations: Sequence[Variation],
    done: dict[Key, dict[str, Any]],
    lines: JsonLines,
) -> None:
    """Simulates what `done` lacks and adds it, each line on disk before the next is begun."""
    with _progress() as progress, Stop() as stop:
        # Compiled code that is entered or left does not survive an exception, so a signal waits for the next check.
        stop.at_once = False
        task = progress.add_task("one parameter at a time", total=len(variations) * sum(map(len, cases.values())))
        for one in variations:
            for name, some in cases.items():
                for case in some:
                    stop.check()
                    key = (name, one.name, case.name)
                    if key not in done:
                        tps, met = run_case(case, one)
                        line = {"set": name, "variation": one.name, "case": case.name, "tps": tps, "met": met}
                        lines.append(line)
                        done[key] = line
                    progress.advance(task)


def _key(line: Mapping[str, Any]) -> Key:
    return line["set"], line["variation"], line["case"]


def _outcomes(done: Mapping[Key, Mapping[str, Any]], name: str, one: Variation, some: Sequence[Case]) -> Outcomes:
    rows = [done[name, one.name, case.name] for case in some]
    return Outcomes(tps=np.array([row["tps"] for row in rows]), met=np.array([row["met"] for row in rows]))


def _report(path: Path) -> int:
    # matplotlib takes a second to import, which no other command should wait for.
    from bench_runner.sensitivity_section import draw, section

    result = read_json(path)
    if result.get("schema_version") != SCHEMA_VERSION:
        raise ArtefactError(f"{path} is no result of this program's `sensitivity`; run it without --report")
    write_atomically(path.with_name(PLOT), draw(result))
    write_atomically(path.with_name(SECTION), section(result, plot=PLOT).encode())
    print(f"{len(result['rows'])} comparisons in {path}, {SECTION} and {PLOT} beside it", file=sys.stderr)
    return 0


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
    )
