"""One object of a config.json, read by key: a refusal names the whole path, and nothing gets a silent default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.domain.errors import UnsupportedModelError
from service.domain.scenario import MAX_HIDDEN_SIZE, MAX_LAYERS, MAX_TOKENS, check_int

Assumed = str | int | bool

# Where composite models keep the decoder: outer key, then inner keys to follow.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

# Old spelling -> today's. Only families whose own class knows an old spelling read it; in any other one the engine
# would overlook the key and start with its class's default.
OLD_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
}
_HIGH = {
    "hidden_size": MAX_HIDDEN_SIZE, "num_hidden_layers": MAX_LAYERS, "num_attention_heads": 100_000,
    "head_dim": 100_000,
}  # fmt: skip
# Refuses typing errors; no dimension of any model comes near it.
MAX_DIMENSION = 10_000_000
# Keys of a quantisation's groups are the user's own.
_MOST_KEY_LENGTH = 100


@dataclass(slots=True)
class Notes:
    """What the reader of a config should know: gathered while it is read.

    names, globs, globs_with_digits: how many modules it names, and by patterns that span layers.
    """

    assumed: dict[str, Assumed] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    names: int = 0
    globs: int = 0
    globs_with_digits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """values under path. spellings: today's key -> those that the family's class also reads. defaults: its class's.

    moved: key -> where in the object it really stands, for the families that nest single dimensions.
    """

    values: Mapping[str, Any]
    path: str = ""
    notes: Notes
    moved: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaults: Mapping[str, Assumed] = field(default_factory=dict)

    def known_as(self, spellings: Mapping[str, Sequence[str]], defaults: Mapping[str, Assumed]) -> "Section":
        """The same object, read the way a family reads it."""
        return replace(self, spellings=spellings, defaults=defaults)

    def path_of(self, key: str) -> str:
        """Dotted from the top of the config."""
        key = self.moved.get(key, key)[:_MOST_KEY_LENGTH]
        return f"{self.path}.{key}" if self.path else key

    def refusal(self, key: str, remedy: str, *, value: object = None) -> UnsupportedModelError:
        """To be raised: the config cannot be read because of this key."""
        return UnsupportedModelError(path=self.path_of(key), value=value, remedy=remedy)

    def raw(self, key: str) -> object:
        """The value under today's key or the one other spelling that is there; None if there is none or it is null."""
        return self._find(key)[1]

    def _find(self, key: str) -> tuple[str, object]:
        names = (key, *self.spellings.get(key, ()))
        found = [(name, self.values[name]) for name in names if self.values.get(name) is not None]
        if len(found) > 1 and not all(_same(value, found[0][1]) for _, value in found):
            others = " and ".join(name for name, _ in found)
            raise self.refusal(found[1][0], f"{others} are one dimension with two values; keep one", value=found[1][1])
        return found[0] if found else (key, None)

    def size(self, key: str) -> int:
        """A dimension that must be there, or that the family's class is known to fill in."""
        found = self.optional(key)
        if found is not None:
            return found
        default = self.defaults.get(key)
        if isinstance(default, int):
            self.assume(key, default)
            return default
        old = next((old for old, new in OLD_KEYS.items() if new == key and old in self.values), None)
        raise self.refusal(key, f"the config must name this dimension; {f'rename {old}' if old else 'add it'}")

    def optional(self, key: str) -> int | None:
        """A dimension, None where the key is missing or null."""
        name, value = self._find(key)
        return None if value is None else check_int(self.path_of(name), value, high=_HIGH.get(key, MAX_TOKENS * 10))

    def count(self, key: str) -> int:
        """A number that may be 0; missing and null are 0."""
        name, value = self._find(key)
        return 0 if value is None else check_int(self.path_of(name), value, low=0, high=MAX_DIMENSION)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A switch; missing and null are the default."""
        name, value = self._find(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(name, "give true or false", value=value)
        return value

    def text(self, key: str) -> str | None:
        """A word, None where the key is missing or null."""
        name, value = self._find(key)
        if value is not None and not isinstance(value, str):
            raise self.refusal(name, "give a string", value=value)
        return value

    def part(self, key: str) -> "Section | None":
        """The object under a key, None where it is missing or switched off (null, false, 0, empty)."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise self.refusal(key, "give an object", value=value)
        return Section(values=value, path=self.path_of(key), notes=self.notes)

    def words(self, key: str, *, length: int, known: Sequence[str]) -> list[str] | None:
        """A word for every layer, None where the key is missing or null."""
        name, value = self._find(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise self.refusal(name, f"give a list with one entry for each of the {length} layers", value=value)
        for index, word in enumerate(value):
            if word not in known:
                raise self.refusal(f"{name}[{index}]", f"known are {', '.join(known)}", value=word)
        return value

    def layer_numbers(self, key: str, *, layers: int, first: int = 0) -> frozenset[int]:
        """A list of layers, the first of which is called `first`; missing and null are none."""
        name, value = self._find(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or len(value) > layers:
            raise self.refusal(name, f"give a list of at most {layers} layers", value=value)
        for index, layer in enumerate(value):
            check_int(f"{self.path_of(name)}[{index}]", layer, low=first, high=layers - 1 + first)
        return frozenset(layer - first for layer in value)

    def assume(self, key: str, value: Assumed) -> None:
        """Notes what the family's class fills in."""
        self.notes.assumed[f"model.config.{self.path_of(key)}"] = value


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other
