"""Is the fast simulator vLLM's scheduler? Random cells on both, compared step by step. Needs the engine's environment.

Both get the same clients, front end and step times. They agree on a cell if every step has the same tokens for the same
requests and ends at the same time, and every request is sent, answered first and answered last at the same times.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track

from bench_runner.engine import ROWS, STEPS, Engine, new_trace, run_engine
from bench_runner.kv_cache import EVICTIONS, blocks_of
from bench_runner.measurement import LOGGED, Recorder, new_recorder
from bench_runner.reference_loop import run_with
from bench_runner.request_stream import RequestStream, longest
from bench_runner.scheduler import PREEMPTIONS
from bench_runner.simulator import Load, SimulationSettings, new_engine
from bench_runner.step_time import load_step_tables
from service.domain.candidate import Candidate

# Every factor's levels occur equally often, in an order of their own: a Latin hypercube over the cells of a run.
MAX_NUM_SEQS = (1, 4, 32, 128, 512, 1024)
BATCHED_TOKENS = (512, 2048, 8192, 16384)
PREFIX_RATIOS = (0.0, 0.1, 0.5, 0.9, 1.0)
PROMPTS = ((1, 64), (65, 1024), (1025, 8192))
OUTPUTS = ((1, 8), (9, 128), (129, 512))
CONCURRENCIES = (1, 4, 16, 64, 128, 256, 512)
# KV cache as a multiple of what the longest requests of all running sequences would take together.
MEMORY = (0.15, 0.3, 0.6, 2.0)
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B")
MOST_STEPS, MOST_ROWS, MOST_REQUESTS = 60_000, 6_000_000, 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCell:
    """One cell of a run, and how to draw it again."""

    seed: int
    index: int
    model: str
    stream: RequestStream
    candidate: Candidate
    kv_blocks: int
    asynchronous: bool

    def engine(self) -> Engine:
        """A new engine for it, with room for a trace."""
        return new_engine(
            self.stream,
            self.candidate,
            kv_blocks=self.kv_blocks,
            table=load_step_tables().of(self.model),
            settings=SimulationSettings(asynchronous=self.asynchronous, ramp_ms=200.0),
            seed=self.seed + self.index,
            trace=new_trace(steps=MOST_STEPS, rows=MOST_ROWS),
        )


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


def random_cells(*, seed: int, count: int) -> Iterator[RandomCell]:
    """`count` cells; equal seeds and counts give equal cells."""
    rng = np.random.default_rng(seed)

    def levels(values: Sequence[object]) -> list[int]:
        rounds = -(-count // len(values))
        return [int(i) for _ in range(rounds) for i in rng.permutation(len(values))][:count]

    drawn_from = (MAX_NUM_SEQS, BATCHED_TOKENS, PREFIX_RATIOS, PROMPTS, OUTPUTS, CONCURRENCIES, MEMORY, MODELS)
    factors = (*drawn_from, (False, True), (False, True))
    for index, drawn in enumerate(zip(*(levels(values) for values in factors), strict=True)):
        seqs, tokens, ratio, prompts, outputs, clients, memory, model = (
            values[level] for values, level in zip(drawn_from, drawn[:8], strict=True)
        )
        asynchronous, fixed = bool(drawn[8]), bool(drawn[9])
        stream = _load(rng, prompts, outputs, ratio=ratio, clients=clients, fixed=fixed).stream()
        most = blocks_of(longest(stream))
        kv_blocks = 1 + most + int(memory * most * min(clients, seqs)) + int(rng.integers(0, 4))
        candidate = Candidate(
            max_num_seqs=min(seqs, tokens),
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=0.9,
            enable_prefix_caching=bool(rng.random() < 0.85),
        )
        yield RandomCell(
            seed=seed,
            index=index,
            model=model,
            stream=stream,
            candidate=candidate,
            kv_blocks=kv_blocks,
            asynchronous=asynchronous,
        )


def _load(
    rng: np.random.Generator,
    prompts: tuple[int, int],
    outputs: tuple[int, int],
    *,
    ratio: float,
    clients: int,
    fixed: bool,
) -> Load:
    size = 1 if fixed else clients
    prompt = np.broadcast_to(rng.integers(prompts[0], prompts[1] + 1, size), clients).astype(np.int64)
    output = np.broadcast_to(rng.integers(outputs[0], outputs[1] + 1, size), clients).astype(np.int64)
    shared = (prompt.min() * ratio).astype(np.int64) // 16
    return Load(prompt=prompt, output=output, shared_blocks=np.full(clients, shared, dtype=np.int64))


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
    parser.add_argument("--cells", type=int, default=210, help="how many random cells (default: 210)")
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
