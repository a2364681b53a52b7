"""Bytes of a request body -> a JSON object: parsed once, ambiguity and non-numbers refused."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from service.api.problem import Detail, RefusedError, json_path

# No question is nested so deeply, and everything that walks a body may walk it recursively.
MOST_LEVELS = 64
# Python makes each of them anew, while everybody else waits: a config.json of many layers has some hundreds.
MOST_OBJECTS = 10_000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[][{}]")


def parse_object(body: bytes, *, finite: bool = True) -> dict[str, Any]:
    """The object in `body`; RefusedError for what is not JSON, no object, ambiguous or, unless allowed, not finite."""
    if body.count(b"{") + body.count(b"[") > MOST_LEVELS:
        _check_brackets(body)
    try:
        parsed = from_json(body)
    except ValueError as error:
        what = "it is empty" if not body.strip() else str(error)
        raise RefusedError(
            "invalid_json",
            f"the body is not JSON: {what}",
            details=[Detail(path="$", message=f"{what}; send one JSON object in UTF-8")],
        ) from error
    if not isinstance(parsed, dict):
        raise _invalid("$", "give a JSON object", parsed)
    # Python's own parser is the one that shows every pair; a body that passed above holds nothing it rejects.
    _PAIRS.decode(body.decode())
    if finite and (b"NaN" in body or b"Infinity" in body):
        for path, value in _not_finite(parsed, ()):
            raise _invalid(json_path(path), "give a finite number; JSON has no NaN or Infinity", value)
    return parsed


def _check_brackets(body: bytes) -> None:
    """Whether the body is JSON or not; brackets inside of strings do not count."""
    level = deepest = opened = 0
    for number, bracket in enumerate(_BRACKETS.finditer(_STRING.sub(b"", body))):
        if bracket.group() in b"{[":
            level, opened = level + 1, opened + 1
            deepest = max(deepest, level)
        else:
            level -= 1
        if opened > MOST_OBJECTS or number > 2 * MOST_OBJECTS:
            raise _invalid("$", f"send at most {MOST_OBJECTS:,} objects and lists at once", None)
    if deepest > MOST_LEVELS:
        raise _invalid("$", f"nest at most {MOST_LEVELS} levels of objects and lists", None)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _invalid("$", f"the key {repeated!r} stands twice in one object; keep one", repeated)
    return unique


_PAIRS = json.JSONDecoder(object_pairs_hook=_refuse_repeated, parse_int=str)


def _not_finite(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _not_finite(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _not_finite(member, (*path, index))


def _invalid(path: str, message: str, value: object) -> RefusedError:
    return RefusedError(
        "invalid_request", f"{path}: {message}", details=[Detail(path=path, message=message, value=value)]
    )
