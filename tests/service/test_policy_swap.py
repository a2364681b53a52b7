"""The database names the active bundle: replicas follow, refuse what is damaged, and say which bundle answered."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service.__main__ import main
from service.app import create_app
from service.bundle import load_bundle
from service.settings import Settings
from tests.service.bundles import graph, random_layers, write_bundle
from tests.service.conftest import QUESTION, Client

Run = Callable[..., str]


@pytest.fixture
def run(bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`python -m service …` on a database of its own; what it prints."""
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(bundle_dir))
    monkeypatch.setenv("MEMORYPOLICY_DATA_DIR", str(tmp_path / "data"))

    def command(*arguments: str, status: int = 0) -> str:
        assert main(arguments) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return command


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A bundle with other weights."""
    return write_bundle(tmp_path / "other", model=graph(random_layers(7)), version="9.9.9")


def replica(bundle_dir: Path, tmp_path: Path) -> Client:
    return Client(create_app(Settings(bundle_dir=bundle_dir, data_dir=tmp_path / "data")))


def look(client: Client) -> None:
    """What the watching thread does every second."""
    client.app.state.api.memory.watch.look()


def answering(client: Client) -> str:
    sha256: str = client.recommend(QUESTION).json()["policy"]["sha256"]
    return sha256


def test_every_replica_follows_an_activation_and_a_rollback(
    run: Run, bundle_dir: Path, other: Path, tmp_path: Path
) -> None:
    replicas = [replica(bundle_dir, tmp_path) for _ in range(2)]
    first, second = load_bundle(bundle_dir).sha256, load_bundle(other).sha256
    assert [answering(client) for client in replicas] == [first, first]
    etag = replicas[0].get("/v1/policy").headers["ETag"]
    assert json.loads(run("bundle", "activate", str(other), "--json"))["active"] == second
    for client in replicas:
        look(client)
    assert [answering(client) for client in replicas] == [second, second]
    assert replicas[0].get("/v1/policy").headers["ETag"] != etag
    assert replicas[0].get("/v1/policy").json()["sha256"] == second
    # A replica that starts now begins with it.
    assert answering(replica(bundle_dir, tmp_path)) == second
    run("bundle", "rollback")
    for client in replicas:
        look(client)
    assert [answering(client) for client in replicas] == [first, first]
    assert replicas[0].get("/v1/policy").headers["ETag"] == etag


def test_the_list_shows_what_was_activated_and_what_is_active(run: Run, bundle_dir: Path, other: Path) -> None:
    assert "the bundle of each replica's settings" in run("bundle", "list")
    run("bundle", "activate", str(bundle_dir), "--note", "a first one")
    run("bundle", "activate", str(other))
    lines = run("bundle", "list").splitlines()
    assert [line.split()[0] for line in lines if "9.9.9" in line] == ["active"]
    listed = json.loads(run("bundle", "list", "--json"))
    assert [(bundle["version"], bundle["active"]) for bundle in listed] == [("1.2.3", False), ("9.9.9", True)]
    # A stored bundle is activated by its digest, without its folder.
    assert listed[0]["sha256"] in run("bundle", "activate", listed[0]["sha256"][:10])


@pytest.mark.parametrize("damage", ["model", "schema", "graph"])
def test_a_damaged_or_foreign_bundle_is_refused_before_anybody_sees_it(
    run: Run, bundle_dir: Path, tmp_path: Path, damage: str
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "model": {},
        "schema": {"feature_schema": "f" * 64},
        "graph": {"model": b"no graph"},
    }
    broken = write_bundle(tmp_path / "broken", **changes[damage])
    if damage == "model":
        (broken / "model.onnx").write_bytes(b"cut")
    client = replica(bundle_dir, tmp_path)
    line = run("bundle", "activate", str(broken), status=1)
    assert line.count("\n") == 1
    look(client)
    assert answering(client) == load_bundle(bundle_dir).sha256
    assert json.loads(run("bundle", "list", "--json")) == []


def test_a_bundle_that_is_damaged_in_the_database_is_refused_and_the_old_one_goes_on(
    run: Run, bundle_dir: Path, other: Path, tmp_path: Path
) -> None:
    client = replica(bundle_dir, tmp_path)
    run("bundle", "activate", str(other))
    with client.app.state.api.memory.database.transaction() as connection:
        connection.execute(text("UPDATE policy_bundle_files SET content = x'00' WHERE name = 'model.onnx'"))
    for _ in range(3):
        look(client)
    assert answering(client) == load_bundle(bundle_dir).sha256
    assert "memorypolicy_policy_refusals_total 1" in client.get("/metrics").text
    # A replica that starts now serves the bundle of its settings.
    assert answering(replica(bundle_dir, tmp_path)) == load_bundle(bundle_dir).sha256
    run("bundle", "rollback")
    look(client)
    assert answering(client) == load_bundle(bundle_dir).sha256


def test_nothing_to_roll_back_is_one_line(run: Run) -> None:
    assert "nothing is activated" in run("bundle", "rollback", status=1)


def test_a_digest_that_is_not_stored_is_one_line(run: Run) -> None:
    assert "0 stored bundles begin so" in run("bundle", "activate", "abcdef123456", status=1)


def test_a_database_that_is_away_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_DATABASE_URL", "postgresql://someone:secret@127.0.0.1:1/none")
    line = run("bundle", "list", status=1)
    assert line.count("\n") == 1
    assert "MEMORYPOLICY_DATABASE_URL" in line
    assert "secret" not in line


def test_the_database_is_migrated_looked_at_and_cleaned_by_commands(run: Run, bundle_dir: Path, tmp_path: Path) -> None:
    assert json.loads(run("db", "migrate", "--json"))["schema"] == "0002"
    client = replica(bundle_dir, tmp_path)
    for project in ("search", "chat"):
        client.request("POST", "/v1/recommend", json=QUESTION, headers={"X-Project-ID": project})
    assert json.loads(run("db", "status", "--json"))["recommendations"] == 2
    assert json.loads(run("db", "delete-project", "search", "--json"))["recommendations"] == 1
    assert "recommendations: 0" in run("db", "prune", "--keep-days", "1")
    assert json.loads(run("db", "prune", "--keep-days", "0", "--json"))["recommendations"] == 1
    with pytest.raises(SystemExit):
        run("db", "prune", "--keep-days", "many")
