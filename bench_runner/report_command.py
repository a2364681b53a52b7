"""`bench_runner report`: a table of the reference's cells, or a picture of one scenario of any cells."""

import argparse
import sys
from pathlib import Path

from bench_runner.files import write_atomically
from bench_runner.report import read_cells, report
from bench_runner.scenario_cells import CellsOfPlan, ScenarioCells

CELLS = Path(__file__).parent / "cells"
ENGINE_DEFAULT_CELLS = CELLS / "engine_default.parquet"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("report", help="the best candidate, FIXED and ENGINE_DEFAULT; --draw draws a scenario")
    parser.add_argument("--model", required=True, help="a model of the reference plan; with --draw one of the cells")
    parser.add_argument("--config", action="append", default=[], help="show this too (--draw: only); repeat for more")
    parser.add_argument("--cells", type=Path, default=CELLS / "reference.parquet", metavar="FILE",
        help="merged cells; with --draw also a folder of results")  # fmt: skip
    parser.add_argument("--engine-default-cells", type=Path, metavar="FILE", help="the same for the engine's default")
    drawing = parser.add_argument_group("picture of one scenario")
    drawing.add_argument("--draw", type=Path, metavar="FILE", help="write throughput and p95 TTFT as .png or .svg")
    drawing.add_argument("--workload", help="the scenario's workload")
    drawing.add_argument("--concurrency", type=int, metavar="N", help="the scenario's number of clients")
    drawing.add_argument("--plan", help="the cells' plan, where it is neither built in nor in the folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table or writes the picture."""
    if arguments.draw:
        return _draw(arguments)
    if arguments.workload or arguments.concurrency or arguments.plan:
        print("error: --workload, --concurrency and --plan go with --draw FILE", file=sys.stderr)
        return 2
    lines = report(
        model=arguments.model,
        reference=read_cells(arguments.cells),
        engine_default=read_cells(arguments.engine_default_cells or ENGINE_DEFAULT_CELLS),
        config_ids=arguments.config,
    )
    print("\n".join(lines))
    return 0


def _draw(arguments: argparse.Namespace) -> int:
    # matplotlib takes a second to import, which no other command should wait for.
    from bench_runner.drawing import draw

    if arguments.workload is None or arguments.concurrency is None:
        print("error: --draw needs --workload and --concurrency", file=sys.stderr)
        return 2
    scenario = ScenarioCells.of(
        CellsOfPlan.read(arguments.cells, plan=arguments.plan),
        model=arguments.model,
        workload=arguments.workload,
        concurrency=arguments.concurrency,
        config_ids=arguments.config,
    )
    if arguments.engine_default_cells:
        scenario = scenario.beside(read_cells(arguments.engine_default_cells))
    else:
        # The committed cells go with those that were made in the same way; with others they are not wanted.
        same = [c for c in read_cells(ENGINE_DEFAULT_CELLS) if c.provenance == scenario.cells[0].provenance]
        scenario = scenario.beside([c for c in same if c.workload == scenario.cells[0].workload])
    write_atomically(arguments.draw, draw(scenario, format_name=arguments.draw.suffix.removeprefix(".").lower()))
    failed = sum(cell.status == "failed" for cell in scenario.cells)
    print(f"{len(scenario.cells)} configurations ({failed} failed) in {arguments.draw}", file=sys.stderr)
    return 0
