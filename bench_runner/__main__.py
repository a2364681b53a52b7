"""Command line: plan -> simulate -> merge, and status in between."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench_runner.list_sets import SETS
from bench_runner.lists import simulate_set
from bench_runner.plan import BUILT_IN_PLANS, load_plan, save_plan
from bench_runner.report import read_cells, report
from bench_runner.results import ResultsFolder, Shard, check_rows, write_parquet
from bench_runner.simulate import fill_shard
from bench_runner.simulator import SimulationSettings
from bench_runner.stop import InterruptedRunError
from service.domain.errors import MemoryPolicyError

# sysexits.h EX_TEMPFAIL: stopped on request, the same command goes on.
RESUMABLE = 75
CELLS = Path(__file__).parent / "cells"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 on success, 2 on bad usage, 75 when stopped and resumable, 1 otherwise with a one-line reason."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except MemoryPolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except InterruptedRunError as stopped:
        print(f"stopped by {stopped}; what is finished is kept, run the same command to go on", file=sys.stderr)
        return RESUMABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench_runner", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="list the cells of a plan, or write the plan to a file")
    _add_plan(plan)
    plan.add_argument("--model", action="append", default=[], help="only this model; repeat for more")
    plan.add_argument("--workload", action="append", default=[], help="only this workload; repeat for more")
    plan.add_argument("--config", action="append", default=[], help="only this configuration; repeat for more")
    plan.add_argument("--output", type=Path, metavar="FILE", help="write the plan instead of listing its cells")
    plan.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    plan.set_defaults(run=_run_plan)
    simulate = commands.add_parser("simulate", help="fill cells on a virtual clock; resumes where it stopped")
    _add_plan(simulate)
    _add_results(simulate)
    simulate.add_argument("--shard-index", type=int, default=0, metavar="I", help="this shard, from 0")
    simulate.add_argument("--shard-count", type=int, default=1, metavar="N", help="shards in all")
    simulate.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    simulate.set_defaults(run=_run_simulate)
    status = commands.add_parser("status", help="how many cells are done, failed and left")
    _add_plan(status)
    _add_results(status)
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=_run_status)
    merge = commands.add_parser("merge", help="all rows of a finished plan as one Parquet file")
    _add_plan(merge)
    _add_results(merge)
    merge.add_argument("--output", type=Path, required=True, metavar="FILE", help="Parquet file to write")
    merge.set_defaults(run=_run_merge)
    report = commands.add_parser("report", help="a model's best candidate, FIXED and ENGINE_DEFAULT per scenario")
    report.add_argument("--model", required=True, help="a model of the reference plan")
    report.add_argument("--config", action="append", default=[], help="show this candidate too; repeat for more")
    report.add_argument("--cells", type=Path, default=CELLS / "reference.parquet", metavar="FILE")
    report.add_argument("--engine-default-cells", type=Path, default=CELLS / "engine_default.parquet", metavar="FILE")
    report.set_defaults(run=_run_report)
    lists = commands.add_parser("lists", help="simulate sets of lists for the ranker; resumes where it stopped")
    lists.add_argument("sets", nargs="+", choices=SETS, metavar="SET", help=f"one or more of {', '.join(SETS)}")
    lists.add_argument("--results", type=Path, required=True, metavar="DIR", help="folder of all sets")
    lists.add_argument("--registration", type=Path, metavar="FILE", help="what test sets are simulated under")
    lists.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    lists.set_defaults(run=_run_lists)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    built_in = ", ".join(BUILT_IN_PLANS)
    parser.add_argument("--plan", default="reference", help=f"{built_in}, or a plan file (default: reference)")


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, required=True, metavar="DIR", help="folder of this plan's results")


def _run_plan(arguments: argparse.Namespace) -> int:
    plan = load_plan(arguments.plan).restricted(
        models=arguments.model, workloads=arguments.workload, config_ids=arguments.config
    )
    if arguments.output:
        save_plan(plan, arguments.output)
    elif arguments.json:
        print(json.dumps(plan.to_json(), indent=1))
    else:
        for key in plan.cells():
            print(key.cell_id)
    print(f"plan {plan.name}: {sum(1 for _ in plan.cells())} cells, sha256 {plan.sha256}", file=sys.stderr)
    return 0


def _run_simulate(arguments: argparse.Namespace) -> int:
    shard = Shard(index=arguments.shard_index, count=arguments.shard_count)
    if arguments.jobs < 1:
        print(f"error: --jobs {arguments.jobs}: give 1 or more", file=sys.stderr)
        return 2
    folder = ResultsFolder.open(arguments.results, load_plan(arguments.plan))
    added = fill_shard(folder, shard=shard, settings=SimulationSettings(), jobs=arguments.jobs)
    print(f"{added} cells simulated, {len(shard.cells(folder.plan)) - added} were there", file=sys.stderr)
    return 0


def _run_status(arguments: argparse.Namespace) -> int:
    folder = ResultsFolder.open(arguments.results, load_plan(arguments.plan))
    total = sum(1 for _ in folder.plan.cells())
    by_status = Counter(result.status for result in folder.rows())
    counts = {
        "plan": folder.plan.name,
        "plan_sha256": folder.plan.sha256,
        "cells": total,
        "ok": by_status["ok"],
        "failed": by_status["failed"],
        "left": total - by_status.total(),
    }
    print(json.dumps(counts) if arguments.json else "  ".join(f"{name} {value}" for name, value in counts.items()))
    return 0


def _run_merge(arguments: argparse.Namespace) -> int:
    folder = ResultsFolder.open(arguments.results, load_plan(arguments.plan))
    rows = check_rows(folder.plan, folder.rows())
    write_parquet(rows, arguments.output)
    failed = sum(row.status == "failed" for row in rows)
    print(f"{len(rows)} cells ({failed} failed) in {arguments.output}", file=sys.stderr)
    return 0


def _run_lists(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        print(f"error: --jobs {arguments.jobs}: give 1 or more", file=sys.stderr)
        return 2
    for name in arguments.sets:
        done, seconds = simulate_set(arguments.results, name, jobs=arguments.jobs, registration=arguments.registration)
        print(f"{name}: {done} lists simulated in {seconds:.0f} s", file=sys.stderr)
    return 0


def _run_report(arguments: argparse.Namespace) -> int:
    lines = report(
        model=arguments.model,
        reference=read_cells(arguments.cells),
        engine_default=read_cells(arguments.engine_default_cells),
        config_ids=arguments.config,
    )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
