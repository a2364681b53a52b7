"""Closed-loop clients of a real server: each sends its next request when it has its last answer."""

import asyncio
import gc
import itertools
import time
from collections.abc import Iterator, Sequence

import uvloop


def latencies_ms(port: int, messages: Sequence[bytes], *, connections: int, seconds: float) -> list[float]:
    """Of all requests of that long; every one must be answered with 200 and none with a skip."""
    # A collection here would be a latency there.
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_load(port, itertools.cycle(messages), connections=connections, seconds=seconds))
    finally:
        gc.enable()


def sent_once(port: int, messages: Sequence[bytes]) -> None:
    """Each message once, one after another on one connection."""
    uvloop.run(_load(port, iter(messages), connections=1, seconds=float("inf")))


async def _load(port: int, messages: Iterator[bytes], *, connections: int, seconds: float) -> list[float]:
    end_s = time.perf_counter() + seconds
    found: list[float] = []
    await asyncio.gather(*(_client(port, messages, found, end_s) for _ in range(connections)))
    return found


async def _client(port: int, messages: Iterator[bytes], found: list[float], end_s: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        for message in messages:
            sent_s = time.perf_counter()
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
            found.append((time.perf_counter() - sent_s) * 1000)
            if head[9:12] != b"200" or b'"decision":"skip"' in body:
                raise AssertionError(f"answered with {head[9:12].decode()}: {body[:300].decode()}")
            if time.perf_counter() >= end_s:
                return
    finally:
        writer.close()
