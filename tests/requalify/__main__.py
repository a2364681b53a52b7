"""`make requalify ENGINE=x`, in the environment of that engine: widen (0), retrain (3) or refuse (4)."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bench_runner.files import write_atomically
from bench_runner.random_cells import RandomCell, random_cells
from bench_runner.stop import InterruptedRunError, Stop
from service.domain.candidate import Candidate
from service.domain.gpu import B200
from tests.requalify import scenarios as rehearse
from tests.requalify.cells import VIRTUAL_MS, agreement, differences, one_line
from tests.requalify.finished import Finished, sources_sha256
from tests.requalify.installed import installed_facts, quieten
from tests.requalify.verdict import CELLS, EXIT_CODES, SCENARIOS, Equivalence, Facts, Rehearsal, judge, lines_of

FAILED, RESUMABLE = 1, 75


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: that of the verdict; 1 if another engine is installed; 75 if stopped, and the same command goes on."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True)
    quieten(os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"))
    facts = installed_facts()
    if arguments.engine is not None and facts.version != arguments.engine:
        print(f"error: vLLM {facts.version} is installed here, not {arguments.engine}", file=sys.stderr)
        return FAILED
    folder: Path = arguments.work / facts.version
    folder.mkdir(parents=True, exist_ok=True)
    sources = sources_sha256()

    def kept(what: str) -> Finished:
        return Finished(folder / f"{what}.jsonl", sources=sources)

    try:
        with Stop() as stop:
            equivalence = _equivalence(arguments.cells, kept("cells"), stop, console)
            rehearsal = _rehearsal(arguments.scenarios, facts, kept("scenarios"), stop, console)
    except InterruptedRunError as stopped:
        print(
            f"stopped by {stopped}; finished cells and scenarios are kept, run the same command to go on",
            file=sys.stderr,
        )
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


def _equivalence(count: int, finished: Finished, stop: Stop, console: Console) -> Equivalence:
    def difference(cell: RandomCell) -> str | None:
        from bench_runner.equivalence import compare

        stop.check()
        return compare(cell, virtual_ms=VIRTUAL_MS).difference

    cells = list(random_cells(seed=rehearse.SEED, count=count))
    found = differences(cells, difference=difference, finished=finished)
    return agreement(track(found, "scheduler", total=count, console=console), count=count)


def _rehearsal(count: int, facts: Facts, finished: Finished, stop: Stop, console: Console) -> Rehearsal:
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
        answers = rehearse.recommended(asked)
        found = rehearse.results(
            asked,
            answers.chosen,
            installed_default=default,
            installed=rehearse.on_installed,
            finished=finished,
        )
        answered = sum(one is not None for one in answers.chosen)
        results = []
        for result in track(found, "scenarios", total=answered, console=console):
            results.append(result)
            stop.check()
    except InterruptedRunError:
        raise
    except Exception as error:
        return rehearse.nothing(one_line(error), asked=count)
    return Rehearsal(bundle=answers.bundle, asked=count, kept=count - answered, results=tuple(results))


def _share(value: object) -> float:
    """The engine's own utilisation, or ours where it no longer has one; that is refused elsewhere."""
    return value if isinstance(value, float) else B200.engine_default.gpu_memory_utilization


if __name__ == "__main__":
    sys.exit(main())
