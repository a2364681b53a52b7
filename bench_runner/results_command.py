"""`bench_runner status` and `merge`: what a results folder holds, and how it becomes one file."""

import argparse
import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench_runner.files import read_json
from bench_runner.plan import load_plan
from bench_runner.results import ResultsFolder, check_rows, check_valid, write_parquet
from bench_runner.sweep_view import Estimate


def add_parsers(commands: Any) -> None:
    """Adds the commands `status` and `merge`."""
    status = commands.add_parser("status", help="how many cells are done, failed and left, and how long that takes")
    _add_folder(status)
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=run_status)
    merge = commands.add_parser("merge", help="all rows of a finished plan as one Parquet file")
    _add_folder(merge)
    merge.add_argument("--output", type=Path, required=True, metavar="FILE", help="Parquet file to write")
    merge.add_argument(
        "--without-invalid", action="store_true", help="leave out the scenarios of rows that are no labels"
    )
    merge.set_defaults(run=run_merge)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", default="reference", help="a built-in plan or a plan file (default: reference)")
    parser.add_argument("--results", type=Path, required=True, metavar="DIR", help="folder of this plan's results")


def run_status(arguments: argparse.Namespace) -> int:
    """Counts, and the time left where the rows say how long they took."""
    folder = ResultsFolder.look(arguments.results, load_plan(arguments.plan))
    total = sum(1 for _ in folder.plan.cells())
    rows = list(folder.measured_rows())
    by_status = Counter(result.status for result, _ in rows)
    counts: dict[str, Any] = {
        "plan": folder.plan.name,
        "plan_sha256": folder.plan.sha256,
        "cells": total,
        "ok": by_status["ok"],
        "failed": by_status["failed"],
        "left": total - by_status.total(),
    }
    if any(run for _, run in rows):
        counts["invalid"] = sum(run.get("invalid_cause") is not None for _, run in rows)
        seconds = _seconds_left(folder)
        counts["eta"] = None if seconds is None else str(timedelta(seconds=round(seconds)))
    print(json.dumps(counts) if arguments.json else "  ".join(f"{name} {value}" for name, value in counts.items()))
    return 0


def _seconds_left(folder: ResultsFolder) -> float | None:
    """What is left at the pace so far, on one machine; None before the first measured cell."""
    rows = list(folder.measured_rows())
    took = [run["took_s"] for _, run in rows if run.get("took_s") is not None]
    starts = [float(read_json(file)["start_s"]) for file in sorted((folder.path / "runs").glob("*.json"))]
    if not took or not starts:
        return None
    done = {result.key.cell_id for result, _ in rows}
    left = [key for key in folder.plan.cells() if key.cell_id not in done]
    estimate = Estimate(start_s=sum(starts) / len(starts), cell_s=sum(took) / len(took))
    return estimate.remaining_s(starts=len({(key.model, key.config_id) for key in left}), cells=len(left))


def run_merge(arguments: argparse.Namespace) -> int:
    """Writes the Parquet file; a row that is no label stops it unless its scenario is left out."""
    folder = ResultsFolder.look(arguments.results, load_plan(arguments.plan))
    rows = check_rows(folder.plan, folder.rows())
    invalid = {
        result.key.cell_id: str(run["invalid_cause"])
        for result, run in folder.measured_rows()
        if run.get("invalid_cause") is not None
    }
    if arguments.without_invalid:
        left_out = {row.key.scenario_id for row in rows if row.key.cell_id in invalid}
        rows = [row for row in rows if row.key.scenario_id not in left_out]
        print(f"left out {len(left_out)} scenarios with {len(invalid)} invalid cells", file=sys.stderr)
    else:
        check_valid(invalid)
    write_parquet(rows, arguments.output)
    failed = sum(row.status == "failed" for row in rows)
    print(f"{len(rows)} cells ({failed} failed) in {arguments.output}", file=sys.stderr)
    return 0
