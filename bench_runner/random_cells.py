"""Random cells for comparing the simulator with the engine's scheduler: every kind of traffic, small KV caches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.arrivals import gamma_ms, on_off_ms
from bench_runner.engine import Engine, new_trace
from bench_runner.kv_cache import blocks_of
from bench_runner.request_stream import RequestStream, longest
from bench_runner.simulator import Load, SimulationSettings, new_engine
from bench_runner.step_time import load_step_tables
from bench_runner.traces import HASH_BLOCK_TOKENS, HashBlocks, RequestTrace
from bench_runner.traffic import Prefixes, closed_loop, conversations, open_loop, replay
from service.domain.candidate import Candidate

# Every factor's levels occur equally often, in an order of their own: a Latin hypercube over the cells of a run.
MAX_NUM_SEQS = (1, 4, 32, 128, 512, 1024)
BATCHED_TOKENS = (512, 2048, 8192, 16384)
PREFIX_RATIOS = (0.0, 0.1, 0.5, 0.9, 1.0)
PROMPTS = ((1, 64), (65, 1024), (1025, 8192))
OUTPUTS = ((1, 8), (9, 128), (129, 512))
CONCURRENCIES = (1, 4, 16, 64, 128, 256, 512)
# KV cache as a multiple of what the longest requests of all running sequences would take together.
MEMORY = (0.15, 0.3, 0.6, 2.0)
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B")
TRAFFIC = ("fixed", "fixed", "closed", "conversations", "bursty", "on-off", "trace")
# Enough for clients of a fast engine to be busy throughout, few enough for some to run out.
REQUESTS_PER_CLIENT = 12
MOST_STEPS, MOST_ROWS = 60_000, 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCell:
    """One cell of a run, and how to draw it again."""

    seed: int
    index: int
    model: str
    stream: RequestStream
    candidate: Candidate
    kv_blocks: int
    asynchronous: bool

    def engine(self) -> Engine:
        """A new engine for it, with room for a trace."""
        return new_engine(
            self.stream,
            self.candidate,
            kv_blocks=self.kv_blocks,
            table=load_step_tables().of(self.model),
            settings=SimulationSettings(asynchronous=self.asynchronous, ramp_ms=200.0),
            seed=self.seed + self.index,
            trace=new_trace(steps=MOST_STEPS, rows=MOST_ROWS),
        )


def random_cells(*, seed: int, count: int) -> Iterator[RandomCell]:
    """`count` cells; equal seeds and counts give equal cells."""
    rng = np.random.default_rng(seed)

    def levels(values: Sequence[object]) -> list[int]:
        rounds = -(-count // len(values))
        return [int(i) for _ in range(rounds) for i in rng.permutation(len(values))][:count]

    drawn_from = (MAX_NUM_SEQS, BATCHED_TOKENS, PREFIX_RATIOS, PROMPTS, OUTPUTS, CONCURRENCIES, MEMORY, MODELS, TRAFFIC)
    factors = (*drawn_from, (False, True), (False, True))
    for index, drawn in enumerate(zip(*(levels(values) for values in factors), strict=True)):
        seqs, tokens, ratio, prompts, outputs, clients, memory, model, traffic = (
            values[level] for values, level in zip(drawn_from, drawn[:9], strict=True)
        )
        asynchronous, equal = bool(drawn[9]), bool(drawn[10])
        ranges = Ranges(prompts=prompts, outputs=outputs, ratio=ratio, clients=clients)
        stream = _fixed(rng, ranges, equal=equal) if traffic == "fixed" else _varied(rng, ranges, traffic)
        most = blocks_of(longest(stream))
        kv_blocks = 1 + most + int(memory * most * min(clients, seqs)) + int(rng.integers(0, 4))
        candidate = Candidate(
            max_num_seqs=min(seqs, tokens),
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=0.9,
            enable_prefix_caching=bool(rng.random() < 0.85),
        )
        yield RandomCell(
            seed=seed,
            index=index,
            model=model,
            stream=stream,
            candidate=candidate,
            kv_blocks=kv_blocks,
            asynchronous=asynchronous,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Smallest and largest prompt and output in tokens, the share of prompts that is a prefix, and clients or slots."""

    prompts: tuple[int, int]
    outputs: tuple[int, int]
    ratio: float
    clients: int

    def draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Uniform prompts and outputs, [count] each."""
        prompt, output = (rng.integers(low, high + 1, count) for low, high in (self.prompts, self.outputs))
        return prompt, output


def _fixed(rng: np.random.Generator, ranges: Ranges, *, equal: bool) -> RequestStream:
    """A closed loop of one request per client; equal: the same for all."""
    drawn = ranges.draw(rng, 1 if equal else ranges.clients)
    prompt, output = (np.broadcast_to(tokens, ranges.clients).astype(np.int64) for tokens in drawn)
    shared = (prompt.min() * ranges.ratio).astype(np.int64) // 16
    blocks = np.full(ranges.clients, shared, dtype=np.int64)
    return Load(prompt=prompt, output=output, shared_blocks=blocks).stream()


def _varied(rng: np.random.Generator, ranges: Ranges, traffic: str) -> RequestStream:
    """Every other kind, with lengths of their own for every request."""
    lengths, clients = ranges, ranges.clients
    prefixes = Prefixes.zipf(count=4, tokens=int(ranges.ratio * ranges.prompts[1] / 2), exponent=1.0)
    think_ms = float(rng.choice([0.0, 50.0]))
    if traffic == "closed":
        return closed_loop(
            rng,
            clients=clients,
            requests_per_client=REQUESTS_PER_CLIENT,
            lengths=lengths,
            mean_think_ms=think_ms,
            prefixes=prefixes,
        )
    if traffic == "conversations":
        return conversations(
            rng,
            clients=clients,
            per_client=REQUESTS_PER_CLIENT // 4,
            mean_turns=4.0,
            lengths=lengths,
            most_tokens=2 * (ranges.prompts[1] + ranges.outputs[1]),
            mean_think_ms=think_ms,
            prefixes=prefixes,
        )
    arrival_ms = _arrivals(rng, bursty=traffic == "bursty")
    if traffic == "trace":
        return replay(_trace(rng, ranges, arrival_ms), slots=clients)
    return open_loop(rng, arrival_ms=arrival_ms, slots=clients, lengths=lengths, prefixes=prefixes)


def _arrivals(rng: np.random.Generator, *, bursty: bool) -> NDArray[np.float64]:
    """Arrivals of two seconds, one of them at 0, at a rate from idle to overload."""
    rate_rps = float(np.exp(rng.uniform(np.log(5.0), np.log(500.0))))
    if bursty:
        later_ms = gamma_ms(rng, rate_rps=rate_rps, cv=3.0, until_ms=2000.0)
    else:
        later_ms = on_off_ms(rng, rate_rps=rate_rps, on_ms=100.0, off_ms=100.0, until_ms=2000.0)
    return np.concatenate(([0.0], later_ms))


def _trace(rng: np.random.Generator, ranges: Ranges, arrival_ms: NDArray[np.float64]) -> RequestTrace:
    """Prompts whose first blocks of 512 tokens are those of one of five texts, the others their own."""
    prompt, output = ranges.draw(rng, len(arrival_ms))
    blocks = -(-prompt // HASH_BLOCK_TOKENS)
    start = np.concatenate(([0], np.cumsum(blocks)))
    depth = np.arange(start[-1]) - np.repeat(start[:-1], blocks)
    text = np.repeat(rng.integers(0, 5, len(prompt)), blocks)
    # A partly filled last block has only equals of the same length, so only whole ones are shared here.
    common = depth < np.repeat(rng.integers(0, prompt // HASH_BLOCK_TOKENS + 1), blocks)
    ids = np.where(common, text * 1000 + depth, 10_000 + np.arange(start[-1]))
    hashes = HashBlocks(ids=ids, start=start, block_tokens=HASH_BLOCK_TOKENS)
    return RequestTrace(arrival_ms=arrival_ms, prompt=prompt, output=output, hashes=hashes)
