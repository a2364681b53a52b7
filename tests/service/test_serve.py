"""The real process: it starts, answers over TCP, refuses a busy port and stops when told to."""

import signal
import socket
from pathlib import Path

import httpx
import pytest

from service.db.database import open_database
from service.db.schema import HEAD, current_revision
from tests.memory.server import Server
from tests.service.bundles import write_bundle
from tests.service.conftest import QUESTION
from tests.service.serving import PATIENCE_S, free_port, serving, wait_ready


def test_it_serves_answers_and_stops_cleanly_on_sigterm(bundle_dir: Path) -> None:
    port = free_port()
    with serving(bundle_dir, port=port) as child:
        wait_ready(port)
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/recommend", json=QUESTION)
        assert answer.status_code == 200
        assert "server" not in answer.headers
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0
    assert f"http://127.0.0.1:{port}" in out
    assert "Traceback" not in err


def test_a_busy_port_is_one_line(bundle_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(bundle_dir, port=port) as child:
            out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (1, "")
    assert err.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in err
    assert "--port" in err


def test_a_damaged_bundle_stops_the_start_with_one_line(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    (tmp_path / "evaluation.json").write_text("{}")
    with serving(tmp_path) as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (1, "")
    assert err.count("\n") == 1
    assert "evaluation.json: sha256 is" in err


def test_serving_migrates_the_embedded_database_and_keeps_every_answer(bundle_dir: Path, tmp_path: Path) -> None:
    with Server(tmp_path, bundle_dir=bundle_dir) as server:
        ids = [server_answer(server.port) for _ in range(3)]
        assert server.stop() == 0
        database = open_database(None, data_dir=tmp_path)
        assert current_revision(database) == HEAD
        with database.transaction() as connection:
            assert set(connection.exec_driver_sql("SELECT id FROM recommendations").scalars()) == set(ids)
        database.dispose()
        # Nothing is left in a spool, and the next start goes on with the same file.
        assert not list(tmp_path.glob("spool/*"))
        server.start()
        server_answer(server.port)


def server_answer(port: int) -> str:
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/recommend", json=QUESTION)
    assert answer.status_code == 200
    recommendation_id: str = answer.json()["recommendation_id"]
    return recommendation_id


def test_a_folder_that_cannot_hold_the_database_is_one_line(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memorypolicy.db").mkdir()
    monkeypatch.setenv("MEMORYPOLICY_DATA_DIR", str(tmp_path))
    with serving(bundle_dir) as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (1, "")
    assert err.count("\n") == 1
    assert "unable to open database file" in err
