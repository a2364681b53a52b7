"""Measures how long the steps of a running server take, from outside, so that the simulator can run the same cells.

A step of n decodes is the time between two tokens of a stream while exactly n streams run. A step with a prefill chunk
is the gap that the chunk makes in another stream. Both contain all that the engine does between two steps. The API
server's work is its own CPU time, as /metrics tells it. Needs an otherwise idle server with /server_info.
"""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from bench_runner.load_connection import Connection, Exchange, Tally
from bench_runner.prompts import PromptSettings, RequestWriter
from bench_runner.request_log import Outcome
from bench_runner.step_time_fit import FrontEndPoint, StepPoint
from service.domain.errors import ArtefactError

CONTROL_TIMEOUT_S = 30.0
TOKEN_IDS = (1_000, 31_000)
REPETITIONS = 5
MOST_ATTEMPTS = 4 * REPETITIONS
DECODE_SEQUENCES = (1, 4, 16, 32, 64)
DECODE_PROMPTS = (32, 1024)
CHUNK_TOKENS = (32, 128, 512, 1024, 2000)
PAST_TOKENS = (0, 1024, 2048)
STEADY_TOKENS = 64
# Before and after a chunk, so that the gap that it makes is inside a stream.
TOKENS_AROUND = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server says about itself that bounds what it can be asked."""

    model: str
    served_model: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool


class TimedExchange(Exchange):
    """Keeps when each of its tokens came: (ns, tokens) pairs."""

    __slots__ = ("arrivals",)

    def __init__(self, client: int, due_ns: int) -> None:
        super().__init__(client, due_ns)
        self.arrivals: list[tuple[int, int]] = []

    def received(self, tokens: int, now_ns: int) -> None:
        """As its base, and remembered."""
        super().received(tokens, now_ns)
        self.arrivals.append((now_ns, tokens))

    def token_times_ms(self) -> list[float]:
        """When its tokens came, one value each."""
        return [at_ns / 1e6 for at_ns, tokens in self.arrivals for _ in range(tokens)]


class Probe:
    """Sends requests of known shape to one server."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None:
            raise ArtefactError(f"{base_url!r} is no server's address; give it as http://HOST:PORT")
        self.base_url, self.host, self.port = base_url, parts.hostname, parts.port
        self.limits = _limits(base_url)

    def writer(self, *, prompt: int, shared: int = 0, output: int) -> Callable[[], bytes]:
        """Requests of one shape; each has a fresh part of its own behind the part that all of them share."""
        settings = PromptSettings(
            served_model=self.limits.served_model,
            host=f"{self.host}:{self.port}",
            prompt_tokens=prompt,
            shared_prefix_tokens=shared,
            max_new_tokens=output,
            token_ids=TOKEN_IDS,
            prefix_seed=secrets.randbits(48),
            prompt_seed=secrets.randbits(48),
        )
        writer = RequestWriter(settings)
        generator, numbers = writer.generator(0), iter(range(sys.maxsize))
        return lambda: writer.request(generator, client=0, number=next(numbers))

    async def send(self, request: bytes, *, output: int) -> tuple[TimedExchange, asyncio.Future[Exchange]]:
        """Sends one request on a connection of its own; the future is done when its answer is whole."""
        done: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(Tally(), asked_tokens=output, on_end=done.set_result), self.host, self.port
        )
        done.add_done_callback(lambda _: connection.abort())
        exchange = TimedExchange(0, 0)
        connection.send(request, exchange)
        return exchange, done

    async def answer(self, requests: Sequence[bytes], *, output: int) -> list[TimedExchange]:
        """The whole answers of requests that are sent at once. ArtefactError if one fails."""
        sent = [await self.send(request, output=output) for request in requests]
        return [_whole(exchange, await done) for exchange, done in sent]

    def api_server_cpu_s(self) -> float:
        """CPU seconds of the API server's process since it started."""
        text = httpx.get(f"{self.base_url}/metrics", timeout=CONTROL_TIMEOUT_S).text
        for line in text.splitlines():
            if line.startswith("process_cpu_seconds_total "):
                return float(line.split()[1])
        raise ArtefactError(f"{self.base_url}/metrics has no process_cpu_seconds_total; the probe needs it")


def _whole(exchange: TimedExchange, ended: Exchange) -> TimedExchange:
    if ended.outcome != Outcome.COMPLETED:
        raise ArtefactError(f"a request ended as {ended.outcome.name}: {ended.error}; look at the server's log")
    return exchange


def _limits(base_url: str) -> Limits:
    try:
        answer = httpx.get(f"{base_url}/server_info?config_format=json", timeout=CONTROL_TIMEOUT_S)
        models = httpx.get(f"{base_url}/v1/models", timeout=CONTROL_TIMEOUT_S)
        config: dict[str, Any] = answer.raise_for_status().json()["vllm_config"]
        return Limits(
            model=config["model_config"]["model"],
            served_model=models.raise_for_status().json()["data"][0]["id"],
            max_model_len=config["model_config"]["max_model_len"],
            max_num_seqs=config["scheduler_config"]["max_num_seqs"],
            max_num_batched_tokens=config["scheduler_config"]["max_num_batched_tokens"],
            prefix_caching=bool(config["cache_config"]["enable_prefix_caching"]),
        )
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ArtefactError(
            f"{base_url} does not say what it is ({error}); start vllm serve with VLLM_SERVER_DEV_MODE=1"
        ) from error


async def decode_point(probe: Probe, *, sequences: int, prompt: int) -> StepPoint:
    """Steps in which `sequences` requests decode and nothing else happens."""
    # The first ones decode while the last ones are still prefilled.
    output = STEADY_TOKENS + 2 * sequences + sequences * prompt // probe.limits.max_num_batched_tokens
    write = probe.writer(prompt=prompt, output=output)

    async def once() -> float | None:
        streams = await probe.answer([write() for _ in range(sequences)], output=output)
        begin = max(stream.first_ns for stream in streams) / 1e6
        end = min(stream.last_ns for stream in streams) / 1e6
        steady = [at for at in streams[0].token_times_ms() if begin <= at <= end]
        if len(steady) < STEADY_TOKENS // 2 or steady[0] == steady[-1]:
            return None
        return (steady[-1] - steady[0]) / (len(steady) - 1)

    return StepPoint.of(await _readings(once), sequences=sequences, context_tokens=prompt + output // 2)


async def chunk_point(probe: Probe, *, new: int, past: int) -> StepPoint:
    """Steps with a prefill chunk of `new` tokens behind `past` cached ones, beside one stream that decodes."""
    prompt, output = 16, 4 * TOKENS_AROUND
    write_stream = probe.writer(prompt=prompt, output=output)
    write_chunk = probe.writer(prompt=past + new, shared=past, output=1)
    await probe.answer([write_chunk()], output=1)

    async def once() -> float | None:
        stream, done = await probe.send(write_stream(), output=output)
        while len(stream.arrivals) < TOKENS_AROUND and not done.done():
            await asyncio.sleep(0.001)
        (chunk,) = await probe.answer([write_chunk()], output=1)
        _whole(stream, await done)
        if (chunk.stream.cached_tokens or 0) != past:
            raise ArtefactError(f"{chunk.stream.cached_tokens} tokens were cached, not {past}; is the server idle?")
        return _gap_at(stream, chunk.first_ns)

    decodes = {"sequences": 1, "context_tokens": prompt + output // 2}
    return StepPoint.of(await _readings(once), new_tokens=new, past_tokens=past, **decodes)


async def _readings(once: Callable[[], Awaitable[float | None]]) -> list[float]:
    """REPETITIONS readings, or as many as MOST_ATTEMPTS give: a busy client may miss one."""
    found: list[float] = []
    for _ in range(MOST_ATTEMPTS):
        reading = await once()
        if reading is not None:
            found.append(reading)
        if len(found) == REPETITIONS:
            break
    return found


def _gap_at(stream: TimedExchange, at_ns: int) -> float | None:
    """Milliseconds before the token of the stream that came nearest to at_ns; None if it cannot be told apart."""
    moments = np.array([ns for ns, _ in stream.arrivals], dtype=np.int64)
    nearest = int(np.argmin(np.abs(moments - at_ns)))
    if not 0 < nearest < len(moments) - 1 or stream.arrivals[nearest][1] > 1:
        return None
    gap = int(moments[nearest] - moments[nearest - 1])
    # Tokens that a busy client or server passed on together came at times of their own.
    return gap / 1e6 if gap > np.mean(np.diff(moments)) / 2 else None


async def front_end_point(probe: Probe, *, requests: int, prompt: int, output: int) -> FrontEndPoint:
    """CPU time of the API server for so many requests at once."""
    write = probe.writer(prompt=prompt, output=output)
    before = probe.api_server_cpu_s()
    for _ in range(REPETITIONS):
        await probe.answer([write() for _ in range(requests)], output=output)
    return FrontEndPoint(
        requests=REPETITIONS * requests,
        prompt_tokens=REPETITIONS * requests * prompt,
        output_tokens=REPETITIONS * requests * output,
        # Requests that are sent at once decode together.
        steps=REPETITIONS * output,
        cpu_ms=1000 * (probe.api_server_cpu_s() - before),
    )


async def probe_steps(probe: Probe) -> tuple[list[StepPoint], list[FrontEndPoint]]:
    """All points that the server's limits allow."""
    limits = probe.limits
    # The first requests of a server are slower than all others.
    await probe.answer([probe.writer(prompt=64, output=32)() for _ in range(4)], output=32)
    steps = [
        await decode_point(probe, sequences=sequences, prompt=prompt)
        for sequences in DECODE_SEQUENCES
        for prompt in DECODE_PROMPTS
        if sequences <= limits.max_num_seqs and 2 * prompt < limits.max_model_len
    ]
    steps += [
        await chunk_point(probe, new=new, past=past)
        for past in (PAST_TOKENS if limits.prefix_caching else (0,))
        for new in CHUNK_TOKENS
        if new < limits.max_num_batched_tokens and past + new < limits.max_model_len
    ]
    most = min(32, limits.max_num_seqs)
    shapes = ((most, 16, 1), (most, 1024, 1), (most, 16, 64), (1, 16, 256))
    front_end = [await front_end_point(probe, requests=n, prompt=p, output=o) for n, p, o in shapes]
    return steps, front_end
