"""The real process: it starts, answers over TCP, refuses a busy port and stops when told to."""

import signal
import socket
from pathlib import Path

import httpx

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
