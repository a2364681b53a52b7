"""What really comes when a workload was announced: numbers that are off, and traffic of an unannounced kind.

Lengths and concurrency are off by log-normal factors, a prefix ratio by a normal error; whether requests are equal or
spread, how many prefixes are popular and whether clients think is drawn as well. The output that was announced is a
cap: fixed traffic reaches it every time, spread traffic stays below.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench_runner.announced import Announced
from bench_runner.length_shapes import shapes, traces
from bench_runner.lengths import EmpiricalLengths
from bench_runner.request_stream import RequestStream, closed_stream
from bench_runner.simulator import Load, SimulationSettings, Window
from bench_runner.step_time import StepTable, interpolated_step_ms
from bench_runner.traffic import Prefixes, prefixed
from service.domain.scenario import Workload

# Repeated by every client until the end of the run, so that no client runs out.
REQUESTS_PER_CLIENT = 6
MOST_THINKING_REQUESTS = 150
MOST_CLIENTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """One standard deviation of what was announced: factors for lengths and clients, a difference for the ratio.

    fixed_only: every request has the same lengths, nobody thinks. clients_factor: the true number of clients is
    exactly this many times the announced one, instead of an uncertain one.
    """

    length_factor: float = 1.4
    concurrency_factor: float = 1.8
    ratio_error: float = 0.05
    fixed_only: bool = False
    clients_factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueWorkload:
    """One draw around an announcement. kind: fixed, spread, the name of a shape, or of a trace. Times in ms."""

    kind: str
    prompt_tokens: float
    output_cap: int
    shared_prefix_ratio: float
    clients: int
    prefixes: int
    think_ms: float


def draw_numbers(
    rng: np.random.Generator, announced: Announced, uncertainty: Uncertainty, *, kind: str | None = None
) -> TrueWorkload:
    """The true numbers. kind None: drawn; a trace's name otherwise."""
    workload, context = announced.workload, announced.architecture.context
    z = rng.normal(size=4)
    prompt = workload.prompt_tokens * math.exp(math.log(uncertainty.length_factor) * z[0])
    cap = workload.max_new_tokens * math.exp(math.log(uncertainty.length_factor) * z[1])
    shrink = min(1.0, context / (prompt + cap + 1))
    clients = workload.concurrency * math.exp(math.log(uncertainty.concurrency_factor) * z[2])
    if uncertainty.clients_factor is not None:
        clients = workload.concurrency * uncertainty.clients_factor
    ratio = workload.shared_prefix_ratio
    if ratio > 0:
        ratio = min(max(ratio + uncertainty.ratio_error * float(z[3]), 0.0), 0.99)
    which, popular, thinks, think = rng.random(), rng.random(), rng.random(), rng.uniform(math.log(200), math.log(5000))
    several = int(rng.integers(2, 9))
    fixed = uncertainty.fixed_only
    if kind is None:
        kind = "fixed" if fixed or which < 0.4 else "spread" if which < 0.75 else _any_shape(rng)
    return TrueWorkload(
        kind=kind,
        prompt_tokens=max(prompt * shrink, 1.0),
        output_cap=max(int(cap * shrink), 1),
        shared_prefix_ratio=ratio,
        clients=min(max(round(clients), 1), MOST_CLIENTS),
        prefixes=several if popular < 0.25 and ratio > 0 and kind != "fixed" else 1,
        think_ms=math.exp(think) if thinks < 0.25 and not fixed and kind != "fixed" else 0.0,
    )


def _any_shape(rng: np.random.Generator) -> str:
    return shapes()[int(rng.integers(len(shapes())))].name


def lengths_of(
    rng: np.random.Generator, true: TrueWorkload, count: int, *, context: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Own prompt tokens (behind the prefix) and output tokens of `count` requests, each within the context."""
    prefix = prefix_tokens(true)
    own_mean = true.prompt_tokens - prefix
    if true.kind == "fixed":
        own, output = np.full(count, own_mean), np.full(count, float(true.output_cap))
    elif true.kind == "spread":
        cv, output_cv, filled = rng.uniform(0.2, 1.0), rng.uniform(0.3, 1.0), rng.uniform(0.3, 0.9)
        own = own_mean * _log_normal(rng, cv, count)
        output = filled * true.output_cap * _log_normal(rng, output_cv, count)
    elif true.kind in traces():
        rows = traces()[true.kind]
        picked = rng.integers(0, len(rows.prompt), count)
        own = rows.prompt[picked] * (own_mean / rows.prompt.mean())
        output = rows.output[picked] * (true.output_cap / output_cap_of(rows))
    else:
        shape = next(shape for shape in shapes() if shape.name == true.kind)
        share = np.linspace(0.0, 1.0, 401)
        prompts, outputs = shape.prompt.at(share), shape.output.at(share)
        own = shape.prompt.at(rng.random(count)) * (own_mean / prompts.mean())
        output = shape.output.at(rng.random(count)) * (true.output_cap / np.quantile(outputs, 0.95))
    cap = max(min(true.output_cap, context - prefix - 1), 1)
    output_tokens = np.clip(np.rint(output), 1, cap).astype(np.int64)
    own_tokens = np.clip(np.rint(own), 1, np.maximum(context - prefix - output_tokens, 1)).astype(np.int64)
    return own_tokens, output_tokens


def output_cap_of(rows: EmpiricalLengths) -> float:
    """The output cap that a user of this trace would configure: enough for 95 of 100 answers."""
    return float(np.quantile(rows.output, 0.95))


def prefix_tokens(true: TrueWorkload) -> int:
    """Tokens that requests have in common in front of their own."""
    return int(true.prompt_tokens * true.shared_prefix_ratio)


def _log_normal(rng: np.random.Generator, cv: float, count: int) -> NDArray[np.float64]:
    """Mean 1 and this coefficient of variation."""
    variance = math.log(1 + cv**2)
    return np.asarray(rng.lognormal(-variance / 2, math.sqrt(variance), count), dtype=np.float64)


def stream_of(
    rng: np.random.Generator, true: TrueWorkload, *, context: int, cycle_ms: float, end_ms: float
) -> RequestStream:
    """The closed loop of the true clients."""
    if true.kind == "fixed":
        return Load.of(
            Workload(
                prompt_tokens=min(max(round(true.prompt_tokens), 1), context - true.output_cap),
                max_new_tokens=true.output_cap,
                shared_prefix_ratio=true.shared_prefix_ratio,
                concurrency=true.clients,
            )
        ).stream()
    thinking = true.think_ms > 0
    per_client = REQUESTS_PER_CLIENT
    if thinking:
        per_client = min(int(3 * end_ms / (cycle_ms + true.think_ms)) + 8, MOST_THINKING_REQUESTS)
    count = true.clients * per_client
    own, output = lengths_of(rng, true, count, context=context)
    prefixes = Prefixes.zipf(count=true.prefixes, tokens=prefix_tokens(true), exponent=1.0)
    prompt, shared = prefixed(rng, own, prefixes)
    return closed_stream(
        prompt=prompt,
        output=output,
        shared=shared,
        think_ms=rng.exponential(true.think_ms, count) if thinking else np.zeros(count),
        queue_start=np.arange(true.clients + 1, dtype=np.int64) * per_client,
        repeats=not thinking,
    )


def ideal_cycle_ms(true: TrueWorkload, table: StepTable, settings: SimulationSettings) -> float:
    """How long a client's turn takes if no limit binds: everybody's prefill, then its own decoding among all."""
    decode = interpolated_step_ms(table, sequences=true.clients, context=true.prompt_tokens + true.output_cap / 2)
    step = max(decode, settings.host_step_ms + settings.host_sequence_ms * true.clients)
    fresh = max(true.prompt_tokens * (1 - true.shared_prefix_ratio), 1.0)
    per_token = float(table.dense_ms[2048]) / 2048
    front_end = settings.request_ms + settings.output_token_ms * true.output_cap
    return true.output_cap * step + true.clients * (fresh * per_token + front_end)


def window_of(cycle_ms: float) -> Window:
    """The timed region, the same for all configurations: longer where a client's turn is, within limits."""
    warm_up = min(max(cycle_ms, 1250.0), 2500.0)
    return Window(warm_up_ms=warm_up, length_ms=min(max(2.0 * cycle_ms, 3000.0), 8000.0))
