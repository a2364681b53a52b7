"""`bench_runner simulate`: fills the cells of a plan on a virtual clock, or shows one of them."""

import argparse
import json
import os
import sys
from pathlib import Path

from bench_runner.cell_view import key_of, view_cell
from bench_runner.files import write_atomically
from bench_runner.plan import BUILT_IN_PLANS, load_plan
from bench_runner.results import ResultsFolder, Shard
from bench_runner.simulate import fill_shard, simulator_of
from bench_runner.simulator import SimulationSettings


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("simulate", help="fill cells on a virtual clock, resumes where it stopped; or see one")
    built_in = ", ".join(BUILT_IN_PLANS)
    parser.add_argument("--plan", default="reference", help=f"{built_in}, or a plan file (default: reference)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of this plan's results")
    parser.add_argument("--shard-index", type=int, default=0, metavar="I", help="this shard, from 0")
    parser.add_argument("--shard-count", type=int, default=1, metavar="N", help="shards in all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    one = parser.add_argument_group("one cell, seen (instead of --results)")
    one.add_argument("--cell", metavar="ID", help="a cell_id, as `plan` prints them: print its row")
    one.add_argument("--plot", type=Path, metavar="FILE", help="draw the cell over time as .png or .svg")
    one.add_argument("--json", action="store_true", help="print the row as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fills a shard, or prints and draws one cell."""
    if arguments.cell is not None:
        return _show(arguments)
    if arguments.results is None or arguments.plot is not None or arguments.json:
        print("error: give --results DIR to fill cells, or --cell ID (with --plot FILE, --json)", file=sys.stderr)
        return 2
    shard = Shard(index=arguments.shard_index, count=arguments.shard_count)
    if arguments.jobs < 1:
        print(f"error: --jobs {arguments.jobs}: give 1 or more", file=sys.stderr)
        return 2
    folder = ResultsFolder.open(arguments.results, load_plan(arguments.plan))
    added = fill_shard(folder, shard=shard, settings=SimulationSettings(), jobs=arguments.jobs)
    print(f"{added} cells simulated, {len(shard.cells(folder.plan)) - added} were there", file=sys.stderr)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    if arguments.results is not None:
        print("error: --cell shows one cell and fills none; leave --results out", file=sys.stderr)
        return 2
    plan = load_plan(arguments.plan)
    key = key_of(plan, arguments.cell)
    simulator = simulator_of(plan, settings=SimulationSettings())
    row = simulator.fill(key).to_row()
    if arguments.json:
        print(json.dumps(row, indent=1))
    else:
        print("\n".join(f"{name:22}{_text(value)}" for name, value in row.items()))
    if arguments.plot is None:
        return 0
    # matplotlib takes a second to import, which no other command should wait for.
    from bench_runner.cell_drawing import draw_view

    suffix = arguments.plot.suffix.removeprefix(".").lower()
    view = view_cell(simulator, key)
    picture = draw_view(view, key=key, candidate=plan.candidate(key), slo=plan.slo, format_name=suffix)
    write_atomically(arguments.plot, picture)
    print(f"{len(view.end_ms)} steps and {len(view.ttft_ms)} first tokens in {arguments.plot}", file=sys.stderr)
    return 0


def _text(value: object) -> str:
    """A number with the digits that matter; None is undefined, not zero."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
