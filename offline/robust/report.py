"""What a card and its pictures are made of: a bundle's manifest and evaluation, the outcome of every scenario of the
sets that were opened, and which goals an earlier registration missed.
"""

import gzip
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offline.artefacts import read_json, sha256_bytes
from offline.export import EVALUATION_FILE, read_bundle
from offline.robust.opening import scenarios_path
from offline.robust.protocol import ENGINE_DEFAULT, FIXED, TEST_SETS, Goal, judge
from offline.robust.register import read_openings, registered
from service.domain.errors import ArtefactError
from service.domain.manifest import CHANCES, Manifest

EVALUATION_SCHEMA_VERSION = 2
# What it missed, its successor is to be read beside.
EARLIER = "robust-2"
# Of a figure whose name there is another now.
_NAMED_NOW: dict[str, Any] = {"ece": "ece not_worse_than_engine_default"}
# What people read for each of CHANCES.
CHANCE_NAMES = dict(
    zip(CHANCES, ("SLO met", f"not worse than {ENGINE_DEFAULT}", f"not worse than {FIXED}"), strict=True)
)
_RESTORE = "restore the committed file"
_EXPORT_AGAIN = "run `python -m offline.robust export`"
Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """scenarios: by test set that was opened, column by column, what offline.robust.curves.scenario_rows says of it.

    missed_before: the goals about the bundle's test sets that the registration EARLIER missed, each with its `value`
    there and as `same_now` that of the same figure on the sets that were opened since; without it where none was.
    """

    manifest: Manifest
    evaluation: dict[str, Any]
    scenarios: dict[str, Columns]
    missed_before: tuple[dict[str, Any], ...]


def read_report(folder: Path) -> Report:
    """ArtefactError if a file is missing, was changed, or is of another schema_version."""
    manifest = read_bundle(folder)
    evaluation = read_json(folder / EVALUATION_FILE, remedy=_EXPORT_AGAIN)
    version = evaluation.get("schema_version")
    if version != EVALUATION_SCHEMA_VERSION:
        raise ArtefactError(
            f"{folder / EVALUATION_FILE}: schema_version {version!r}, this program reads {EVALUATION_SCHEMA_VERSION}; "
            f"{_EXPORT_AGAIN}"
        )
    return Report(
        manifest=manifest,
        evaluation=evaluation,
        scenarios=_read_scenarios(evaluation),
        missed_before=_missed_before(evaluation),
    )


def _read_scenarios(evaluation: dict[str, Any]) -> dict[str, Columns]:
    found = {}
    for name, table in evaluation["test_sets"].items():
        if "scenarios_sha256" not in table:
            continue
        path = scenarios_path(evaluation["registration"]["name"], name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ArtefactError(f"{path}: {error.strerror}; {_RESTORE}") from error
        if sha256_bytes(content) != table["scenarios_sha256"]:
            raise ArtefactError(
                f"{path} has sha256 {sha256_bytes(content)}, {EVALUATION_FILE} says {table['scenarios_sha256']}; "
                f"{_RESTORE}"
            )
        found[name] = json.loads(gzip.decompress(content))
    return found


def _missed_before(evaluation: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    registration = registered(EARLIER)
    own = [name for name, of in TEST_SETS.items() if of == evaluation["variant"]]
    records = read_openings(registration, own)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    missed = []
    for content in registration.content["gates"]:
        goal = Goal(**content)
        if goal.test_set not in tables:
            continue
        value, met = judge(goal, tables)
        if not met:
            missed.append({**asdict(goal), "value": value, **_same_now(goal, evaluation["test_sets"])})
    return tuple(missed)


def _same_now(goal: Goal, tables: dict[str, Any]) -> dict[str, Any]:
    if goal.test_set not in tables:
        return {}
    return {"same_now": judge(replace(goal, figure=_NAMED_NOW.get(goal.figure, goal.figure)), tables)[0]}
