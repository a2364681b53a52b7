"""What a connection of the real server does with heads that are late, large or wrong, and with wishes to upgrade."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from service.server.protocol import MAX_HEAD_BYTES
from tests.memory.load import QUESTION
from tests.memory.server import Server
from tests.service.wire import PATIENCE_S, Wire, question

GET = b"GET /v1/configs HTTP/1.1\r\nHost: test\r\n\r\n"
H2C = ("Connection: keep-alive, Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, bundle_dir: Path) -> Iterator[int]:
    """The port of a server that waits long for a request."""
    with Server(tmp_path_factory.mktemp("patient"), bundle_dir=bundle_dir, body_timeout_s=600) as server:
        yield server.port


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, bundle_dir: Path) -> Iterator[Server]:
    """One that waits two seconds."""
    with Server(tmp_path_factory.mktemp("impatient"), bundle_dir=bundle_dir, body_timeout_s=2) as server:
        yield server


@pytest.mark.parametrize(
    "sent",
    [
        b"rubbish\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: test\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: test\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: -3\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_not_http_is_a_problem_and_the_connection_ends(patient: int, sent: bytes) -> None:
    with Wire(patient) as wire:
        answer = wire.send(sent).answer()
        assert wire.rest() == b""
    assert (answer.status, answer.problem["error"]) == (400, "invalid_http")
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] == answer.problem["request_id"]
    assert answer.headers["cache-control"] == "no-store"
    assert "date" in answer.headers


def test_a_chunk_that_is_none_ends_the_request_that_waits_for_it(patient: int) -> None:
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    with Wire(patient) as wire:
        wire.send(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{  \r\n").send(b"not a size\r\n")
        assert wire.answer().problem["error"] == "invalid_http"
        assert wire.rest() == b""


def test_rubbish_behind_a_whole_request_does_not_take_its_answer(patient: int) -> None:
    with Wire(patient) as wire:
        answer = wire.send(question() + b"rubbish\r\n\r\n").answer()
        assert wire.rest() == b""
    assert answer.status == 200
    assert len(json.loads(answer.body)["ranked"]) == 15


def test_requests_sent_at_once_are_answered_in_their_order(patient: int) -> None:
    with Wire(patient) as wire:
        wire.send(question() + GET + question())
        answers = [wire.answer() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert ["ranked" in json.loads(answer.body) for answer in answers] == [True, False, True]


def test_a_client_that_has_said_all_still_hears_the_answer(patient: int) -> None:
    with Wire(patient) as wire:
        assert wire.send(question()).end().answer().status == 200
        assert wire.rest() == b""


def test_a_client_that_ends_in_the_middle_of_its_request_is_gone(patient: int) -> None:
    with Wire(patient) as wire:
        assert wire.send(question()[:-10]).end().rest() == b""
    with Wire(patient) as wire:
        assert wire.send(question()[:20]).end().rest() == b""


def large_head(size: int) -> bytes:
    """A request whose URL and headers, with two separators each, are that long."""
    least = len("/v1/configs") + len("Host") + len("test") + 4 + len("X-Long") + 4
    return b"GET /v1/configs HTTP/1.1\r\nHost: test\r\nX-Long: " + b"x" * (size - least) + b"\r\n\r\n"


def test_a_head_may_be_as_large_as_the_limit_and_no_larger(patient: int) -> None:
    with Wire(patient) as wire:
        assert wire.send(large_head(MAX_HEAD_BYTES)).answer().status == 200
    with Wire(patient) as wire:
        answer = wire.send(large_head(MAX_HEAD_BYTES + 1)).answer()
        assert wire.rest() == b""
    assert (answer.status, answer.problem["error"]) == (431, "head_too_large")
    assert f"{MAX_HEAD_BYTES:,}" in answer.problem["message"]


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nX-Long: ", b"GET / HTTP/1.1\r\n"])
def test_a_head_without_an_end_is_refused_while_it_is_read(patient: int, begin: bytes) -> None:
    piece = b"X: y\r\n" * 500 if begin.endswith(b"\n") else b"x" * 3000
    with Wire(patient) as wire:
        wire.send(begin)
        for _ in range(MAX_HEAD_BYTES // 3000 + 1):
            wire.send(piece)
        assert wire.answer().problem["error"] == "head_too_large"
        assert wire.rest() == b""


def test_a_large_body_is_no_large_head(patient: int) -> None:
    with Wire(patient) as wire:
        padded = json.dumps(QUESTION).encode() + b" " * 2 * MAX_HEAD_BYTES
        assert wire.send(question(body=padded)).answer().status == 200
        assert wire.send(question()).answer().status == 200


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_request_that_wishes_to_upgrade_is_answered_as_it_is(patient: int, size: int) -> None:
    sent = question(*H2C)
    with Wire(patient) as wire:
        # Twice: the connection is not left in an odd state.
        for _ in range(2):
            for start in range(0, len(sent), size):
                wire.send(sent[start : start + size])
            assert wire.answer().status == 200


def test_requests_behind_one_that_wishes_to_upgrade_are_read(patient: int) -> None:
    with Wire(patient) as wire:
        wire.send(question(*H2C) + question(*H2C) + GET)
        assert [wire.answer().status for _ in range(3)] == [200, 200, 200]


def test_any_number_of_requests_that_wish_to_upgrade_may_be_sent_at_once(patient: int) -> None:
    sent = b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with Wire(patient) as wire:
        wire.send(sent * 1500)
        assert {wire.answer().status for _ in range(1500)} == {200}


def test_an_old_client_that_wishes_to_upgrade_is_answered_as_an_old_client(patient: int) -> None:
    with Wire(patient) as wire:
        wire.send(b"GET /healthz HTTP/1.0\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert wire.answer().headers["connection"] == "close"
        assert wire.rest() == b""


def test_a_chunked_request_that_wishes_to_upgrade_is_answered(patient: int) -> None:
    body = json.dumps(QUESTION).encode()
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    wish = b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Wire(patient) as wire:
        wire.send(head + wish + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert wire.answer().status == 200


def test_a_websocket_is_answered_as_the_get_that_it_is(patient: int) -> None:
    wish = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n"
    with Wire(patient) as wire:
        assert wire.send(GET[:-2] + wish).answer().status == 200
        assert wire.send(GET).answer().status == 200


def test_a_client_that_says_nothing_is_sent_away_without_a_word(impatient: Server) -> None:
    with Wire(impatient.port) as wire:
        assert wire.rest() == b""
    with Wire(impatient.port) as wire:
        assert wire.send(GET).answer().status == 200
        # Blank lines before a request are allowed, but they are none.
        assert wire.send(b"\r\n").rest() == b""


def test_half_a_head_is_waited_for_and_then_refused(impatient: Server) -> None:
    with Wire(impatient.port) as wire:
        answer = wire.send(GET[:20]).answer()
        assert wire.rest() == b""
    assert (answer.status, answer.problem["error"]) == (408, "request_timeout")
    assert "within 2 s" in answer.problem["message"]


def test_half_a_second_head_is_refused_as_a_first_one_is(impatient: Server) -> None:
    with Wire(impatient.port) as wire:
        assert wire.send(GET + GET[:20]).answer().status == 200
        assert wire.answer().problem["error"] == "request_timeout"
        assert wire.rest() == b""


def test_half_a_body_is_waited_for_and_then_refused(impatient: Server) -> None:
    with Wire(impatient.port) as wire:
        answer = wire.send(question()[:-10]).answer()
        assert wire.rest() == b""
    assert (answer.status, answer.problem["error"]) == (408, "request_timeout")


def test_a_client_that_does_not_read_is_cut_off(impatient: Server) -> None:
    sent = b"GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n" * 100
    with Wire(impatient.port, receive_bytes=4096) as wire:
        wire.send(sent)
        eventually(lambda: connections(impatient) > 0)
        # Its answers fill every buffer on the way, and nothing moves.
        eventually(lambda: connections(impatient) == 0)
    assert httpx.get(f"http://127.0.0.1:{impatient.port}/readyz").status_code == 200


def test_stalled_clients_do_not_stop_others(impatient: Server) -> None:
    whole = question()
    with ExitStack() as stack:
        stalled = [stack.enter_context(Wire(impatient.port)) for _ in range(200)]
        for number, wire in enumerate(stalled):
            wire.send((b"", whole[:30], whole[:-5])[number % 3])
        slow = [stack.enter_context(Wire(impatient.port)) for _ in range(20)]
        for position in range(10):
            for wire in slow:
                # One byte now and then; the server may have had enough of it.
                with suppress(OSError):
                    wire.send(whole[position : position + 1])
            with Wire(impatient.port) as other:
                assert other.send(whole).answer().status == 200
        endings = [wire.rest() for wire in stalled]
        for wire in slow:
            with suppress(OSError):
                wire.rest()
    assert {ending[:12] for ending in endings} == {b"", b"HTTP/1.1 408"}
    # Only those that had sent nothing are left without a word: 67 of 200.
    assert endings.count(b"") == 67


def connections(server: Server) -> int:
    """Those that the server's process holds open."""
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


def eventually(holds: Callable[[], bool]) -> None:
    """Returns once it does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
