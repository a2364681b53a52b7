"""Runs in the engine's environment only: make test-engine."""

from dataclasses import replace

import numpy as np
import pytest

from bench_runner.engine import Engine, run_engine
from bench_runner.equivalence import compare
from bench_runner.measurement import new_recorder
from bench_runner.random_cells import RandomCell, random_cells
from bench_runner.scheduler import PREEMPTIONS
from tests.engine.conftest import CELLS, SEED, VIRTUAL_MS, again


@pytest.mark.parametrize("cell", random_cells(seed=SEED, count=CELLS), ids=lambda cell: f"cell-{cell.index}")
def test_the_simulator_schedules_what_the_engine_schedules(cell: RandomCell) -> None:
    assert compare(cell, virtual_ms=VIRTUAL_MS).difference is None, f"{again()} --only {cell.index}"


def test_the_comparison_sees_one_block_of_difference() -> None:
    def run(cell: RandomCell) -> Engine:
        engine = cell.engine()
        run_engine(engine, new_recorder(start_ms=0.0, end_ms=VIRTUAL_MS, capacity=400_000))
        return engine

    pressed = next(c for c in random_cells(seed=1, count=60) if run(c).requests.totals[PREEMPTIONS] > 5)
    fewer = replace(pressed, kv_blocks=pressed.kv_blocks - 1)
    assert not np.array_equal(run(pressed).trace.rows, run(fewer).trace.rows)
