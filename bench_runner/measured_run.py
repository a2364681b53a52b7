"""A measured run of a real engine: what was asked of it, when it answered, and what it counted every second.

A folder in the form of LLMServingSim's `bench run`: meta.json (the engine's arguments), config.json (its GPU),
requests.jsonl (one request a line) and timeseries.csv (one row a second). A line that cannot be used is refused.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_runner.files import read_json
from service.domain.errors import ArtefactError, InvalidInputError

MS_PER_S = 1000.0
MOST_TOKENS = 2**31 - 1
# What requests.jsonl must have: tokens, and seconds of two clocks.
TOKEN_FIELDS = ("input_toks", "output_toks")
TIME_FIELDS = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
SERIES_FIELDS = ("t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct")
# The name of a data type as an engine argument and as the name of a profile.
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine was started with. kv_blocks: as it reported them, None where it did not.

    memory_gib and utilization size the KV cache where kv_blocks does not.
    """

    model: str
    gpu: str
    tensor_parallel: int
    dtype: str
    engine_version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_gib: float
    utilization: float
    kv_blocks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """[requests] arrays: when the engine took each in, its first and last token, and how many it had. Milliseconds."""

    output: NDArray[np.int64]
    queued_ms: NDArray[np.float64]
    first_ms: NDArray[np.float64]
    last_ms: NDArray[np.float64]

    @property
    def ttft_ms(self) -> NDArray[np.float64]:
        """First token − queued, as the published comparison has it."""
        return self.first_ms - self.queued_ms

    @property
    def tpot_ms(self) -> NDArray[np.float64]:
        """(Last − first token) ÷ further tokens; NaN for an answer of one token."""
        return time_per_token(self.first_ms, self.last_ms, self.output)

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """Last token − queued."""
        return self.last_ms - self.queued_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequests(RequestTimes):
    """[requests] arrays in the order of arrival. Milliseconds from the first arrival, all on the engine's clock.

    queued: the engine's scheduler took it in. It does that between two steps, so later than it arrived.
    """

    prompt: NDArray[np.int64]
    arrival_ms: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """[seconds] arrays: tokens per second, and requests at the end of each second; kv_share 0 … 1.

    end_ms: milliseconds from the first arrival. An engine that reports no KV use at all has kv_share None.
    """

    end_ms: NDArray[np.float64]
    prompt_tps: NDArray[np.float64]
    output_tps: NDArray[np.float64]
    running: NDArray[np.float64]
    waiting: NDArray[np.float64]
    kv_share: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run, whole. name: that of its folder."""

    name: str
    engine: EngineFacts
    requests: MeasuredRequests
    series: TimeSeries


def time_per_token(
    first_ms: NDArray[np.float64], last_ms: NDArray[np.float64], output: NDArray[np.int64]
) -> NDArray[np.float64]:
    """TPOT of each request in milliseconds, NaN where there is no second token."""
    further = np.where(output > 1, output - 1, 1)
    return np.where(output > 1, (last_ms - first_ms) / further, np.nan)


def read_measured_run(folder: Path) -> MeasuredRun:
    """The run in a folder. ArtefactError or InvalidInputError names the file, the line, the field and the value."""
    meta = read_json(folder / "meta.json")
    rows = list(_request_rows(folder / "requests.jsonl"))
    if not rows:
        raise ArtefactError(f"{folder / 'requests.jsonl'} has no request; measure a run first")
    told = meta.get("num_requests")
    if told != len(rows):
        raise ArtefactError(
            f"{folder}: meta.json tells of {told!r} requests, requests.jsonl has {len(rows)}; copy both"
        )
    values = {name: np.array([row[name] for row in rows]) for name in (*TOKEN_FIELDS, *TIME_FIELDS)}
    order = np.argsort(values["arrival_time"], kind="stable")
    values = {name: column[order] for name, column in values.items()}
    start_s = float(values["arrival_time"][0])
    # Arrivals have the wall clock, everything else the engine's. No request is queued before it arrives, so the
    # smallest difference is the two clocks' distance, up to the fastest hand-over.
    distance_s = float((values["queued_ts"] - values["arrival_time"]).min())

    def engine_ms(name: str) -> NDArray[np.float64]:
        return (values[name] - (start_s + distance_s)) * MS_PER_S

    return MeasuredRun(
        name=folder.name,
        engine=_engine_facts(folder, meta),
        requests=MeasuredRequests(
            prompt=values["input_toks"].astype(np.int64),
            output=values["output_toks"].astype(np.int64),
            arrival_ms=(values["arrival_time"] - start_s) * MS_PER_S,
            queued_ms=engine_ms("queued_ts"),
            first_ms=engine_ms("first_token_ts"),
            last_ms=engine_ms("last_token_ts"),
        ),
        series=_time_series(folder / "timeseries.csv", start_ms=_start_ms(folder, meta, start_s)),
    )


def _engine_facts(folder: Path, meta: Mapping[str, Any]) -> EngineFacts:
    config = read_json(folder / "config.json")
    try:
        arguments = meta["engine_kwargs"]
        instance = config["nodes"][0]["instances"][0]
        blocks = (meta.get("kv_cache") or {}).get("num_gpu_blocks")
        facts = EngineFacts(
            model=str(meta["model"]),
            gpu=str(instance["hardware"]),
            tensor_parallel=int(arguments["tensor_parallel_size"]),
            dtype=DTYPES.get(arguments["dtype"], str(arguments["dtype"])),
            engine_version=str(meta["vllm_version"]),
            max_num_seqs=int(arguments["max_num_seqs"]),
            max_num_batched_tokens=int(arguments["max_num_batched_tokens"]),
            memory_gib=float(instance["npu_mem"]["mem_size"]),
            utilization=float(instance["npu_mem"]["mem_util"]),
            kv_blocks=None if blocks is None else int(blocks),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ArtefactError(
            f"{folder}: meta.json or config.json lacks {error}; they must name model, engine arguments and GPU"
        ) from error
    if str(instance.get("model_name", facts.model)) != facts.model:
        raise ArtefactError(
            f"{folder}: meta.json is of {facts.model!r}, config.json of {instance['model_name']!r}; take those of "
            "one run"
        )
    return facts


def _start_ms(folder: Path, meta: Mapping[str, Any], start_s: float) -> float:
    """When the engine's seconds begin to count, in milliseconds from the first arrival."""
    text = meta.get("started_at")
    try:
        return (datetime.fromisoformat(str(text)).timestamp() - start_s) * MS_PER_S
    except ValueError as error:
        raise InvalidInputError(
            path=f"{folder / 'meta.json'}: started_at", value=text, remedy="give a time such as 2026-04-25T18:47:18Z"
        ) from error


def _request_rows(path: Path) -> Iterator[dict[str, float]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            remedy = f"a JSON object is needed ({error}); correct or remove the line"
            raise InvalidInputError(path=f"{path}:{number}", value=line.strip(), remedy=remedy) from error
        if not isinstance(row, dict):
            raise InvalidInputError(path=f"{path}:{number}", value=row, remedy="give a JSON object on each line")
        yield _checked_request(path, number, row)


def _checked_request(path: Path, number: int, row: Mapping[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in TOKEN_FIELDS:
        values[name] = _number(path, number, row, name, lambda value: 1 <= value <= MOST_TOKENS and value == int(value))
    for name in TIME_FIELDS:
        values[name] = _number(path, number, row, name, lambda value: value >= 0)
    for earlier, later in pairwise(TIME_FIELDS[1:]):
        if values[later] < values[earlier]:
            raise InvalidInputError(
                path=f"{path}:{number}: {later}",
                value=row[later],
                remedy=f"it lies before {earlier} = {row[earlier]!r}; correct or remove the line",
            )
    return values


def _time_series(path: Path, *, start_ms: float) -> TimeSeries:
    lines = [line for _, line in _lines(path)]
    reader = csv.DictReader(io.StringIO("".join(lines)))
    missing = [name for name in SERIES_FIELDS if name not in (reader.fieldnames or ())]
    if missing:
        raise ArtefactError(f"{path}:1: no column {', '.join(missing)}; it needs {', '.join(SERIES_FIELDS)}")
    rows = [
        {name: _number(path, reader.line_num, row, name, lambda value: value >= 0) for name in SERIES_FIELDS}
        for row in reader
    ]
    if not rows:
        raise ArtefactError(f"{path} has no row; measure a run first")
    columns = {name: np.array([row[name] for row in rows]) for name in SERIES_FIELDS}
    reported = columns["kv_cache_pct"].any()
    return TimeSeries(
        end_ms=columns["t"] * MS_PER_S + start_ms,
        prompt_tps=columns["prompt_throughput"],
        output_tps=columns["gen_throughput"],
        running=columns["running"],
        waiting=columns["waiting"],
        kv_share=columns["kv_cache_pct"] / 100 if reported else None,
    )


def _number(path: Path, line: int, row: Mapping[str, Any], name: str, fits: Callable[[float], bool]) -> float:
    value = row.get(name)
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or not fits(number):
            raise ValueError
    except (TypeError, ValueError):
        needed = "a whole number of at least 1" if name in TOKEN_FIELDS else "a number of at least 0"
        remedy = f"{needed} is needed; correct or remove the line"
        raise InvalidInputError(path=f"{path}:{line}: {name}", value=value, remedy=remedy) from None
    return number


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}); give the folder of a measured run") from error
    yield from enumerate(text.splitlines(keepends=True), start=1)
