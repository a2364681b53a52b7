"""`make requalify ENGINE=x`, in the environment of that engine: widen (0), retrain (3) or refuse (4)."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench_runner.files import write_atomically
from bench_runner.random_cells import random_cells
from bench_runner.stop import InterruptedRunError, Stop
from service.domain.candidate import Candidate
from service.domain.gpu import B200
from tests.requalify import scenarios as rehearse
from tests.requalify.installed import installed_facts
from tests.requalify.verdict import CELLS, EXIT_CODES, SCENARIOS, Equivalence, Facts, Rehearsal, judge, lines_of

FAILED, RESUMABLE = 1, 75
VIRTUAL_MS = 4000.0
# Seen once is enough to know that it decides otherwise; which cells it are is the equivalence's own business.
MOST_DIFFERENT = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: that of the verdict; 1 if another engine is installed; 75 if stopped, and the same command goes on."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True)
    facts = installed_facts()
    if arguments.engine is not None and facts.version != arguments.engine:
        print(f"error: vLLM {facts.version} is installed here, not {arguments.engine}", file=sys.stderr)
        return FAILED
    folder: Path = arguments.work / facts.version
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Stop() as stop:
            equivalence = _equivalence(arguments.cells, stop, console)
            rehearsal = _rehearsal(arguments.scenarios, facts, folder, stop, console)
    except InterruptedRunError as stopped:
        print(f"stopped by {stopped}; finished scenarios are kept, run the same command to go on", file=sys.stderr)
        return RESUMABLE
    verdict = judge(facts, equivalence, rehearsal)
    for line in lines_of(facts, equivalence, rehearsal, verdict):
        print(line)
    record: dict[str, Any] = {
        "facts": asdict(facts),
        "equivalence": asdict(equivalence),
        "rehearsal": asdict(rehearsal),
        "verdict": {"outcome": verdict.outcome, **asdict(verdict)},
    }
    write_atomically(folder / "requalify.json", (json.dumps(record, indent=1) + "\n").encode())
    return EXIT_CODES[verdict.outcome]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.requalify", description=__doc__)
    parser.add_argument("--engine", metavar="VERSION", help="which must be the one that is installed")
    parser.add_argument(
        "--cells", type=int, default=CELLS, help="random cells for the scheduler (default: %(default)s)"
    )
    parser.add_argument(
        "--scenarios", type=int, default=SCENARIOS, help="scenarios to ask about (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path("build/requalify"), metavar="DIR")
    return parser


def _equivalence(count: int, stop: Stop, console: Console) -> Equivalence:
    agreed, different, first = 0, 0, None
    try:
        from bench_runner.equivalence import compare

        for cell in track(list(random_cells(seed=rehearse.SEED, count=count)), "scheduler", console=console):
            stop.check()
            difference = compare(cell, virtual_ms=VIRTUAL_MS).difference
            agreed += difference is None
            different += difference is not None
            first = first or (None if difference is None else f"cell {cell.index}, {difference}")
            if different == MOST_DIFFERENT:
                return Equivalence(cells=agreed + different, agreed=agreed, first_difference=first)
    except InterruptedRunError:
        raise
    except Exception as error:
        # Another version's scheduler may fail in any way; that it cannot be driven as 0.28's is the finding.
        return Equivalence(cells=count, agreed=agreed, problem=_one_line(error))
    return Equivalence(cells=count, agreed=agreed, first_difference=first)


def _rehearsal(count: int, facts: Facts, folder: Path, stop: Stop, console: Console) -> Rehearsal:
    asked = rehearse.scenarios(count)
    seqs, tokens = facts.batch_defaults.get(
        B200.name, (B200.engine_default.max_num_seqs, B200.engine_default.max_num_batched_tokens)
    )
    default = Candidate(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=_share(facts.defaults.get("gpu_memory_utilization")),
        enable_prefix_caching=True,
    )
    try:
        chosen = rehearse.recommended(asked)
        found = rehearse.results(
            asked,
            chosen,
            installed_default=default,
            installed=rehearse.on_installed,
            store=folder / "scenarios.jsonl",
        )
        answered = sum(one is not None for one in chosen)
        results = []
        for result in track(found, "scenarios", total=answered, console=console):
            results.append(result)
            stop.check()
    except InterruptedRunError:
        raise
    except Exception as error:
        return rehearse.nothing(_one_line(error), asked=count)
    return Rehearsal(asked=count, kept=count - answered, results=tuple(results))


def _share(value: object) -> float:
    """The engine's own utilisation, or ours where it no longer has one; that is refused elsewhere."""
    return value if isinstance(value, float) else B200.engine_default.gpu_memory_utilization


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    sys.exit(main())
