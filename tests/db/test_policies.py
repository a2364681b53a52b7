"""Stored bundles: one active at a time, taken back one by one, refused where they are damaged."""

from pathlib import Path

import pytest
from sqlalchemy import text

from service.bundle import Bundle, load_bundle
from service.db.database import Database
from service.db.policies import activate, active_digest, full_digest, read_bundle, roll_back, stored_bundles
from service.domain.errors import ArtefactError
from service.policies import policy_of
from tests.service.bundles import graph, random_layers, write_bundle


@pytest.fixture
def bundles(tmp_path: Path) -> list[Bundle]:
    """Three that differ in their weights."""
    return [
        load_bundle(write_bundle(tmp_path / str(seed), model=graph(random_layers(seed)), version=f"v{seed}"))
        for seed in range(3)
    ]


def test_nothing_is_active_at_first(database: Database) -> None:
    assert active_digest(database) is None
    assert stored_bundles(database) == []
    with pytest.raises(ArtefactError, match="nothing is activated"):
        roll_back(database, now_ms=1, verify=policy_of)


def test_an_activated_bundle_comes_back_byte_for_byte(database: Database, bundles: list[Bundle]) -> None:
    activate(database, bundles[0], now_ms=5, note="first")
    assert active_digest(database) == bundles[0].sha256
    found = read_bundle(database, bundles[0].sha256)
    assert (found.files, found.manifest, found.sha256) == (
        bundles[0].files,
        bundles[0].manifest,
        bundles[0].sha256,
    )
    (listed,) = stored_bundles(database)
    assert (listed.version, listed.created_ms, listed.active) == ("v0", 5, True)


def test_rollbacks_go_back_one_by_one_to_the_bundle_of_the_settings(database: Database, bundles: list[Bundle]) -> None:
    for number, bundle in enumerate(bundles):
        activate(database, bundle, now_ms=number)
    # Activated once more, it is no step of its own.
    activate(database, bundles[2], now_ms=9)
    assert active_digest(database) == bundles[2].sha256
    assert roll_back(database, now_ms=10, verify=policy_of) == bundles[1].sha256
    assert roll_back(database, now_ms=11, verify=policy_of) == bundles[0].sha256
    assert active_digest(database) == bundles[0].sha256
    assert roll_back(database, now_ms=12, verify=policy_of) is None
    assert active_digest(database) is None
    activate(database, bundles[1], now_ms=13)
    assert active_digest(database) == bundles[1].sha256


def test_a_digest_may_be_shortened_while_it_names_one(database: Database, bundles: list[Bundle]) -> None:
    activate(database, bundles[0], now_ms=1)
    assert full_digest(database, bundles[0].sha256[:8]) == bundles[0].sha256
    for beginning in (bundles[0].sha256[:3], "0" * 12):
        with pytest.raises(ArtefactError, match="bundle list"):
            full_digest(database, beginning)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE policy_bundle_files SET content = :other WHERE name = 'model.onnx'", "model.onnx: sha256 is"),
        ("DELETE FROM policy_bundle_files WHERE name = 'evaluation.json'", "evaluation.json: is missing"),
        ("DELETE FROM policy_bundle_files", "manifest.json: is missing"),
        ("UPDATE policy_bundle_files SET content = :other WHERE name = 'manifest.json'", "not JSON"),
    ],
)
def test_a_damaged_stored_bundle_is_refused(
    database: Database, bundles: list[Bundle], damage: str, message: str
) -> None:
    activate(database, bundles[0], now_ms=1)
    with database.transaction() as connection:
        connection.execute(text(damage), {"other": b"damaged"} if ":other" in damage else {})
    with pytest.raises(ArtefactError, match=message):
        read_bundle(database, bundles[0].sha256)


def test_a_bundle_under_another_digest_is_refused(database: Database, bundles: list[Bundle]) -> None:
    activate(database, bundles[0], now_ms=1)
    with database.transaction() as connection:
        connection.execute(
            text("INSERT INTO policy_bundles SELECT :other, name, version, evidence, gpu, engine_version, created_ms "
                 "FROM policy_bundles"), {"other": "f" * 64},
        )  # fmt: skip
        connection.execute(text("UPDATE policy_bundle_files SET sha256 = :other"), {"other": "f" * 64})
    with pytest.raises(ArtefactError, match=f"has the sha256 {bundles[0].sha256}"):
        read_bundle(database, "f" * 64)


def test_a_rollback_to_a_damaged_bundle_changes_nothing(database: Database, bundles: list[Bundle]) -> None:
    activate(database, bundles[0], now_ms=1)
    activate(database, bundles[1], now_ms=2)
    with database.transaction() as connection:
        damage = text("UPDATE policy_bundle_files SET content = :other WHERE name = 'model.onnx' AND sha256 = :sha256")
        connection.execute(damage, {"other": b"", "sha256": bundles[0].sha256})
    with pytest.raises(ArtefactError, match=r"model\.onnx"):
        roll_back(database, now_ms=3, verify=policy_of)
    assert active_digest(database) == bundles[1].sha256
