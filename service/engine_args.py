"""A user's engine arguments, read as vLLM 0.28's own parser reads them; the process of vLLM is not needed for it.

vLLM rewrites its command line (underscores, -O3, dotted keys) and hands it to argparse. The rewriting is told again
here; the rest is argparse itself, fed with vLLM's options, so that prefixes, duplicates and lists mean the same.
"""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

from service.domain.errors import MemoryPolicyError
from service.engine_options import (
    APPENDED,
    AUTOMATIC_SIZES,
    FLAGS,
    FLOATS,
    INTEGERS,
    LISTS,
    OPTIONAL_TEXTS,
    SHORT_FORMS,
    SIZES,
    SWITCHES,
    TEXTS,
)

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_NAME_UNDERSCORES = re.compile(r"(?<=--)[^.]*")
AUTOMATIC = -1
# No honest command line comes near these; they bound what a hostile one costs.
MOST_WORDS = 512
MOST_KEYS = 32
_MODEL = "MODEL"


class UnparsableArgsError(MemoryPolicyError):
    """vLLM would refuse these arguments, or reads them from somewhere that is not here to look at."""


class ConfigFileError(UnparsableArgsError):
    """`--config FILE`: what is set stands in a file that only the server sees."""


def split_words(text: str) -> list[str]:
    """The words of one string, by the quoting rules of a POSIX shell; UnparsableArgsError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UnparsableArgsError(f"the arguments cannot be split into words: {error}") from None


def read_args(words: Sequence[str], *, further: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the words set, by the names of vLLM's EngineArgs, of duplicates the last; nothing that they leave open.

    further: options with one value that another front end adds to vLLM's own. Messages never repeat a value: it may be
    a secret.
    """
    if not words:
        # As for most endpoints; argparse would take longer to find nothing than the ranking takes.
        return {}
    if len(words) > MOST_WORDS:
        raise UnparsableArgsError(f"more than {MOST_WORDS} words")
    if "--config" in words:
        raise ConfigFileError("--config names a file whose values cannot be seen here")
    if "--" in words:
        # vLLM takes a lone -- right behind the model, and refuses it behind anything that is put before it.
        raise UnparsableArgsError("-- stands for nothing here, and nothing can be put before it")
    try:
        rewritten = _dotted_as_json(_rewritten(words))
        # The model stands first on vLLM's command line, so that a further word on its own is one too many.
        values = vars(_parser(further).parse_args([_MODEL, *rewritten]))
    except (OverflowError, RecursionError):
        raise UnparsableArgsError("a value is larger or deeper than any that vLLM takes") from None
    del values["model_tag"]
    if "config" in values:
        raise ConfigFileError("--config names a file whose values cannot be seen here")
    return values


def size(text: str) -> int:
    """A whole number, perhaps with a unit: 8k is 8,000, 8K is 8,192. ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, unit = found.groups()
    # Binary units take no decimals: vLLM refuses 1.5K.
    return int(number) * _UNITS[unit] if unit.isupper() else int(float(number) * _UNITS[unit])


def _context_size(text: str) -> int:
    return AUTOMATIC if text.strip().lower() in ("-1", "auto") else size(text)


def _rewritten(words: Sequence[str]) -> list[str]:
    """Dashes for underscores in names up to the first dot, and -O in its long form."""
    rewritten: list[str] = []
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else None
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = _NAME_UNDERSCORES.sub(lambda found: found.group().replace("_", "-"), name, count=1)
            rewritten.append(f"{name}{equals}{value}")
        elif word.startswith("-O") and word != "-O":
            rewritten += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and following in ("0", "1", "2", "3"):
            rewritten.append("--optimization-level")
        else:
            rewritten.append(word)
    return rewritten


def _dotted_as_json(words: list[str]) -> list[str]:
    """`--name.key value` becomes `--name JSON` at the end, one for each name; what is no such word stays."""
    kept: list[str] = []
    families: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, text = word.partition("=")
        if not word.startswith("-") or "." not in name:
            kept.append(word)
            continue
        if not equals:
            if position == len(words):
                raise UnparsableArgsError("a dotted argument at the end has no value")
            text = words[position]
            position += 1
        if name.endswith("+"):
            name, text = name[:-1], json.dumps(text.split(","))
        family, *keys = name.split(".")
        if len(keys) > MOST_KEYS:
            raise UnparsableArgsError(f"a dotted argument has more than {MOST_KEYS} keys")
        nested: Any = _json_or_text(text)
        for key in reversed(keys):
            nested = {key: nested}
        _merge(families.setdefault(family, {}), nested)
    return kept + [part for family, value in families.items() for part in (family, json.dumps(value))]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return size(text)
    except ValueError:
        return text


def _merge(original: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        present = original.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            _merge(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            original[key] = present + value
        else:
            original[key] = value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse repeats what it was given, which may be a secret.
        raise UnparsableArgsError("vLLM 0.28 would refuse these arguments: an option or a value that it does not know")


@cache
def _parser(further: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shorts: dict[str, list[str]] = {}
    for short, name in SHORT_FORMS.items():
        shorts.setdefault(name, []).append(short)

    def add(names: Sequence[str], **options: Any) -> None:
        for name in names:
            parser.add_argument(f"--{name}", *shorts.get(name, ()), default=argparse.SUPPRESS, **options)

    parser.add_argument(dest="model_tag", nargs="?")
    # Asking for help starts no server.
    parser.add_argument("-h", "--help", action=_Refused, nargs=0)
    add(SWITCHES, action=argparse.BooleanOptionalAction)
    add(FLAGS, action="store_true")
    add(INTEGERS, type=int)
    add(SIZES, type=size)
    add(AUTOMATIC_SIZES, type=_context_size)
    add(FLOATS, type=float)
    add((*TEXTS, *further))
    add(OPTIONAL_TEXTS, nargs="?")
    add(LISTS, nargs="+")
    add(APPENDED, action="append")
    return parser


class _Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error("help")
