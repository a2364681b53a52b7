"""The models that a request may name: those that come with the service, and the operator's own."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from service.domain.catalogue import CATALOGUE, model_by_name
from service.domain.errors import ArtefactError, InvalidInputError, UnknownNameError
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch

BUILT_IN_DIR = Path(__file__).resolve().parent.parent / "models"
MODELS_SCHEMA = 1
Origin = Literal["built_in", "operator"]
# A refusal lists so many names that resemble the unknown one.
_SUGGESTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model by name. config: its config.json, or the keys of it that size it; None where `ready` is the model.

    source: the public file that the numbers were read from, or the operator's file.
    """

    name: str
    source: str
    origin: Origin = "built_in"
    config: Mapping[str, Any] | None = None
    ready: ModelArch | None = None

    def read(self) -> ModelArch:
        """The model; InvalidInputError where its config cannot be sized."""
        if self.ready is not None:
            return self.ready
        return parse_config(self.config or {}, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCatalogue:
    """Entries by name, whatever the case. sha256: of what the operator added, empty where nothing was."""

    entries: tuple[ModelEntry, ...]
    sha256: str = ""
    _by_name: dict[str, ModelEntry] = field(init=False, repr=False, compare=False)
    # Filled as models are asked for: a start, and one question, need not read all of them.
    _read: dict[str, ModelArch] = field(init=False, repr=False, compare=False, default_factory=dict)
    _listed: dict[str, ModelArch] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        by_name: dict[str, ModelEntry] = {}
        for entry in self.entries:
            if (earlier := by_name.setdefault(entry.name.casefold(), entry)) is not entry:
                raise ArtefactError(f"{entry.source}: {entry.name} is {earlier.source} already; rename one of them")
        object.__setattr__(self, "_by_name", by_name)

    def model(self, name: str, *, path: str = "model.name") -> ModelArch:
        """The model of that name; UnknownNameError, at this path of the question, shows those that resemble it."""
        key = name.strip().casefold()
        found = self._read.get(key)
        if found is not None:
            return found
        entry = self._by_name.get(key)
        if entry is None:
            raise UnknownNameError(path=path, value=name, known=self._resembling(key), of=len(self.entries))
        return self._read.setdefault(key, entry.read())

    def like(self, base: str, *, name: str | None, path: str = "model.same_architecture_as") -> ModelArch:
        """Another model of the architecture of `base`; that it keeps the context is an assumption."""
        model = self.model(base, path=path)
        context = model.max_model_len
        assumed = () if context is None else (("model.max_model_len", context),)
        return replace(model, name=name, assumed=(*model.assumed, *assumed))

    def search(self, words: str) -> list[tuple[ModelEntry, ModelArch]]:
        """Those that have every word in id, family, kind or quantisation, in the catalogue's order."""
        wanted = words.casefold().split()
        both = ((entry, self._without_modules(entry)) for entry in self.entries)
        return [(entry, model) for entry, model in both if all(word in _text(entry, model) for word in wanted)]

    def _without_modules(self, entry: ModelEntry) -> ModelArch:
        """What a list needs of it: hundreds of matrices of hundreds of models would be kept for nothing."""
        found = self._listed.get(entry.name)
        if found is None:
            model = entry.read()
            read = model.architecture
            found = model if read is None else replace(model, architecture=replace(read, modules=()))
            self._listed[entry.name] = found
        return found

    def with_operator(self, added: Iterable[ModelEntry], *, sha256: str) -> Self:
        """The operator's entries first; one that has the name of a built-in one stands in its place."""
        own = tuple(added)
        names = {entry.name.casefold() for entry in own}
        kept = tuple(entry for entry in self.entries if entry.name.casefold() not in names)
        return type(self)(entries=(*own, *kept), sha256=sha256)

    def _resembling(self, key: str) -> list[str]:
        last = key.rpartition("/")[2]
        by_last = {name.rpartition("/")[2]: name for name in self._by_name}
        close = [by_last[found] for found in get_close_matches(last, by_last, n=_SUGGESTED, cutoff=0.4)]
        return [self._by_name[name].name for name in close or list(self._by_name)[:_SUGGESTED]]


def _text(entry: ModelEntry, model: ModelArch) -> str:
    read = model.architecture
    about = [entry.name, model.kind, model.quantisation or "", entry.origin]
    if read is not None:
        about += [read.family, *read.traits]
    return " ".join(about).casefold()


@cache
def built_in() -> ModelCatalogue:
    """The models that come with the service: those that plans and policies are made of, then service/models."""
    entries = [_of_the_domain(entry.name) for entry in CATALOGUE]
    for file in sorted(BUILT_IN_DIR.glob("*.json")):
        entries.extend(_entries(file))
    return ModelCatalogue(entries=tuple(entries))


def _of_the_domain(name: str) -> ModelEntry:
    entry = next(entry for entry in CATALOGUE if entry.name == name)
    return ModelEntry(
        name=name,
        source=f"{entry.source.repository}@{entry.source.revision}:{entry.source_path}",
        ready=model_by_name(name),
    )


def _entries(file: Path) -> list[ModelEntry]:
    try:
        content = json.loads(file.read_bytes())
        if content["schema_version"] != MODELS_SCHEMA:
            raise ArtefactError(f"{file}: schema_version is not {MODELS_SCHEMA}; restore the committed file")
        return [
            ModelEntry(name=model["name"], config=model["config"], source=source_text(model["source"]))
            for model in content["models"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{file}: not a list of models ({error!r}); restore the committed file") from error


def source_text(source: Mapping[str, str]) -> str:
    """One line that says where the numbers stand: repository@revision:path, and through whom they were read."""
    line = f"{source['repository']}@{source['revision']}:{source['path']}"
    return f"{line} ({source['through']})" if "through" in source else line


def digest(parts: Iterable[bytes]) -> str:
    """Of what the operator added: two catalogues of one digest answer alike."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def located(error: InvalidInputError, file: Path) -> ArtefactError:
    """A refusal of what a file of the operator's says, with the file's name."""
    return ArtefactError(f"{file}: {error}")
