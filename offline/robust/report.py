"""What a card and its pictures are made of: a bundle's manifest and evaluation, the outcome of every scenario of the
sets that were opened, and which goals an earlier registration missed.
"""

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offline.artefacts import read_json, sha256_bytes
from offline.export import EVALUATION_FILE, read_bundle
from offline.robust.opening import scenarios_path
from offline.robust.protocol import TEST_SETS, Goal, judge
from offline.robust.register import read_openings, registered
from offline.robust.variants import TYPICAL
from service.domain.errors import ArtefactError
from service.domain.manifest import Manifest

EVALUATION_SCHEMA_VERSION = 2
# Its goals about tails were missed, and its successors are to be read beside it.
EARLIER = "robust-1"
_RESTORE = "restore the committed file"
_EXPORT_AGAIN = "run `python -m offline.robust export`"
Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """scenarios: by test set that was opened, column by column, what offline.robust.curves.scenario_rows says of it.

    missed_before: the goals that the registration EARLIER missed with the values it reached; of the bundle that has
    taken the place of that one.
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
        missed_before=_missed_before() if evaluation["variant"] == TYPICAL else (),
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


def _missed_before() -> tuple[dict[str, Any], ...]:
    """Goals of the registration EARLIER that its openings missed."""
    registration = registered(EARLIER)
    records = read_openings(registration, TEST_SETS)
    tables = {name: table for record in records.values() for name, table in record["tables"].items()}
    missed = []
    for content in registration.content["gates"]:
        goal = Goal(**content)
        if goal.test_set in tables:
            value, met = judge(goal, tables)
            if not met:
                missed.append({**asdict(goal), "value": value})
    return tuple(missed)
