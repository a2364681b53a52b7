"""Closed-loop clients of POST /v1/recommend: 64 keep-alive connections in one event loop, as cheap as they can be."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUESTION: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "gpu": "NVIDIA-B200",
    "workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
}
_ID = b'"recommendation_id":"'


@dataclass(slots=True)
class Answers:
    """What clients saw. ids: recommendation ids of answers that arrived whole; failures by status, 0 for a cut one."""

    ids: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    policies: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Answers per second."""
        return len(self.ids) / self.elapsed_s

    @property
    def failed(self) -> int:
        """Requests without a whole 200."""
        return sum(self.failures.values())

    def p99_ms(self) -> float:
        """99th percentile of the latency."""
        return sorted(self.latencies_ms)[int(0.99 * len(self.latencies_ms))]


def request(path: str = "/v1/recommend", headers: str = "") -> bytes:
    """The bytes of one request."""
    body = json.dumps(QUESTION).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def ask(port: int, *, connections: int, until: Callable[[], bool], message: bytes | None = None) -> Answers:
    """Every connection asks, waits for the answer and asks again, until told to stop or cut off."""
    answers, message = Answers(), message or request()
    begun = time.perf_counter()
    await asyncio.gather(*(_client(port, message, answers, until) for _ in range(connections)))
    answers.elapsed_s = time.perf_counter() - begun
    return answers


async def _client(port: int, message: bytes, answers: Answers, until: Callable[[], bool]) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        answers.failures[0] = answers.failures.get(0, 0) + 1
        return
    try:
        while not until():
            sent = time.perf_counter()
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            status = int(head[9:12])
            if status == 200:
                start = body.index(_ID) + len(_ID)
                answers.ids.append(body[start : start + 36].decode())
                answers.latencies_ms.append((time.perf_counter() - sent) * 1000)
                policy = body[body.rindex(b'"sha256":"') + 10 :][:64].decode()
                answers.policies[policy] = answers.policies.get(policy, 0) + 1
            else:
                answers.failures[status] = answers.failures.get(status, 0) + 1
                await asyncio.sleep(0.01)
    except (OSError, asyncio.IncompleteReadError):
        answers.failures[0] = answers.failures.get(0, 0) + 1
    finally:
        writer.close()


def for_seconds(seconds: float) -> Callable[[], bool]:
    """An `until` that is true from then on."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end
