"""One line of a log: which of its columns are read, and what each of them has to hold."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.domain.errors import InvalidInputError, LeakageError, shorten
from service.domain.leakage import measured_field
from service.domain.scenario import MAX_TOKENS

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ISO = "iso"
_BETWEEN_HASHES = re.compile(r"[\s,;\[\]\"']+")
# How long a request took says which others it overlapped; nothing else of a measurement is asked for.
_DURATIONS = frozenset(["e2e_latency_p95"])
# Some thirty million years: further than any clock, and near enough that sums and differences of times stay finite.
FARTHEST_S = 1e15

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names in the file. A key inside objects of JSON lines is written with dots: usage.prompt_tokens."""

    prompt_tokens: str
    output_tokens: str
    arrival: str | None = None
    end: str | None = None
    latency: str | None = None
    token_hashes: str | None = None

    def named(self) -> dict[str, str]:
        """Command line option -> column, of those that were given."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return {f"--{name.replace('_', '-')}": column for name, column in given.items() if column is not None}

    def check(self) -> None:
        """LeakageError if a column holds what exists only after launch; a latency is let through as a latency only."""
        for option, column in self.named().items():
            _refuse_measured(option, column, but=_DURATIONS if option in ("--end", "--latency") else frozenset())
        if self.arrival is None and (self.end or self.latency) and not (self.end and self.latency):
            raise InvalidInputError(
                path="--end" if self.end else "--latency",
                value=self.end or self.latency,
                remedy="give --arrival too: it takes two of arrival, end and latency to know what overlapped",
            )


def _refuse_measured(option: str, column: str, *, but: frozenset[str]) -> None:
    field = measured_field(column) or measured_field(column.rpartition(".")[2])
    if field and field not in but:
        raise LeakageError(
            f"{option} {column!r} is the measured quantity {field!r}: it describes the server that wrote the log, not "
            "the workload; name a column of tokens, times or token hashes, and rename this one if it only sounds alike"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read a file. unit, latency_unit: s, ms, us, ns; unit also iso. where: only lines with these values.

    block_tokens: tokens that one token hash stands for. most_bad: the share of lines that may be unusable.
    """

    columns: Columns
    form: str
    delimiter: str = ","
    unit: str = "s"
    latency_unit: str = "s"
    block_tokens: int = 512
    where: Mapping[str, str]
    most_bad: float = 0.01

    def check(self) -> None:
        """As Columns.check. Requests chosen by what a server made of them are that server's, so --where is no way."""
        self.columns.check()
        for column in self.where:
            _refuse_measured("--where", column, but=frozenset())

    def named(self) -> list[tuple[str, str]]:
        """(command line option, column) of everything that is read."""
        return [*self.columns.named().items(), *(("--where", column) for column in self.where)]


class UnusableError(Exception):
    """Why one line cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One usable line."""

    prompt: int
    output: int
    arrival_s: float | None
    end_s: float | None
    blocks: tuple[str, ...] | None


def is_wanted(row: Row, reading: Reading) -> bool:
    """Whether it has the values of --where: a JSON value other than text is spelled as in JSON."""
    found = {column: _value(row, column) for column in reading.where}
    spelled = {column: value if isinstance(value, str) else json.dumps(value) for column, value in found.items()}
    return spelled == dict(reading.where)


def _value(row: Row, column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise UnusableError(f"{column}: not there; its keys are {shorten(', '.join(map(str, row)))}")
        value = value[part]
    return value


def request_of(row: Row, reading: Reading) -> Request:
    """Its numbers, checked; UnusableError names the column, the value and what belongs there."""
    columns = reading.columns
    prompt, output = _tokens(row, columns.prompt_tokens), _tokens(row, columns.output_tokens)
    arrival_s, end_s = _times(row, reading)
    blocks = None if columns.token_hashes is None else _hashes(row, columns.token_hashes)
    if blocks is not None and (len(blocks) - 1) * reading.block_tokens >= prompt:
        raise UnusableError(
            f"{columns.token_hashes}: {len(blocks)} blocks of {reading.block_tokens} tokens for a prompt of "
            f"{prompt}; check --block-tokens"
        )
    return Request(prompt=prompt, output=output, arrival_s=arrival_s, end_s=end_s, blocks=blocks)


def _times(row: Row, reading: Reading) -> tuple[float | None, float | None]:
    """Arrival and end in seconds, as far as the columns give them."""
    columns = reading.columns
    arrival = None if columns.arrival is None else _time(row, columns.arrival, reading.unit)
    end = None if columns.end is None else _time(row, columns.end, reading.unit)
    latency = None if columns.latency is None else _time(row, columns.latency, reading.latency_unit)
    if arrival is None and end is not None and latency is not None:
        arrival = end - latency
    if end is None and arrival is not None and latency is not None:
        end = arrival + latency
    if arrival is not None and end is not None and end < arrival:
        column = columns.end or columns.latency
        raise UnusableError(f"{column}: the request ends before it arrives; give times of one clock")
    return arrival, end


def _number(row: Row, column: str, remedy: str, fits: Callable[[float], bool]) -> float:
    value = _value(row, column)
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not (math.isfinite(number) and fits(number)):
        raise UnusableError(f"{column}: {shorten(value)} cannot be used; {remedy}")
    return number


def _tokens(row: Row, column: str) -> int:
    remedy = f"give a whole number from 1 to {MAX_TOKENS}"
    return int(_number(row, column, remedy, lambda number: number.is_integer() and 1 <= number <= MAX_TOKENS))


def _time(row: Row, column: str, unit: str) -> float:
    if unit != ISO:
        scale = SECONDS[unit]
        remedy = f"give a number (in {unit}) of at most {FARTHEST_S:g} s to either side of 0"
        return _number(row, column, remedy, lambda number: abs(number * scale) <= FARTHEST_S) * scale
    value = _value(row, column)
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise UnusableError(f"{column}: {shorten(value)} cannot be used; give such as 2026-11-30T12:00:00Z") from None
    # Only differences count, so any one zone will do for those that name none.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _hashes(row: Row, column: str) -> tuple[str, ...]:
    value = _value(row, column)
    if isinstance(value, str):
        return tuple(part for part in _BETWEEN_HASHES.split(value) if part)
    if isinstance(value, list) and all(isinstance(part, int | str) for part in value):
        return tuple(map(str, value))
    raise UnusableError(f"{column}: {shorten(value)} cannot be used; give a list of block hashes")
