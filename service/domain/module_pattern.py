"""Which modules a quantised config names: exact names, globs, and the plain subset of regular expressions in use.

Names of one module differ between checkpoints (`model.language_model.layers`, `backbone.layers`, `ffn`), so both sides
are brought to one spelling first. A config is foreign text, hence no regular expression of it is ever run.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.domain.config_section import Section

# In one config, over all of its lists and with alternatives written out.
MOST_NAMES = 20_000
# Patterns that are not bound to one layer are compared with every module. Published configs have up to six.
MOST_GLOBS = 64
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
_REGEX_TOKEN = re.compile(r"\\\.|\\d\+|\[0-9\]\+|\.\*|\.\+")
_PLAIN = re.compile(r"[\w.*-]*")


def spelling(name: str) -> str:
    """The one spelling of a module's name or of a glob over it."""
    for pattern, replacement in _SPELLINGS:
        name = pattern.sub(replacement, name)
    return name


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A set of modules. A name stands for everything below it; one without a dot for any module that ends so."""

    exact: frozenset[str] = frozenset()
    globs: tuple[tuple[str, ...], ...] = ()
    by_layer: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def holds(self, name: str) -> bool:
        """Whether the module is named, or one that it is part of."""
        parts = name.split(".")
        if any(part in self.exact for part in parts):
            return True
        if any(".".join(parts[:end]) in self.exact for end in range(2, len(parts) + 1)):
            return True
        found = _LAYER.match(name)
        bound = self.by_layer.get(found[1], ()) if found else ()
        return any(_matches(glob, name) for glob in itertools.chain(bound, self.globs))


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
    exact: set[str] = set()
    globs: list[tuple[str, ...]] = []
    by_layer: dict[str, list[tuple[str, ...]]] = {}
    for key in keys:
        for name in _listed(section, key):
            alternatives = _globs(section, key, name)
            section.notes.names += len(alternatives)
            if section.notes.names > MOST_NAMES:
                raise section.refusal(key, f"name at most {MOST_NAMES:,} modules in all", value=name)
            for glob in alternatives:
                plain = spelling(glob)
                if "*" not in plain:
                    exact.add(plain)
                    continue
                pieces = tuple(plain.split("*"))
                found = _LAYER.match(pieces[0])
                if found:
                    by_layer.setdefault(found[1], []).append(pieces)
                else:
                    globs.append(pieces)
                    section.notes.globs += 1
                    if section.notes.globs > MOST_GLOBS:
                        raise section.refusal(key, f"give at most {MOST_GLOBS} patterns that span layers", value=name)
    return ModuleNames(frozenset(exact), tuple(globs), {layer: tuple(found) for layer, found in by_layer.items()})


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


def _globs(section: Section, key: str, name: str) -> list[str]:
    """A name as globs. `re:` is read where it is made of literals, `.*`, `\\d+` and groups of alternatives."""
    if not name.startswith("re:"):
        return [name]
    text = name.removeprefix("re:").removeprefix("^").removesuffix("$")
    text = _REGEX_TOKEN.sub(lambda token: "." if token[0] == "\\." else "*", text)
    choices = [piece.removeprefix("?:").split("|") for piece in re.split(r"[()]", text)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > _MOST_ALTERNATIVES or not all(_PLAIN.fullmatch(word) for choice in choices for word in choice):
        section.notes.warnings.append(
            f"{section.path_of(key)}: a pattern could not be read, so modules that it names are counted as quantised"
        )
        return []
    return ["".join(parts) for parts in itertools.product(*choices)]
