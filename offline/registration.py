"""What is fixed before the test split is opened, and the one opening that each registration allows.

`<name>.json` is written after selection on dev and committed: digests of the cells, the split, the settings and the
analysis code, the gates, the selected policy. Opening writes `<name>.opened.json` beside it, once: the test split's
whole evaluation, the gates' verdicts and which weights were evaluated. Afterwards nothing reads the test split again:
card and plots are regenerated from that record, for as long as everything registered is unchanged.

Three choices, with their reasons. The analysis code is what `offline.evaluate` can reach by import: it decides the
numbers, while the wording of a card does not. Left out are domain modules that decide no number beyond what is
registered by value: models, workloads and GPUs enter as features and cells, and guards and errors can only refuse; so
the catalogue of models may grow without a new registration. Weights are not registered: cells, settings and code decide
them, up to last bits on another kind of CPU; the record names those that were evaluated, and no others are shipped
under its registration. The record is written, whole or not at all, before any of its numbers is shown, so an opening
that crashes has told nobody anything and may be repeated.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offline.artefacts import canonical_json, create_once, read_json, sha256_bytes, sha256_file, sha256_json
from service.domain.errors import ArtefactError

REGISTRATION_SCHEMA_VERSION = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ENTRY = "offline.evaluate"
_PACKAGES = ("offline", "service.domain")
_REGISTERED_BY_VALUE = ("catalogue", "gpu", "model_config", "scenario")
_CAN_ONLY_REFUSE = ("errors", "leakage", "manifest")
_LEFT_OUT = {f"service.domain.{name}" for name in (*_REGISTERED_BY_VALUE, *_CAN_ONLY_REFUSE)}
_RESTORE = "restore the committed file"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that determines the test's numbers, as it is now on disk."""

    cells_sha256: dict[str, str]
    split_sha256: str
    features_sha256: str
    settings: dict[str, Any]
    analysis_sha256: str
    gates: list[dict[str, Any]]
    selected_policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A registration as committed; sha256 is of its file."""

    name: str
    sha256: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Leave to read the test split of these cells. Only `verify` issues it."""

    registration: str
    registration_sha256: str
    cells_sha256: dict[str, str]


def analysis_sources(root: Path) -> list[Path]:
    """Sources, sorted, that offline.evaluate reaches by import inside offline and service.domain, less _LEFT_OUT."""
    found: set[Path] = set()
    waiting = [_ENTRY]
    while waiting:
        module = waiting.pop()
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        if module not in _LEFT_OUT and path.is_file() and path not in found:
            found.add(path)
            waiting.extend(_imported(ast.parse(path.read_bytes())))
    return sorted(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith(tuple(f"{package}." for package in _PACKAGES)))


def analysis_sha256(root: Path) -> str:
    """One digest over the analysis code's relative paths and bytes."""
    return sha256_json({str(path.relative_to(root)): sha256_file(path) for path in analysis_sources(root)})


def registration_path(folder: Path, name: str) -> Path:
    """Where a registration lies; ArtefactError for a name that is no plain file name."""
    if not _NAME.fullmatch(name):
        raise ArtefactError(f"registration name {name!r}; use up to 64 lower-case letters, digits and hyphens")
    return folder / f"{name}.json"


def opening_path(folder: Path, name: str) -> Path:
    """Where the record of its opening lies."""
    return registration_path(folder, name).with_suffix(".opened.json")


def write_registration(folder: Path, name: str, state: State) -> Registration:
    """Registers the present state; a registration is never changed, so a taken name is refused."""
    path = registration_path(folder, name)
    content = {"schema_version": REGISTRATION_SCHEMA_VERSION, "name": name, **asdict(state)}
    try:
        create_once(path, canonical_json(content))
    except FileExistsError as error:
        raise ArtefactError(
            f"{path} exists and registrations do not change; choose another --registration name"
        ) from error
    return Registration(name=name, sha256=sha256_file(path), content=content)


def read_registration(folder: Path, name: str) -> Registration | None:
    """The registration of that name, None if there is none; ArtefactError if there was one and it is gone."""
    path = registration_path(folder, name)
    if not path.exists():
        if opening_path(folder, name).exists():
            raise ArtefactError(f"{path} is gone, yet {opening_path(folder, name)} opened it; {_RESTORE}")
        return None
    content = read_json(path, remedy=_RESTORE)
    if content.get("schema_version") != REGISTRATION_SCHEMA_VERSION or content.get("name") != name:
        raise ArtefactError(
            f"{path}: schema_version {content.get('schema_version')!r} and name {content.get('name')!r}, "
            f"expected {REGISTRATION_SCHEMA_VERSION} and {name!r}; {_RESTORE}"
        )
    return Registration(name=name, sha256=sha256_bytes(path.read_bytes()), content=content)


def verify(registration: Registration, state: State) -> Permit:
    """A permit if everything registered is what is on disk; else ArtefactError with both digests and the remedy."""
    for what, now in _digests(asdict(state)).items():
        registered = _digests(registration.content).get(what)
        if now != registered:
            raise ArtefactError(
                f"registration {registration.name!r} does not cover this run: {what} is {now}, registered is "
                f"{registered}; restore what was registered, or register this state under a new name: "
                "`python -m offline register --registration NAME`"
            )
    return Permit(
        registration=registration.name,
        registration_sha256=registration.sha256,
        cells_sha256=dict(registration.content["cells_sha256"]),
    )


def _digests(content: dict[str, Any]) -> dict[str, str]:
    cells = content.get("cells_sha256", {})
    digests = {f"the sha256 of the {name} cells": digest for name, digest in sorted(cells.items())}
    return digests | {
        "the sha256 of the split": str(content.get("split_sha256")),
        "the sha256 of the features": str(content.get("features_sha256")),
        "the sha256 of the settings": sha256_json(content.get("settings")),
        "the sha256 of the gates": sha256_json(content.get("gates")),
        "the policy that dev selects": str(content.get("selected_policy")),
        "the sha256 of the analysis code": str(content.get("analysis_sha256")),
    }


def refuse_second_opening(folder: Path, name: str) -> None:
    """ArtefactError if the test split was opened under this registration before."""
    if opening_path(folder, name).exists():
        raise ArtefactError(
            f"{opening_path(folder, name)}: the test split was opened under registration {name!r} before, and one "
            "registration opens it once; run without --test to reuse that result, or register under a new name"
        )


def record_opening(folder: Path, permit: Permit, *, models: dict[str, str], test_set: dict[str, Any]) -> dict[str, Any]:
    """Stores the opening, once; returns the record. models: sha256 of what was evaluated, by policy."""
    refuse_second_opening(folder, permit.registration)
    results = {"models": models, "test_set": test_set}
    record = {
        "schema_version": REGISTRATION_SCHEMA_VERSION,
        "registration": permit.registration,
        "registration_sha256": permit.registration_sha256,
        "results_sha256": sha256_json(results),
        **results,
    }
    create_once(opening_path(folder, permit.registration), canonical_json(record))
    return record


def read_opening(folder: Path, registration: Registration) -> dict[str, Any] | None:
    """The record of the opening, None before it; ArtefactError if either file was changed since."""
    path = opening_path(folder, registration.name)
    if not path.exists():
        return None
    record = read_json(path, remedy=_RESTORE)
    if record.get("registration_sha256") != registration.sha256:
        raise ArtefactError(
            f"{path} opened a registration of sha256 {record.get('registration_sha256')}, the file of that name has "
            f"{registration.sha256}; {_RESTORE}"
        )
    found = sha256_json({"models": record.get("models"), "test_set": record.get("test_set")})
    if record.get("results_sha256") != found:
        raise ArtefactError(
            f"{path}: results of sha256 {found}, recorded was {record.get('results_sha256')}; {_RESTORE}"
        )
    return record


def openings(folder: Path) -> tuple[str, ...]:
    """Names of all registrations under which the test split was ever opened, sorted."""
    return tuple(sorted(path.name.removesuffix(".opened.json") for path in folder.glob("*.opened.json")))
