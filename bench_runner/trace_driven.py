"""A measured run again on the virtual clock: the same requests at the same times, and what became of them.

The front end costs nothing here: a measured run's times are those of the engine's own process. There is no jitter,
since nothing is random; the run is the same every time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bench_runner.engine import ROWS, STEPS, Trace, new_trace, run_engine
from bench_runner.measured_run import MeasuredRequests, RequestTimes
from bench_runner.measurement import LOGGED, new_recorder
from bench_runner.profile_table import Extent
from bench_runner.request_stream import nothing_shared, open_stream
from bench_runner.scheduler import PREEMPTIONS
from bench_runner.simulator import SimulationSettings, new_engine
from bench_runner.step_time import StepTable, interpolated_step_ms
from service.domain.candidate import Candidate
from service.domain.errors import InvalidInputError

# Of the settings only the order of things is left: two steps in flight, as the engine schedules since 0.14.
IN_ENGINE = SimulationSettings(
    asynchronous=True,
    host_step_ms=0.0,
    host_sequence_ms=0.0,
    request_ms=0.0,
    prompt_token_ms=0.0,
    output_token_ms=0.0,
    step_jitter=0.0,
)
# Room for the trace: steps, and requests in them. A run that needs more is refused.
MOST_STEPS = 100_000
# A run ends with its last token; a window has to end some time.
LONG_AFTER_MS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSteps:
    """[steps] arrays: when each ended, the tokens of prompts and of answers in it, and its share of prefill.

    past: tokens in the cache behind each sequence, on average; prefill_share: 1 − (the decodes alone ÷ the step).
    """

    end_ms: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    decodes: NDArray[np.int64]
    requests: NDArray[np.int64]
    held_tokens: NDArray[np.int64]
    prefill_share: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun(RequestTimes):
    """[requests] arrays as in MeasuredRequests, the run's steps, and how many of them the profile does not cover."""

    steps: SimulatedSteps
    preemptions: int
    kv_tokens: int
    beyond: Mapping[str, int]


def simulate_requests(
    requests: MeasuredRequests,
    candidate: Candidate,
    *,
    kv_blocks: int,
    table: StepTable,
    extent: Extent | None = None,
    settings: SimulationSettings = IN_ENGINE,
) -> SimulatedRun:
    """Sends the requests when they arrived; extent: what the profile covers, to count the steps beyond it."""
    count = len(requests.prompt)
    stream = open_stream(
        prompt=requests.prompt,
        output=requests.output,
        shared=nothing_shared(count),
        arrival_ms=requests.arrival_ms,
        slots=count,
    )
    trace = new_trace(steps=MOST_STEPS, rows=MOST_STEPS * min(candidate.max_num_seqs, count))
    engine = new_engine(stream, candidate, kv_blocks=kv_blocks, table=table, settings=settings, seed=0, trace=trace)
    recorder = run_engine(engine, new_recorder(start_ms=0.0, end_ms=LONG_AFTER_MS, capacity=2 * count, logged=count))
    if trace.counts[STEPS] > MOST_STEPS:
        raise InvalidInputError(
            path="requests", value=int(trace.counts[STEPS]), remedy=f"give a run of at most {MOST_STEPS} steps"
        )
    log = recorder.log[: recorder.counts[LOGGED]]
    # Each request has a slot of its own, given out in the order of arrival.
    log = log[np.argsort(log[:, 0], kind="stable")]
    steps, beyond = _steps(trace, requests, table, extent)
    return SimulatedRun(
        queued_ms=_queued_ms(requests.arrival_ms, log[:, 3], steps.end_ms),
        first_ms=log[:, 2],
        last_ms=log[:, 3],
        output=requests.output,
        steps=steps,
        preemptions=int(engine.requests.totals[PREEMPTIONS]),
        kv_tokens=(kv_blocks - 1) * 16,
        beyond=beyond,
    )


def _queued_ms(
    arrival_ms: NDArray[np.float64], last_ms: NDArray[np.float64], end_ms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When the engine took each request in: as it arrived if it was idle, else when the next step ended."""
    busy_until = np.concatenate(([-np.inf], np.maximum.accumulate(last_ms)[:-1]))
    after = np.minimum(np.searchsorted(end_ms, arrival_ms, side="left"), len(end_ms) - 1)
    return np.where(arrival_ms > busy_until, arrival_ms, np.maximum(end_ms[after], arrival_ms))


def _steps(
    trace: Trace, requests: MeasuredRequests, table: StepTable, extent: Extent | None
) -> tuple[SimulatedSteps, dict[str, int]]:
    """What each step held. A row of one token is a decode once the request's prompt has been computed.

    After a preemption the prompt is computed again; the tokens behind a sequence then count from what it was before,
    which overstates them until it is where it was.
    """
    count = int(trace.counts[STEPS])
    rows = trace.rows[: trace.counts[ROWS]]
    prompt, decodes, sizes, held, longest = (np.zeros(count, dtype=np.int64) for _ in range(5))
    behind = np.zeros(len(requests.prompt), dtype=np.int64)
    for step, slot, tokens in rows.tolist():
        is_decode = tokens == 1 and behind[slot] >= requests.prompt[slot]
        decodes[step] += is_decode
        prompt[step] += 0 if is_decode else tokens
        longest[step] = max(longest[step], 0 if is_decode else tokens)
        behind[slot] = min(behind[slot] + tokens, requests.prompt[slot] + requests.output[slot])
        held[step] += behind[slot]
        sizes[step] += 1
    mean = held / np.maximum(sizes, 1)
    end_ms = trace.end_ms[:count].copy()
    lasted = np.diff(end_ms, prepend=0.0)
    alone = np.array(
        [interpolated_step_ms(table, n, c) if n else 0.0 for n, c in zip(decodes.tolist(), mean.tolist(), strict=True)]
    )
    share = np.where(prompt > 0, np.clip(1 - alone / np.maximum(lasted, 1e-9), 0.0, 1.0), 0.0)
    steps = SimulatedSteps(
        end_ms=end_ms,
        prompt_tokens=prompt,
        decodes=decodes,
        requests=sizes,
        held_tokens=held,
        prefill_share=share,
    )
    return steps, {} if extent is None else _beyond(extent, steps, longest, mean)


def _beyond(
    extent: Extent, steps: SimulatedSteps, longest: NDArray[np.int64], mean: NDArray[np.float64]
) -> dict[str, int]:
    """Steps of which a size lies outside the profile, by the kind of size. A step may count for several."""
    has_prompt, has_decodes = steps.prompt_tokens > 0, steps.decodes > 0
    mixed, alone = has_prompt & has_decodes, has_decodes & ~has_prompt

    def outside(values: NDArray[np.float64] | NDArray[np.int64], ends: tuple[float, float]) -> NDArray[np.bool_]:
        return (values < ends[0]) | (values > ends[1])

    return {
        "tokens": int(outside(steps.prompt_tokens + steps.decodes, extent.tokens).sum()),
        "sequences": int(outside(steps.requests, extent.sequences).sum()),
        "chunk": int((has_prompt & outside(longest, extent.chunk)).sum()),
        "decodes": int((alone & outside(steps.decodes, extent.decodes)).sum()),
        "mixed_decodes": int((mixed & outside(steps.decodes, extent.mixed_decodes)).sum()),
        "context": int((has_decodes & outside(mean, extent.context)).sum()),
    }


def covers(extent: Extent) -> dict[str, tuple[float, float]]:
    """The extent by the names that `beyond` has."""
    return {field.name: getattr(extent, field.name) for field in fields(extent)}
