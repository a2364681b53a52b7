"""The promises of the memory under load, on real processes. `make operations` runs the same at full length."""

from pathlib import Path

import pytest

from tests.memory.experiments import (
    killed_at_random,
    postgres_paused,
    postgres_stopped,
    spool_full,
    swapped_under_load,
    write_lock_held,
)
from tests.service.bundles import graph, random_layers, write_bundle

CONNECTIONS = 32


def test_every_acknowledged_answer_survives_ten_kills(tmp_path: Path) -> None:
    found = killed_at_random(tmp_path, times=10, connections=CONNECTIONS, seed=7, name="SQLite")
    assert found.acknowledged > 0
    assert (found.lost, found.doubled) == (0, 0)


def test_a_stopped_postgresql_fails_no_answer_and_loses_none(tmp_path: Path) -> None:
    found = postgres_stopped(tmp_path, seconds=3.0, connections=CONNECTIONS)
    assert found.acknowledged > 0
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)


def test_a_kill_while_postgresql_is_away_loses_no_answer(tmp_path: Path) -> None:
    found = postgres_stopped(tmp_path, seconds=1.0, connections=CONNECTIONS, kill=True)
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)


def test_a_postgresql_that_hangs_fails_no_answer_and_loses_none(tmp_path: Path) -> None:
    found = postgres_paused(tmp_path, seconds=2.0, connections=CONNECTIONS)
    assert found.acknowledged > 0
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)


def test_a_write_lock_held_elsewhere_fails_no_answer_and_loses_none(tmp_path: Path) -> None:
    found = write_lock_held(tmp_path, seconds=2.0, connections=CONNECTIONS)
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)


def test_a_full_spool_refuses_with_503_and_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    found, failures = spool_full(tmp_path, connections=CONNECTIONS)
    assert set(failures) == {503}
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)


@pytest.mark.parametrize("swaps", [20])
def test_swaps_under_load_drop_no_request_and_every_answer_names_its_bundle(tmp_path: Path, swaps: int) -> None:
    bundles = [write_bundle(tmp_path / str(seed), model=graph(random_layers(seed))) for seed in range(3)]
    found = swapped_under_load(tmp_path / "server", bundles, swaps=swaps, rounds=2, connections=CONNECTIONS)
    assert found.failed == 0
    assert found.answered > 0
    # Every bundle answered, and nothing else did.
    assert len(found.policies) == 3
