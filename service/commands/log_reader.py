"""A request log or trace -> arrays: CSV or JSON lines, plain or gzip. Unusable lines are counted and named."""

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from service.commands.log_line import Reading, Request, Row, UnusableError, is_wanted, request_of
from service.domain.errors import MemoryPolicyError, shorten

FORMAT_BY_SUFFIX = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_NAMED_LINES = 3
_GZIP = b"\x1f\x8b"
# A list of block hashes is one field, and longer than csv's own limit.
_LONGEST_FIELD = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """Requests in the order of their arrival, or of the file where no arrival is known.

    prompt, output: [requests] tokens. arrival_s, end_s: [requests] seconds, of one clock. blocks: per request the
    hashes of its prompt's blocks, from the first on. bad: the first unusable lines, in words; bad_lines: how many.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    arrival_s: NDArray[np.float64] | None
    end_s: NDArray[np.float64] | None
    blocks: tuple[tuple[str, ...], ...] | None
    lines: int
    passed_over: int
    bad_lines: int
    bad: tuple[str, ...]


def form_of(path: Path) -> str | None:
    """csv or jsonl by the file's name, .gz aside; None if it does not say."""
    suffixes = [suffix.casefold() for suffix in path.suffixes if suffix.casefold() != ".gz"]
    return FORMAT_BY_SUFFIX.get(suffixes[-1]) if suffixes else None


def read_log(file: IO[bytes], name: str, reading: Reading) -> RequestLog:
    """All usable lines. MemoryPolicyError if there is none, a column is missing, or too many lines are unusable."""
    reading.check()
    found: list[Request] = []
    bad: list[str] = []
    lines = passed_over = bad_lines = 0
    try:
        with _text_of(file) as text:
            for line, row in _json_rows(text) if reading.form == "jsonl" else _csv_rows(text, name, reading):
                lines += 1
                try:
                    if isinstance(row, UnusableError):
                        raise row
                    if is_wanted(row, reading):
                        found.append(request_of(row, reading))
                    else:
                        passed_over += 1
                except UnusableError as error:
                    bad_lines += 1
                    if len(bad) < _NAMED_LINES:
                        bad.append(f"line {line}: {error}")
    except (EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        raise MemoryPolicyError(f"{name}: damaged behind its line {lines}: {error}; write or copy it again") from error
    _refuse_too_few(name, reading, used=len(found), bad_lines=bad_lines, bad=bad)
    return _in_order(found, reading, counts=(lines, passed_over, bad_lines), bad=tuple(bad))


def _refuse_too_few(name: str, reading: Reading, *, used: int, bad_lines: int, bad: Sequence[str]) -> None:
    wanted = used + bad_lines
    if not wanted:
        which = f" with {', '.join(f'{c}={v}' for c, v in reading.where.items())}" if reading.where else ""
        raise MemoryPolicyError(f"{name}: no request{which} in it; give a log with at least one")
    if bad_lines > reading.most_bad * wanted or not used:
        more = "; …" if bad_lines > len(bad) else ""
        raise MemoryPolicyError(
            f"{name}: {bad_lines} of {wanted} lines cannot be used, more than {reading.most_bad:.3g} of all: "
            f"{'; '.join(bad)}{more}. Mend them or the columns that are named, or allow more with --most-bad"
        )


def _in_order(
    found: Sequence[Request], reading: Reading, *, counts: tuple[int, int, int], bad: tuple[str, ...]
) -> RequestLog:
    arrivals = [request.arrival_s for request in found if request.arrival_s is not None]
    ends = [request.end_s for request in found if request.end_s is not None]
    # Servers log a request when it ends; the order of arrival is that of the prefixes, too.
    order = np.argsort(np.array(arrivals), kind="stable") if arrivals else np.arange(len(found))
    ordered = [found[int(i)] for i in order]
    blocks = tuple(request.blocks or () for request in ordered) if reading.columns.token_hashes else None
    lines, passed_over, bad_lines = counts
    return RequestLog(
        prompt=np.array([request.prompt for request in ordered], dtype=np.int64),
        output=np.array([request.output for request in ordered], dtype=np.int64),
        arrival_s=np.array(arrivals)[order] if arrivals else None,
        end_s=np.array(ends)[order] if ends else None,
        blocks=blocks,
        lines=lines,
        passed_over=passed_over,
        bad_lines=bad_lines,
        bad=bad,
    )


def _text_of(file: IO[bytes]) -> IO[str]:
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    content = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
    # A byte that is no UTF-8 spoils the value that it stands in, which is then named with its line.
    return io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="")


def _json_rows(text: IO[str]) -> Iterator[tuple[int, Row | UnusableError]]:
    for line, content in enumerate(text, start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content, object_pairs_hook=_object)
        except UnusableError as error:
            yield line, error
            continue
        except (ValueError, RecursionError):
            row = None
        yield line, row if isinstance(row, dict) else UnusableError(f"{shorten(content.strip())} is no JSON object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        values = " and ".join(shorten(value) for key, value in pairs if key == twice)
        raise UnusableError(f"{twice}: stands in one object more than once, as {values}; write it once")
    return made


def _csv_rows(text: IO[str], name: str, reading: Reading) -> Iterator[tuple[int, Row | UnusableError]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(text, delimiter=reading.delimiter, strict=True)
    header = reader.fieldnames or ()
    for option, column in reading.named():
        if column not in header:
            there = ", ".join(header) or "none"
            raise MemoryPolicyError(f"{name}: {option} {column!r} is no column of it; its first line names: {there}")
        if header.count(column) > 1:
            places = " and ".join(str(place) for place, one in enumerate(header, start=1) if one == column)
            raise MemoryPolicyError(
                f"{name}: {option} {column!r} stands in its first line more than once, in places {places}; rename all "
                "but one of them"
            )
    for row in reader:
        whole = None not in row and None not in row.values()
        yield reader.line_num, row if whole else UnusableError(f"not the {len(header)} values that the header names")
