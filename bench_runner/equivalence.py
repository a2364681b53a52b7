"""Is the fast simulator vLLM's scheduler? Random cells on both, compared step by step. Needs the engine's environment.

Both get the same clients, front end and step times. They agree on a cell if every step has the same tokens for the same
requests and ends at the same time, and every request is sent, answered first and answered last at the same times.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track

from bench_runner.engine import ROWS, STEPS, Engine, run_engine
from bench_runner.kv_cache import EVICTIONS
from bench_runner.measurement import LOGGED, Recorder, new_recorder
from bench_runner.random_cells import MOST_ROWS, MOST_STEPS, RandomCell, random_cells
from bench_runner.reference_loop import run_with
from bench_runner.request_stream import longest
from bench_runner.scheduler import PREEMPTIONS

MOST_REQUESTS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cell on both: difference is None where they agree; times in seconds, without set-up."""

    cell: RandomCell
    difference: str | None
    preemptions: int
    evictions: int
    steps: int
    requests: int
    fast_s: float
    reference_s: float


def compare(cell: RandomCell, *, virtual_ms: float) -> Verdict:
    """Runs a cell on both and says where they differ first."""
    from bench_runner.reference_scheduler import ReferenceScheduler

    fast, reference = cell.engine(), cell.engine()
    scheduler = ReferenceScheduler(
        requests=reference.requests,
        limits=reference.limits,
        blocks=cell.kv_blocks,
        caching=cell.candidate.enable_prefix_caching,
        max_model_len=max(longest(cell.stream), 64),
    )
    fast_s, seen = _timed(lambda recorder: run_engine(fast, recorder), virtual_ms)
    reference_s, expected = _timed(lambda recorder: run_with(scheduler, reference, recorder), virtual_ms)
    return Verdict(
        cell=cell,
        difference=_difference(fast, seen, reference, expected),
        preemptions=int(fast.requests.totals[PREEMPTIONS]),
        evictions=int(fast.pool.totals[EVICTIONS]),
        steps=int(fast.trace.counts[STEPS]),
        requests=int(seen.counts[LOGGED]),
        fast_s=fast_s,
        reference_s=reference_s,
    )


def _timed(run: Callable[[Recorder], Recorder], virtual_ms: float) -> tuple[float, Recorder]:
    recorder = new_recorder(start_ms=0.0, end_ms=virtual_ms, capacity=MOST_REQUESTS, logged=MOST_REQUESTS)
    start = time.perf_counter()
    recorder = run(recorder)
    return time.perf_counter() - start, recorder


def _difference(fast: Engine, seen: Recorder, reference: Engine, expected: Recorder) -> str | None:
    if fast.trace.counts[ROWS] >= MOST_ROWS or fast.trace.counts[STEPS] >= MOST_STEPS:
        return "the trace is full: shorten the window"
    for what, mine, theirs in (
        ("step rows (step, client, tokens)", fast.trace.rows, reference.trace.rows),
        ("step ends", fast.trace.end_ms, reference.trace.end_ms),
        ("requests (client, sent, first, last)", seen.log, expected.log),
    ):
        if not np.array_equal(mine, theirs):
            row = int(np.argwhere((mine != theirs).reshape(len(mine), -1).any(axis=1))[0][0])
            return f"{what}, row {row}: fast {mine[row].tolist()}, vLLM {theirs[row].tolist()}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if all cells agree and enough of them preempt and evict, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench_runner.equivalence", description=__doc__)
    parser.add_argument("--cells", type=int, default=294, help="how many random cells (default: 294)")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--only", type=int, metavar="I", help="only this cell of the run")
    parser.add_argument("--virtual-ms", type=float, default=4000.0, help="simulated time of a cell (default: 4000)")
    parser.add_argument("--least", type=int, default=40, help="cells that must preempt, and cells that must evict")
    arguments = parser.parse_args(argv)
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    console = Console()
    again = f"python -m bench_runner.equivalence --cells {arguments.cells} --virtual-ms {arguments.virtual_ms:g}"
    console.print(f"seed {seed}: {again} --seed {seed}", soft_wrap=True)
    cells = [c for c in random_cells(seed=seed, count=arguments.cells) if arguments.only in (None, c.index)]
    # Compiled before anything is timed.
    compare(next(random_cells(seed=0, count=1)), virtual_ms=10.0)
    verdicts = [compare(cell, virtual_ms=arguments.virtual_ms) for cell in track(cells, "comparing", console=console)]
    for verdict in verdicts:
        if verdict.difference is not None:
            command = f"{again} --seed {seed} --only {verdict.cell.index}"
            console.print(f"DIFFERS {command}: {verdict.difference}", soft_wrap=True)
    return _summary(verdicts, console, least=arguments.least if arguments.only is None else 0)


def _summary(verdicts: list[Verdict], console: Console, *, least: int) -> int:
    equal = sum(verdict.difference is None for verdict in verdicts)
    preempting = sum(verdict.preemptions > 0 for verdict in verdicts)
    evicting = sum(verdict.evictions > 0 for verdict in verdicts)
    steps, requests = sum(v.steps for v in verdicts), sum(v.requests for v in verdicts)
    console.print(
        f"{equal} of {len(verdicts)} cells agree exactly: {steps} steps, {requests} requests; "
        f"{preempting} cells with preemption, {evicting} with eviction",
        soft_wrap=True,
    )
    fast, reference = sum(v.fast_s for v in verdicts), sum(v.reference_s for v in verdicts)
    console.print(f"fast simulator {fast:.2f} s, vLLM's scheduler {reference:.1f} s on the same cells", soft_wrap=True)
    return 0 if equal == len(verdicts) and min(preempting, evicting) >= least else 1


if __name__ == "__main__":
    sys.exit(main())
