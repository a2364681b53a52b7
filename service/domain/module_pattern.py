"""Which modules a quantised config names: exact names, globs, and the plain subset of regular expressions in use.

Names of one module differ between checkpoints (`model.language_model.layers`, `backbone.layers`, `ffn`), so both sides
are brought to one spelling first. A config is foreign text, hence no regular expression of it is ever run.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from service.domain.config_section import Section

# In one config, over all of its lists and with alternatives written out.
MOST_NAMES = 20_000
# Patterns that are not bound to one layer are compared with every module, unless they hold no digit. Published configs
# have up to six.
MOST_GLOBS = 64
MOST_GLOBS_WITH_DIGITS = 16
# Patterns such as `model.layers.1*` that begin with the same digits.
MOST_GLOBS_BY_DIGITS = 8
MOST_PIECES = 9
MOST_PATTERN_LENGTH = 300
_MOST_ALTERNATIVES = 64

_SPELLINGS = (
    (re.compile(r"^(?:model\.)?language_model\.(?:model\.)?"), "model."),
    (re.compile(r"^(?:backbone|transformer)\."), "model."),
    (re.compile(r"^(layers)\."), r"model.\1."),
    (re.compile(r"\bmodel\.model\."), "model."),
    (re.compile(r"^model\.(lm_head)\b"), r"\1"),
    (re.compile(r"^(?:head|output)$"), "lm_head"),
    (re.compile(r"\.(?:ffn|feed_forward|block_sparse_moe)\b"), ".mlp"),
    (re.compile(r"\.attn\b"), ".self_attn"),
    (re.compile(r"\.experts\.(?:\d+|\*)\b"), ".experts"),
    (re.compile(r"\.shared_expert\b"), ".shared_experts"),
    (re.compile(r"\.router\b"), ".gate"),
)
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
# What a pattern says of the layer: its number anywhere, or its first digits.
_NUMBER = re.compile(r"\.(\d+)\.")
_FIRST_DIGITS = re.compile(r"model\.layers\.(\d+)")
_DIGIT = re.compile(r"\d")
_REGEX_TOKEN = re.compile(r"\\\.|\\d\+|\[0-9\]\+|\.\*|\.\+")
_READABLE = re.compile(r"[\w.*|()?:\[\]-]*", re.ASCII)
_PLAIN = re.compile(r"[\w.*-]*", re.ASCII)
_LITERAL = re.compile(r"[\w.*-]+", re.ASCII)
_CLASS = re.compile(r"\[((?:\w(?:-\w)?)+)\]", re.ASCII)


def spelling(name: str) -> str:
    """The one spelling of a module's name or of a glob over it."""
    for pattern, replacement in _SPELLINGS:
        name = pattern.sub(replacement, name)
    return name


Glob = tuple[str, ...]


# Each module is asked for by one rule after another.
@lru_cache(maxsize=64)
def _containers(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that hold a module if they are listed, and the keys of by_layer that its layer has."""
    parts = name.split(".")
    within = (*parts, *(".".join(parts[:end]) for end in range(2, len(parts) + 1)))
    found = _LAYER.match(name)
    layer = found[1] if found else ""
    return within, (layer, *(f"{layer[:end]}*" for end in range(1, len(layer) + 1)))


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A set of modules. A name stands for everything below it; one without a dot for any module that ends so.

    globs: the literal pieces around asterisks, with a digit in them. by_layer: those of one layer, or, under `1*`, of
    the layers whose number begins so. in_any: those without a digit, which hold in every layer or in none.
    """

    exact: frozenset[str] = frozenset()
    globs: tuple[Glob, ...] = ()
    by_layer: dict[str, tuple[Glob, ...]] = field(default_factory=dict)
    in_any: tuple[Glob, ...] = ()
    _held_in_any: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def holds(self, name: str) -> bool:
        """Whether the module is named, or one that it is part of."""
        within, layer_keys = _containers(name)
        if self.exact and not self.exact.isdisjoint(within):
            return True
        if not (self.by_layer or self.globs or self.in_any):
            return False
        keys = layer_keys if self.by_layer else ()
        bound = itertools.chain.from_iterable(self.by_layer.get(key, ()) for key in keys)
        if any(_matches(glob, name) for glob in itertools.chain(bound, self.globs)):
            return True
        return bool(self.in_any) and self._is_held_in_any(_LAYER.sub("model.layers.0.", name))

    @property
    def compared(self) -> int:
        """Names that patterns without a digit were compared with so far."""
        return len(self._held_in_any)

    def _is_held_in_any(self, name: str) -> bool:
        """A literal without a digit matches nothing of a layer's number, so that one layer stands for all."""
        found = self._held_in_any.get(name)
        if found is None:
            found = self._held_in_any[name] = any(_matches(glob, name) for glob in self.in_any)
        return found


def _matches(glob: Sequence[str], name: str) -> bool:
    """glob: the literal pieces around its asterisks. What it matches it also holds the parts of."""
    first, *rest = glob
    if not name.startswith(first):
        return False
    if not rest:
        return len(name) == len(first) or name[len(first)] == "."
    at = len(first)
    for piece in rest[:-1]:
        at = name.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    last = rest[-1]
    return not last or name.find(f"{last}.", at) >= 0 or name.endswith(last, at)


def read_names(section: Section, keys: Iterable[str]) -> ModuleNames:
    """The modules that lists under these keys name; UnsupportedModelError for what is no list of names."""
    found = GatheredNames(section)
    for key in keys:
        for name in _listed(section, key):
            globs = _globs(name)
            if globs is None:
                section.notes.names += _MOST_ALTERNATIVES
                section.notes.warnings.append(
                    f"{section.path_of(key)}: a pattern could not be read, so modules that it names are counted as "
                    "quantised"
                )
            found.add(key, name, globs or [])
    return found.names


class GatheredNames:
    """Globs on their way into ModuleNames, with the bounds on how many there may be."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._exact: set[str] = set()
        self._spanning: dict[bool, list[Glob]] = {False: [], True: []}
        self._by_layer: dict[str, list[Glob]] = {}

    @property
    def names(self) -> ModuleNames:
        """All that were added."""
        by_layer = {layer: tuple(found) for layer, found in self._by_layer.items()}
        return ModuleNames(frozenset(self._exact), tuple(self._spanning[True]), by_layer, tuple(self._spanning[False]))

    def add(self, key: str, name: str, globs: Iterable[str]) -> None:
        """What `name` under `key` stands for."""
        notes = self._section.notes
        for glob in globs:
            notes.names += 1
            self._bound(notes.names, MOST_NAMES, "name at most {:,} modules in all", key, name)
            plain = re.sub(r"\*+", "*", spelling(glob))
            if "*" not in plain:
                self._exact.add(plain)
                continue
            pieces = tuple(plain.split("*"))
            self._bound(len(pieces), MOST_PIECES, "give patterns of at most {} pieces", key, name)
            number = next((found for piece in pieces if (found := _NUMBER.search(piece))), None)
            first = _FIRST_DIGITS.fullmatch(pieces[0])
            if number:
                self._by_layer.setdefault(number[1], []).append(pieces)
            elif first:
                alike = self._by_layer.setdefault(f"{first[1]}*", [])
                alike.append(pieces)
                self._bound(len(alike), MOST_GLOBS_BY_DIGITS, "give at most {} patterns of one beginning", key, name)
            else:
                self._add_spanning(pieces, key, name)

    def add_prefix(self, pattern: str) -> bool:
        """The modules whose names begin as a regular expression says; False where it cannot be read."""
        globs = _globs(f"re:{pattern}" if pattern.endswith("$") else f"re:{pattern}.*")
        if globs is None:
            self._section.notes.names += _MOST_ALTERNATIVES
            return False
        self.add(pattern, pattern, globs)
        return True

    def _add_spanning(self, pieces: Glob, key: str, name: str) -> None:
        notes, has_digits = self._section.notes, any(map(_DIGIT.search, pieces))
        self._spanning[has_digits].append(pieces)
        notes.globs += 1
        notes.globs_with_digits += has_digits
        self._bound(notes.globs, MOST_GLOBS, "give at most {} patterns that span layers", key, name)
        self._bound(
            notes.globs_with_digits, MOST_GLOBS_WITH_DIGITS, "give at most {} patterns with digits that span layers",
            key, name,
        )  # fmt: skip

    def _bound(self, count: int, most: int, remedy: str, key: str, name: str) -> None:
        if count > most:
            raise self._section.refusal(key, remedy.format(most), value=name)


def _listed(section: Section, key: str) -> list[str]:
    value = section.values.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise section.refusal(key, "give a list of module names", value=value)
    for index, name in enumerate(value):
        if not isinstance(name, str) or len(name) > MOST_PATTERN_LENGTH:
            raise section.refusal(f"{key}[{index}]", "give the name of a module or a pattern", value=name)
    return value


def _globs(name: str) -> list[str] | None:
    """A name as globs. `re:` is read where it is made of literals, `.*`, `\\d+`, classes and groups of alternatives.

    None where it is not, or stands for too many.
    """
    if not name.startswith("re:"):
        return [name]
    text = name.removeprefix("re:").removeprefix("^").removesuffix("$")
    text = _REGEX_TOKEN.sub(lambda token: "." if token[0] == "\\." else "*", text)
    if not _READABLE.fullmatch(text):
        return None
    found = _alternatives(text, 0)
    return found[0] if found and found[1] == len(text) and all(map(_PLAIN.fullmatch, found[0])) else None


def _alternatives(text: str, at: int) -> tuple[list[str], int] | None:
    """All that the alternatives from here on stand for, and where their group or the text ends; None for too many."""
    done: list[str] = []
    words = [""]
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            done, words, choices, at = done + words, [""], [""], at + 1
        elif text[at] == "(":
            inner = _alternatives(text, at + (3 if text.startswith("?:", at + 1) else 1))
            if inner is None or inner[1] == len(text):
                return None
            choices, at = inner[0], inner[1] + 1
        elif found := _CLASS.match(text, at):
            choices, at = _class_members(found[1]), found.end()
        elif found := _LITERAL.match(text, at):
            choices, at = [found[0]], found.end()
        else:
            return None
        if not 0 < len(done) + len(words) * len(choices) <= _MOST_ALTERNATIVES:
            return None
        words = [word + choice for word in words for choice in choices]
    return done + words, at


def _class_members(text: str) -> list[str]:
    """Of `1-58`: 1 to 5, and 8."""
    found: list[str] = []
    for first, last in re.findall(r"(\w)(?:-(\w))?", text, re.ASCII):
        found += map(chr, range(ord(first), ord(last or first) + 1))
    return found
