"""The promises of the memory under load, on real processes. `make operations` runs the same at full length."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from service.bundle import load_bundle
from tests.db.postgresql import PostgresServer
from tests.memory.experiments import (
    PATIENCE_S,
    killed_at_random,
    postgres_paused,
    postgres_stopped,
    spool_full,
    swapped_under_load,
    write_lock_held,
)
from tests.memory.server import Server, run_service
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
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0)
    assert found.answered > 0
    # Every bundle answered, and nothing else did.
    assert len(found.policies) == 3


def test_two_replicas_agree_on_the_bundle_that_a_command_activates(tmp_path: Path) -> None:
    first, second = (write_bundle(tmp_path / str(n), model=graph(random_layers(n))) for n in range(2))
    postgres = PostgresServer(tmp_path / "postgresql")
    settings: dict[str, Any] = {"database_url": postgres.url, "bundle_dir": first, "policy_poll_s": 0.2}
    try:
        with Server(tmp_path / "a", **settings) as a, Server(tmp_path / "b", **settings) as b:
            for command, bundle in ((["activate", str(second)], second), (["rollback"], first)):
                run_service("bundle", *command, folder=tmp_path / "a", **settings)
                wanted = load_bundle(bundle).sha256
                deadline = time.monotonic() + PATIENCE_S
                while any(json.loads(server.get("/readyz"))["policy_sha256"] != wanted for server in (a, b)):
                    assert time.monotonic() < deadline, "the replicas do not agree"
                    time.sleep(0.05)
    finally:
        postgres.end()
