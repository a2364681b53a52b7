"""Command line: plan -> simulate or sweep -> merge, and status in between."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench_runner import (
    fidelity_command,
    kueue_command,
    plan_command,
    published_command,
    report_command,
    results_command,
    sensitivity_command,
    simulate_command,
    step_time_command,
    sweep_command,
    verify_command,
)
from bench_runner.list_sets import SETS
from bench_runner.lists import simulate_set
from bench_runner.stop import InterruptedRunError
from service.domain.errors import MemoryPolicyError

# sysexits.h EX_TEMPFAIL: stopped on request, the same command goes on.
RESUMABLE = 75


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
    plan_command.add_parser(commands)
    simulate_command.add_parser(commands)
    sweep_command.add_parser(commands)
    results_command.add_parsers(commands)
    report_command.add_parser(commands)
    verify_command.add_parser(commands)
    step_time_command.add_parser(commands)
    fidelity_command.add_parser(commands)
    kueue_command.add_parser(commands)
    published_command.add_parser(commands)
    sensitivity_command.add_parser(commands)
    lists = commands.add_parser("lists", help="simulate sets of lists for the ranker; resumes where it stopped")
    lists.add_argument("sets", nargs="+", choices=SETS, metavar="SET", help=f"one or more of {', '.join(SETS)}")
    lists.add_argument("--results", type=Path, required=True, metavar="DIR", help="folder of all sets")
    lists.add_argument("--registration", type=Path, metavar="FILE", help="what test sets are simulated under")
    lists.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    lists.set_defaults(run=_run_lists)
    return parser


def _run_lists(arguments: argparse.Namespace) -> int:
    if arguments.jobs < 1:
        print(f"error: --jobs {arguments.jobs}: give 1 or more", file=sys.stderr)
        return 2
    for name in arguments.sets:
        done, seconds = simulate_set(arguments.results, name, jobs=arguments.jobs, registration=arguments.registration)
        print(f"{name}: {done} lists simulated in {seconds:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
