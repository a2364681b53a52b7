"""A run that was skipped is the run that would have been made, bit for bit."""

import numpy as np
import pytest

from bench_runner.kv_cache import blocks_of
from bench_runner.random_cells import BATCHED_TOKENS, MAX_NUM_SEQS, RandomCell, random_cells
from bench_runner.request_stream import longest
from bench_runner.simulator import Load, Observed, SimulationSettings, Window, simulate
from bench_runner.stand_in import Run, Setup, run_all
from bench_runner.step_time import load_step_tables
from service.domain.candidate import Candidate
from service.domain.scenario import Workload

CELLS = 120
WINDOW = Window(warm_up_ms=300.0, length_ms=1200.0)


def simulated(cell: RandomCell, candidate: Candidate, kv_blocks: int) -> Observed:
    return simulate(
        cell.stream,
        candidate,
        kv_blocks=kv_blocks,
        table=load_step_tables().of(cell.model),
        settings=SimulationSettings(asynchronous=cell.asynchronous),
        window=WINDOW,
        seed=cell.index,
    )


def setups_around(cell: RandomCell, rng: np.random.Generator) -> list[Setup]:
    """Twelve configurations of all limits, small and large, with and without prefix caching."""
    least = 2 + blocks_of(longest(cell.stream))
    blocks = (least, cell.kv_blocks + 1, 2 * cell.kv_blocks + 8, 20 * cell.kv_blocks)
    found = []
    for _ in range(12):
        tokens = int(rng.choice(BATCHED_TOKENS))
        found.append(
            Setup(
                candidate=Candidate(
                    max_num_seqs=min(int(rng.choice(MAX_NUM_SEQS)), tokens),
                    max_num_batched_tokens=tokens,
                    gpu_memory_utilization=0.9,
                    enable_prefix_caching=bool(rng.random() < 0.7),
                ),
                kv_blocks=max(int(rng.choice(blocks)), least),
            )
        )
    return found


def same(one: Observed, other: Observed) -> bool:
    """Everything that a row is made of, without a tolerance. The share of a pool's blocks depends on its size."""
    return (
        one.tokens == other.tokens
        and one.steps == other.steps
        and np.array_equal(one.ttft_ms, other.ttft_ms)
        and np.array_equal(one.tpot_ms, other.tpot_ms)
        and (one.waiting_at_end, one.running_at_end) == (other.waiting_at_end, other.running_at_end)
        and (one.preemptions, one.delayed) == (other.preemptions, other.delayed)
    )


def test_runs_that_stand_for_others_equal_them_bit_for_bit() -> None:
    rng = np.random.default_rng(6)
    skipped, preempting, evicting = 0, 0, 0
    for cell in random_cells(seed=606, count=CELLS):
        setups = setups_around(cell, rng)
        found, runs = run_all(
            cell.stream,
            setups,
            table=load_step_tables().of(cell.model),
            settings=SimulationSettings(asynchronous=cell.asynchronous),
            window=WINDOW,
            seed=cell.index,
        )
        skipped += len(setups) - runs
        for setup, one in zip(setups, found, strict=True):
            assert one is not None
            assert setup.kv_blocks is not None
            whole = simulated(cell, setup.candidate, setup.kv_blocks)
            assert same(one, whole), (cell.index, setup)
            preempting += whole.preemptions > 0
            evicting += whole.limits_use.content_lost
    # The comparison means something only where runs were skipped, and where limits bound.
    assert skipped > 300
    assert preempting > 50
    assert evicting > 20


def test_what_does_not_start_has_no_run() -> None:
    stream = Load.of(Workload(prompt_tokens=64, max_new_tokens=8, shared_prefix_ratio=0.0, concurrency=2)).stream()
    candidate = Candidate(
        max_num_seqs=8, max_num_batched_tokens=256, gpu_memory_utilization=0.9, enable_prefix_caching=True
    )
    found, runs = run_all(
        stream,
        [Setup(candidate=candidate, kv_blocks=None)],
        table=load_step_tables().of("Qwen/Qwen3-0.6B"),
        settings=SimulationSettings(),
        window=WINDOW,
        seed=1,
    )
    assert (found, runs) == ([None], 0)


@pytest.mark.parametrize(
    ("clients", "seqs", "stands"),
    [
        (4, 4, True),  # four clients never run five requests
        (4, 3, False),  # three would have kept the fourth out
    ],
)
def test_a_limit_that_was_never_reached_may_be_any_number_that_would_not_be_reached(
    clients: int, seqs: int, stands: bool
) -> None:
    stream = Load.of(
        Workload(prompt_tokens=256, max_new_tokens=64, shared_prefix_ratio=0.0, concurrency=clients)
    ).stream()
    wide = Candidate(
        max_num_seqs=64, max_num_batched_tokens=8192, gpu_memory_utilization=0.9, enable_prefix_caching=True
    )
    observed = simulate(
        stream,
        wide,
        kv_blocks=4000,
        table=load_step_tables().of("Qwen/Qwen3-0.6B"),
        settings=SimulationSettings(),
        window=WINDOW,
        seed=1,
    )
    assert observed.limits_use.running == 4
    narrow = Candidate(
        max_num_seqs=seqs, max_num_batched_tokens=8192, gpu_memory_utilization=0.9, enable_prefix_caching=False
    )
    run = Run(candidate=wide, kv_blocks=4000, observed=observed)
    # Nothing is shared, so nothing was ever found in the cache and caching may as well be off.
    assert run.stands_for(narrow, kv_blocks=4000) is stands
