"""The robust ranker's registrations: written before a test list is simulated, one opening for each test set.

Files and rules are those of offline.registration, in a folder of their own: `<name>.json` fixes everything that decides
a figure, `<name>-<set>.opened.json` holds the table of a set and is written once. What is fixed: the training sets by
the digest of their rows, the definition of all sets with their seeds, the models by digest, the rules and what they
support, the protocol, the settings, the goals and the analysis code.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offline.artefacts import canonical_json, create_once, read_json, sha256_file, sha256_json
from offline.registration import Registration, State, read_registration, registration_path, verify, write_registration
from offline.robust.calibration import Calibrated
from offline.robust.estimator import EstimatorSettings
from offline.robust.lists import digests
from offline.robust.network import FitSettings
from offline.robust.protocol import ROBUST, goal_definitions, protocol
from offline.robust.variants import VARIANTS
from service.domain.errors import ArtefactError
from service.domain.features import feature_schema_hash

REGISTRATIONS = Path("offline/registrations/robust")
_ENTRY = "offline.robust.evaluation"
_ALSO = (
    "offline.robust.protocol",
    "offline.robust.models",
    "offline.robust.calibration",
    "offline.robust.estimator_graph",
)
_PACKAGES = ("offline.", "service.domain.")
# As in offline.registration: registered by value, or able to do nothing but refuse.
_LEFT_OUT = {
    f"service.domain.{name}"
    for name in ("catalogue", "gpu", "model_config", "scenario", "errors", "leakage", "manifest")
}


def analysis_sha256(root: Path) -> str:
    """One digest over every source that decides a figure, found through imports from the evaluation."""
    found: set[Path] = set()
    waiting = [_ENTRY, *_ALSO]
    while waiting:
        module = waiting.pop()
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        if module not in _LEFT_OUT and path.is_file() and path not in found:
            found.add(path)
            waiting.extend(_imported(ast.parse(path.read_bytes())))
    return sha256_json({str(path.relative_to(root)): sha256_file(path) for path in sorted(found)})


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PACKAGES):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def registered_sets() -> tuple[str, ...]:
    """Everything that was trained, chosen or calibrated on."""
    names: dict[str, None] = {}
    for variant in VARIANTS.values():
        names |= dict.fromkeys((*variant.train, variant.dev))
    return tuple(names)


def present_state(
    folder: Path,
    *,
    variants: dict[str, Calibrated],
    rivals: dict[str, str | int],
    settings: tuple[FitSettings, EstimatorSettings],
    definition: str,
    root: Path,
) -> State:
    """What a registration made now would fix. definition: sha256 of that of all sets; rivals: their digests."""
    ranking, estimating = settings
    return State(
        cells_sha256=digests(folder, registered_sets()),
        split_sha256=definition,
        features_sha256=feature_schema_hash(),
        settings={
            "fit": asdict(ranking),
            "estimator": asdict(estimating),
            "variants": {name: one.fixed() for name, one in variants.items()},
            "rivals": rivals,
            "protocol": protocol(),
        },
        analysis_sha256=analysis_sha256(root),
        gates=goal_definitions(),
        selected_policy=ROBUST,
    )


def register(name: str, state: State) -> Registration:
    """Writes the registration; a taken name is refused."""
    return write_registration(REGISTRATIONS, name, state)


def opened_path(name: str, test_set: str) -> Path:
    """The record of the one opening of a set."""
    return registration_path(REGISTRATIONS, f"{name}-{test_set.lower()}").with_suffix(".opened.json")


def refuse_second_opening(name: str, test_set: str) -> None:
    """ArtefactError if the set was opened under this registration before."""
    path = opened_path(name, test_set)
    if path.exists():
        raise ArtefactError(
            f"{path}: {test_set} was opened under registration {name!r} before, and one registration opens a set "
            "once; its table is kept there. A change needs a registration of another name with fresh test seeds"
        )


def registered(name: str) -> Registration:
    """The registration of that name; ArtefactError if there is none."""
    registration = read_registration(REGISTRATIONS, name)
    if registration is None:
        raise ArtefactError(
            f"{registration_path(REGISTRATIONS, name)} does not exist; register first: "
            "`python -m offline.robust register`"
        )
    return registration


def record_opening(
    registration: Registration, state: State, test_set: str, *, lists_sha256: str, tables: dict[str, Any]
) -> None:
    """Stores the tables of a set, once, after everything registered was verified."""
    refuse_second_opening(registration.name, test_set)
    verify(registration, state)
    record = {
        "registration": registration.name,
        "registration_sha256": registration.sha256,
        "test_set": test_set,
        "lists_sha256": lists_sha256,
        "results_sha256": sha256_json(tables),
        "tables": tables,
    }
    create_once(opened_path(registration.name, test_set), canonical_json(record))


def read_openings(registration: Registration, test_sets: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The records of the sets that were opened; ArtefactError if one is of another registration or was changed."""
    records = {}
    for test_set in test_sets:
        path = opened_path(registration.name, test_set)
        if not path.exists():
            continue
        record = read_json(path, remedy="restore the committed file")
        if record.get("registration_sha256") != registration.sha256:
            raise ArtefactError(f"{path} opened another registration; restore the committed file")
        if record.get("results_sha256") != sha256_json(record.get("tables")):
            raise ArtefactError(f"{path}: its tables were changed; restore the committed file")
        records[test_set] = record
    return records
