"""Readers of observed traffic: CSV files with a header. A row that cannot be used is refused with its line."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench_runner.arrivals import MS_PER_S, RateTable
from bench_runner.lengths import EmpiricalLengths, QuantileTable
from service.domain.errors import ArtefactError, shorten

HASH_BLOCK_TOKENS = 512
HASH_COLUMN = f"hash_ids_{HASH_BLOCK_TOKENS}"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashBlocks:
    """Prompts cut into blocks of block_tokens: equal ids, equal tokens up to the end of that block.

    ids of request r: ids[start[r] : start[r + 1]]; start: [requests + 1].
    """

    ids: NDArray[np.int64]
    start: NDArray[np.int64]
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Observed requests, [requests] each, in the order of their arrival."""

    arrival_ms: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    hashes: HashBlocks | None

    def lengths(self) -> EmpiricalLengths:
        """Its lengths alone."""
        return EmpiricalLengths(prompt=self.prompt, output=self.output)


class _Row(NamedTuple):
    """One line of a file, which errors name."""

    path: Path
    line: int
    values: dict[str, str]

    def read(self, column: str, parse: Callable[[str], T], fits: Callable[[T], bool], remedy: str) -> T:
        """The parsed value of a column; ArtefactError if it does not parse or fit."""
        text = self.values[column]
        try:
            value = parse(text)
        except ValueError:
            raise self.refused(column, text, remedy) from None
        if not fits(value):
            raise self.refused(column, text, remedy)
        return value

    def tokens(self, column: str) -> int:
        """A number of tokens that a request can have."""
        remedy = "a whole number of at least 1; correct or remove the row"
        return self.read(column, int, lambda value: 1 <= value < 2**31, remedy)

    def number(self, column: str, *, most: float = 1e12) -> float:
        """A number from 0 to `most`."""
        remedy = f"a number from 0 to {most:g}; correct or remove the row"
        return self.read(column, float, lambda value: 0 <= value <= most, remedy)

    def refused(self, column: str, value: object, remedy: str) -> ArtefactError:
        """The error about one value."""
        return ArtefactError(f"{self.path}, line {self.line}, {column}: {shorten(value)} cannot be used; {remedy}")


def read_trace(path: Path) -> RequestTrace:
    """Columns arrival_s, prompt_tokens, output_tokens and, where prefixes are known, hash_ids_512 (ids and spaces)."""
    rows = _rows(path, ("arrival_s", "prompt_tokens", "output_tokens"))
    prompt = np.array([row.tokens("prompt_tokens") for row in rows], dtype=np.int64)
    return RequestTrace(
        arrival_ms=np.array(_ascending(rows, "arrival_s")) * MS_PER_S,
        prompt=prompt,
        output=np.array([row.tokens("output_tokens") for row in rows], dtype=np.int64),
        hashes=_hashes(rows, prompt) if HASH_COLUMN in rows[0].values else None,
    )


def read_lengths(path: Path, *, skip_empty: bool = False) -> EmpiricalLengths:
    """Columns prompt_tokens and output_tokens, one request a row. Further columns are left alone.

    skip_empty leaves out rows with no prompt or no output, which logs of chats have and an engine refuses.
    """
    columns = ("prompt_tokens", "output_tokens")
    rows = _rows(path, columns)
    if skip_empty:
        rows = [row for row in rows if all(row.values[column].strip() != "0" for column in columns)]
    return EmpiricalLengths(
        prompt=np.array([row.tokens("prompt_tokens") for row in rows], dtype=np.int64),
        output=np.array([row.tokens("output_tokens") for row in rows], dtype=np.int64),
    )


def read_quantiles(path: Path) -> QuantileTable:
    """Columns quantile (0 … 1, ascending) and tokens (not descending)."""
    rows = _rows(path, ("quantile", "tokens"))
    quantile = _ascending(rows, "quantile", most=1.0, strictly=True)
    tokens = _ascending(rows, "tokens")
    if tokens[0] < 1:
        raise rows[0].refused("tokens", rows[0].values["tokens"], "a request has at least one token")
    return QuantileTable(quantile=np.array(quantile), tokens=np.array(tokens))


def read_rates(path: Path) -> RateTable:
    """Columns window_start_s (ascending) and total_rate_rps. The last window is as long as the one before it."""
    rows = _rows(path, ("window_start_s", "total_rate_rps"))
    start_s = _ascending(rows, "window_start_s", strictly=True)
    if len(start_s) < 2:
        raise rows[0].refused("window_start_s", start_s[0], "a rate table has at least two windows")
    return RateTable(
        start_s=np.array(start_s),
        rate_rps=np.array([row.number("total_rate_rps") for row in rows]),
        end_s=2 * start_s[-1] - start_s[-2],
    )


def _hashes(rows: Sequence[_Row], prompt: NDArray[np.int64]) -> HashBlocks:
    ids = [row.read(HASH_COLUMN, _ids, bool, "whole numbers and spaces; correct or remove the row") for row in rows]
    for row, tokens, of_row in zip(rows, prompt, ids, strict=True):
        expected = -(-int(tokens) // HASH_BLOCK_TOKENS)
        if len(of_row) != expected:
            remedy = f"{tokens} prompt tokens have {expected} blocks of {HASH_BLOCK_TOKENS}; correct or remove the row"
            raise row.refused(HASH_COLUMN, f"{len(of_row)} ids", remedy)
    start = np.concatenate(([0], np.cumsum([len(of_row) for of_row in ids])))
    flat = np.array([one for of_row in ids for one in of_row], dtype=np.int64)
    return HashBlocks(ids=flat, start=start, block_tokens=HASH_BLOCK_TOKENS)


def _ids(text: str) -> list[int]:
    ids = [int(word) for word in text.split()]
    if any(not -(2**63) <= one < 2**63 for one in ids):
        raise ValueError(text)
    return ids


def _ascending(rows: Sequence[_Row], column: str, *, most: float = 1e12, strictly: bool = False) -> list[float]:
    values: list[float] = []
    for row in rows:
        value = row.number(column, most=most)
        if values and (value < values[-1] or (strictly and value == values[-1])):
            raise row.refused(column, row.values[column], f"it follows {values[-1]:g}; sort the rows")
        values.append(value)
    return values


def _rows(path: Path, columns: Sequence[str]) -> list[_Row]:
    """The rows of a CSV file that has at least these columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            header = reader.fieldnames or []
            rows = [_Row(path, reader.line_num, values) for values in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise ArtefactError(f"{path} cannot be read as CSV: {error}; give a text file with a header") from error
    missing = [column for column in columns if column not in header]
    if missing:
        found = shorten(", ".join(header))
        raise ArtefactError(f"{path}, line 1: {found} lacks the column {', '.join(missing)}; add it to the header")
    if not rows:
        raise ArtefactError(f"{path}, line 1: '' follows the header; give at least one row")
    for row in rows:
        if "" in row.values:
            raise ArtefactError(f"{path}, line {row.line}: more values than the header has columns; correct the row")
    return rows
