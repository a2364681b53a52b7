"""Models on disk: a config.json, the folder that holds one, an adapter's folder, and an operator's folder of models."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from service.api.json_body import parse_object
from service.api.model_catalogue import ModelCatalogue, ModelEntry, built_in, digest, located
from service.api.problem import RefusedError
from service.api.request_schemas import NUMBER_KEYS
from service.api.secret import holds_secret
from service.domain.adapter import read_adapter, with_adapter
from service.domain.errors import ArtefactError, InvalidInputError, MemoryPolicyError
from service.domain.model_config import parse_config
from service.domain.scenario import ModelArch

# No config.json comes near it; model.safetensors.index.json and tokenizers lie beside it.
MOST_CONFIG_BYTES = 16 * 2**20
STDIN = Path("-")
CONFIG, ADAPTER, QUANTISATION = "config.json", "adapter_config.json", "hf_quant_config.json"
# An adapter says in this key what it was trained on.
_BASE = "base_model_name_or_path"
_LIKE = "same_architecture_as"
# Of the four numbers those that no config.json has.
_OWN_NUMBERS = ("weight_gb", "kv_bytes_per_token")
# A file name cannot hold the slash of an id; the caches of Hugging Face write it so, too.
_SLASH = "--"
_NAME = re.compile(r"[A-Za-z0-9._~][A-Za-z0-9._/~@:+-]{0,199}")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file, - for standard input; MemoryPolicyError in one line if there is none."""
    # Standard input stays open for whoever started this.
    with nullcontext(sys.stdin.buffer) if file == STDIN else file.open("rb") as source:
        content = source.read(MOST_CONFIG_BYTES + 1)
    if len(content) > MOST_CONFIG_BYTES:
        raise MemoryPolicyError(f"{file}: larger than {MOST_CONFIG_BYTES:,} bytes, so it is no config.json")
    try:
        # Published files hold Infinity, which JSON does not know.
        return parse_object(content, finite=False)
    except RefusedError as error:
        raise MemoryPolicyError(f"{file}: {error.message}") from error


def read_config_file(path: Path) -> dict[str, Any]:
    """The object in a config.json, or in the one of a folder; MemoryPolicyError in one line if there is none.

    ModelOpt writes the method of quantised weights into a file of its own, which the engine also reads.
    """
    if not path.is_dir():
        return read_object(path)
    config = read_object(path / CONFIG)
    beside = path / QUANTISATION
    if beside.is_file() and not config.get("quantization_config"):
        content = read_object(beside)
        inner = content.get("quantization", content)
        config["quantization_config"] = {"quant_method": "modelopt", **(inner if isinstance(inner, dict) else {})}
    return config


def model_part(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`model` and `adapter` of the question about a folder or a config.json.

    A folder with an adapter alone is a question about the model that it was trained on, which it names.
    """
    adapter = path / ADAPTER if path.is_dir() else None
    if adapter is None or not adapter.is_file():
        return {"config": read_config_file(path)}, None
    part = adapter_part(path)
    if (path / CONFIG).is_file():
        return {"config": read_config_file(path)}, part
    base = part["config"].get(_BASE)
    if not isinstance(base, str) or not base:
        raise MemoryPolicyError(f"{adapter}: {_BASE} is missing; give the model by --model and the folder as --adapter")
    folder = Path(base)
    return ({"config": read_config_file(folder)} if folder.is_dir() else {"name": base}), part


def inspected(path: Path, models: ModelCatalogue) -> ModelArch:
    """The model of a folder or a config.json, with the room for its adapter where there is one.

    InvalidInputError names the key of whichever file it is.
    """
    model, adapter = model_part(path)
    read = parse_config(model["config"]) if "config" in model else models.model(model["name"], path=_BASE)
    return read if adapter is None else with_adapter(read, read_adapter(adapter["config"]))


def adapter_part(path: Path) -> dict[str, Any]:
    """`adapter` of the question about an adapter_config.json or its folder."""
    return {"config": read_object(path / ADAPTER if path.is_dir() else path)}


def with_models_dir(folder: Path | None) -> ModelCatalogue:
    """The built-in models and those of an operator's folder; a file that cannot be used is named and refused.

    NAME.json, ORG/NAME.json, NAME/config.json and ORG/NAME/config.json; `--` in a name stands for a slash. A file holds
    a config.json, the four numbers or {"same_architecture_as": …}; a folder may hold an adapter. A model that is named
    there is one of the folder or a built-in one.
    """
    known = built_in()
    if folder is None:
        return known
    if not folder.is_dir():
        raise ArtefactError(f"models_dir {folder}: no such folder; mount it or leave MEMORYPOLICY_MODELS_DIR unset")
    files = list(_files(folder, depth=2))
    read = dict(_entries(files, folder, known))
    parts = [part for name, file in files for part in (name.encode(), *_contents(file))]
    return known.with_operator([read[file] for _, file in files], sha256=digest(parts))


def _entries(
    files: Sequence[tuple[str, Path]], folder: Path, known: ModelCatalogue
) -> Iterator[tuple[Path, ModelEntry]]:
    """Each after the model that it refers to."""
    waiting = [(name, file, _referred(file)) for name, file in files]
    read: list[ModelEntry] = []
    while waiting:
        names = {name.casefold() for name, _, _ in waiting}
        # One that refers to its own name means the built-in model in whose place it stands.
        ready = [one for one in waiting if one[2] not in names or one[2] == one[0].casefold()]
        if not ready:
            name, file, referred = waiting[0]
            raise ArtefactError(f"{file}: {name} and {referred} refer to each other; give one of them a config.json")
        models = known.with_operator(read, sha256="")
        for name, file, _ in ready:
            source = f"models_dir:{file.relative_to(folder)}"
            entry = ModelEntry(name=name, source=source, origin="operator", ready=_read(file, name, models))
            read.append(entry)
            yield file, entry
        waiting = [one for one in waiting if one not in ready]


def _referred(file: Path) -> str | None:
    """The model that a file says to be like, or to adapt; as the catalogue compares names."""
    if file.name == CONFIG:
        return None
    content = _content(file)
    referred = content.get(_BASE if file.name == ADAPTER else _LIKE)
    return None if referred is None else str(referred).strip().casefold()


def _content(file: Path) -> dict[str, Any]:
    try:
        return read_object(file)
    except MemoryPolicyError as error:
        raise ArtefactError(str(error)) from error


def _contents(file: Path) -> Iterator[bytes]:
    yield file.read_bytes()
    for beside in (file.with_name(name) for name in (QUANTISATION, ADAPTER)):
        if file.name == CONFIG and beside.is_file():
            yield beside.read_bytes()


def _files(folder: Path, *, depth: int) -> Iterator[tuple[str, Path]]:
    """Name and file of each model. Hidden names are left out: a mounted ConfigMap keeps its versions under them."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        own = path.name if path.is_dir() else path.stem
        if path.is_dir():
            file = next((path / name for name in (CONFIG, ADAPTER) if (path / name).is_file()), None)
            if file is not None:
                yield _named(own, path), file
            elif depth > 1:
                yield from ((f"{_named(own, path)}/{name}", inner) for name, inner in _files(path, depth=depth - 1))
        elif path.suffix == ".json":
            yield _named(own, path), path


def _named(own: str, path: Path) -> str:
    name = own.replace(_SLASH, "/")
    # The path would repeat it.
    if holds_secret(name):
        raise ArtefactError(f"{path.parent}: the name of a model there looks like a secret; rename it")
    if not _NAME.fullmatch(name):
        raise ArtefactError(f"{path}: {own!r} cannot name a model; use letters, digits and . _ - with {_SLASH} for /")
    return name


def _read(file: Path, name: str, known: ModelCatalogue) -> ModelArch:
    try:
        if file.name == CONFIG:
            model = parse_config(read_config_file(file.parent), name=name)
            beside = file.with_name(ADAPTER)
            if not beside.is_file():
                return model
            # From here on it is the adapter that may be refused.
            file = beside
            return with_adapter(model, read_adapter(read_object(file)))
        content = read_object(file)
        if file.name == ADAPTER:
            base = known.model(str(content.get(_BASE)), path=_BASE)
            return with_adapter(base, read_adapter(content))
        if _LIKE in content:
            return known.like(str(content[_LIKE]), name=name, path=_LIKE)
        if any(key in content for key in _OWN_NUMBERS):
            return ModelArch(**_four_numbers(content), name=name)
        return parse_config(content, name=name)
    except InvalidInputError as error:
        raise located(error, file) from error
    except MemoryPolicyError as error:
        raise ArtefactError(str(error)) from error


def _four_numbers(content: dict[str, Any]) -> dict[str, Any]:
    for key in NUMBER_KEYS:
        if key not in content:
            raise InvalidInputError(path=key, value=None, remedy=f"give all four: {', '.join(NUMBER_KEYS)}")
    for key in content:
        if key not in NUMBER_KEYS:
            raise InvalidInputError(path=key, value=content[key], remedy=f"known here: {', '.join(NUMBER_KEYS)}")
    return content
