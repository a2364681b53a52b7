"""Reports of what really ran. They are labels: nothing that ranks can import this package."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, and_, select

from service.db.database import Database
from service.db.record import insert_or_ignore
from service.db.tables import Base, OutcomeRow, RecommendationRow
from service.domain.errors import MemoryPolicyError

_OUTCOMES = Base.metadata.tables[OutcomeRow.__tablename__]
_RECOMMENDATIONS = Base.metadata.tables[RecommendationRow.__tablename__]
# What makes a second report with the same id another report.
_CONTENT = ("arm", "engine_args", "measured", "mode")


class OutcomeConflictError(MemoryPolicyError):
    """The id belongs to a report that says something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One report. JSON members are objects here; id is derived from what makes it the same report."""

    id: str
    recommendation_id: str | None
    project: str | None
    endpoint: str | None
    arm: str
    mode: str
    source: str
    evidence: str
    model: str | None
    gpu: str | None
    workload: Mapping[str, Any] | None
    engine_args: Mapping[str, Any]
    measured: Mapping[str, Any]
    pair: str | None
    invalid_cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a report needs to know of the recommendation that it is about. flags: None where nothing would start."""

    id: str
    project: str | None
    model: str | None
    gpu: str
    mode: str
    workload: Mapping[str, Any]
    flags: Mapping[str, Any] | None
    expected: Mapping[str, Any] | None


def add_outcomes(database: Database, outcomes: Sequence[Outcome], *, now_ms: int) -> tuple[int, bool]:
    """Stores what is new: (how many were, whether the recommendation is on record). All or nothing.

    OutcomeConflictError; DatabaseAwayError, after which the same call may be repeated.
    """
    added, matched = 0, False
    with database.transaction() as connection:
        for outcome in outcomes:
            found = _recommendation_of(connection, outcome)
            matched = matched or found is not None
            row = {**_row(outcome), "recommendation_id": found or outcome.recommendation_id, "received_ms": now_ms}
            stored = connection.execute(insert_or_ignore(connection, _OUTCOMES).returning(_OUTCOMES.c.id), row)
            # The ids that come back are those that were new; the count of rows is not the same in every driver.
            if stored.scalar() is not None:
                added += 1
            else:
                _refuse_another(connection, row)
    return added, matched


def outcomes_since(database: Database, since_ms: int, *, project: str | None) -> list[tuple[Outcome, Asked | None]]:
    """Every report since then beside the recommendation that it is about, oldest first."""
    query = select(_OUTCOMES).where(_OUTCOMES.c.received_ms >= since_ms)
    with database.transaction() as connection:
        rows = connection.execute(query.order_by(_OUTCOMES.c.received_ms, _OUTCOMES.c.id)).mappings().all()
        outcomes = [_outcome(dict(row)) for row in rows]
        about = [_recommendation_of(connection, outcome) for outcome in outcomes]
        asked = {found: _asked(connection, found) for found in set(about) if found is not None}
    pairs = [(outcome, None if found is None else asked[found]) for outcome, found in zip(outcomes, about, strict=True)]
    if project is None:
        return pairs
    return [(o, asked) for o, asked in pairs if project in (o.project, asked.project if asked else None)]


def _recommendation_of(connection: Connection, outcome: Outcome) -> str | None:
    """The id of the recommendation on record: the one that is named, else the newest for the project and endpoint."""
    table = _RECOMMENDATIONS.c
    if outcome.recommendation_id is not None:
        found = connection.execute(select(table.id).where(table.id == outcome.recommendation_id))
    elif outcome.project is not None and outcome.endpoint is not None:
        named = and_(table.project == outcome.project, table.endpoint == outcome.endpoint)
        found = connection.execute(select(table.id).where(named).order_by(table.created_ms.desc()).limit(1))
    else:
        return None
    recommendation_id: str | None = found.scalar()
    return recommendation_id


def _refuse_another(connection: Connection, row: Mapping[str, Any]) -> None:
    stored = connection.execute(select(_OUTCOMES).where(_OUTCOMES.c.id == row["id"])).mappings().one()
    different = [name for name in _CONTENT if stored[name] != row[name]]
    if different:
        raise OutcomeConflictError(
            f"a report with this report_id is on record with other {', '.join(different)}; give a new one another id"
        )


def _asked(connection: Connection, recommendation_id: str) -> Asked:
    named = _RECOMMENDATIONS.c.id == recommendation_id
    row = connection.execute(select(_RECOMMENDATIONS).where(named)).mappings().one()
    answer = json.loads(row["answer"])
    return Asked(
        id=recommendation_id,
        project=row["project"],
        model=row["model"],
        gpu=row["gpu"],
        mode=row["mode"],
        workload=json.loads(row["request"])["workload"],
        flags=answer["set"],
        expected=_expected(answer["expected"]),
    )


def _expected(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The medians for what was to be run: what is recommended, else the engine's default."""
    side = None if part is None else part["recommended"] or part["engine_default"]
    if side is None:
        return None
    return {name: found["value"] for name, found in side.items() if isinstance(found, dict) and "value" in found}


def _row(outcome: Outcome) -> dict[str, Any]:
    row = asdict(outcome)
    for name in ("workload", "engine_args", "measured"):
        row[name] = None if row[name] is None else json.dumps(row[name], sort_keys=True)
    return row


def _outcome(row: dict[str, Any]) -> Outcome:
    del row["received_ms"]
    for name in ("workload", "engine_args", "measured"):
        row[name] = None if row[name] is None else json.loads(row[name])
    return Outcome(**row)
