"""HTTP as bytes on a socket, for what no client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.memory.load import QUESTION

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body, which must be a problem."""
        assert self.headers["content-type"] == "application/problem+json"
        content: dict[str, Any] = json.loads(self.body)
        assert content["status"] == self.status
        return content


class Wire:
    """A connection to 127.0.0.1."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_S)
        try:
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Both halves."""
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> "Wire":
        """All of it."""
        self._socket.sendall(data)
        return self

    def end(self) -> "Wire":
        """Nothing more is sent, as a client says that has all its questions asked."""
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def answer(self) -> Answer:
        """The next one, whole."""
        status = self._file.readline()
        assert status.startswith(b"HTTP/1.1 "), status
        headers: dict[str, str] = {}
        while (line := self._file.readline().decode().rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers["content-length"])
        body = self._file.read(length)
        assert len(body) == length
        return Answer(int(status[9:12]), headers, body)

    def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        return self._file.read()


def question(*headers: str, body: bytes | None = None) -> bytes:
    """A whole request of POST /v1/recommend."""
    content = json.dumps(QUESTION).encode() if body is None else body
    lines = [
        "POST /v1/recommend HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content
