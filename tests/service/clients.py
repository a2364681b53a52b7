"""Clients that go on asking while servers come and go, and remember what each request came to."""

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.memory.load import request

KEEP_ALIVE = request()
CLOSE = request(headers="Connection: close\r\n")
_ID = b'"recommendation_id":"'
RETRY_S = 0.02


@dataclass(slots=True)
class Seen:
    """ids: of whole answers. broken: why a request that was sent has none. refused: nobody listened."""

    ids: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    refused: int = 0


class Connection:
    """One that may have been closed by the server since the last answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def usable(self) -> bool:
        """As a client's pool looks before it takes a connection again."""
        return not self._reader.at_eof()

    async def ask(self, message: bytes, seen: Seen) -> bool:
        """One request and its whole answer; True if another one may follow."""
        try:
            self._writer.write(message)
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.broken.append(repr(error))
            return False
        if head.startswith(b"http/1.1 200 "):
            start = body.index(_ID) + len(_ID)
            seen.ids.append(body[start : start + 36].decode())
        else:
            seen.broken.append(head[:12].decode())
        return b"connection: close" not in head

    async def close(self) -> None:
        """Returns once it is closed, whatever the other side does."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


async def connect(port: int, context: ssl.SSLContext | None) -> Connection | None:
    """None where nobody listens. Whatever else befalls a connection is an error."""
    try:
        return Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
    except ConnectionRefusedError:
        return None


async def client(
    ports: Callable[[], Sequence[int]],
    seen: Seen,
    *,
    until: Callable[[], bool],
    keep_alive: bool,
    seed: int,
    context: ssl.SSLContext | None,
) -> None:
    """Asks one of the ports that are given at the moment; at the next one if nobody listens there."""
    dice = random.Random(seed)
    connection: Connection | None = None
    while not until():
        if connection is not None and not connection.usable:
            await connection.close()
            connection = None
        if connection is None:
            connection = await connect(dice.choice(ports()), context)
            if connection is None:
                seen.refused += 1
                await asyncio.sleep(RETRY_S)
                continue
        goes_on = await connection.ask(KEEP_ALIVE if keep_alive else CLOSE, seen)
        if not (goes_on and keep_alive):
            await connection.close()
            connection = None
        await asyncio.sleep(dice.choice((0.0, 0.0, 0.01, 0.1)))
    if connection is not None:
        await connection.close()


async def crowd(
    ports: Callable[[], Sequence[int]],
    seen: Seen,
    *,
    until: Callable[[], bool],
    size: int,
    seed: int,
    context: ssl.SSLContext | None = None,
) -> None:
    """Half of them keep their connection, half of them make a new one for each request."""
    await asyncio.gather(
        *(client(ports, seen, until=until, keep_alive=n % 2 == 0, seed=seed + n, context=context) for n in range(size))
    )


async def readiness(port: int, context: ssl.SSLContext | None = None) -> int:
    """The status of /readyz; 0 where nobody listens or the connection ended first."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError:
        return 0
    return int(answer[9:12] or 0)
