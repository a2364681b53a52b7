"""Forgetting: what is older than it may be kept, and what belongs to a project."""

from sqlalchemy import ColumnElement, Table, delete, func, or_, select

from service.db.database import Database
from service.db.tables import Base, HookDecisionRow, OutcomeRow, RecommendationRow

_RECOMMENDATIONS = Base.metadata.tables[RecommendationRow.__tablename__]
_HOOKS = Base.metadata.tables[HookDecisionRow.__tablename__]
_OUTCOMES = Base.metadata.tables[OutcomeRow.__tablename__]
# One transaction's worth: a writer that waits behind it waits milliseconds.
CHUNK = 2_000

Deleted = dict[str, int]


def prune(database: Database, *, before_ms: int) -> Deleted:
    """Deletes every record and report from before that moment; rows deleted by table. DatabaseAwayError."""
    old = {
        _RECOMMENDATIONS: _RECOMMENDATIONS.c.created_ms < before_ms,
        _HOOKS: _HOOKS.c.created_ms < before_ms,
        _OUTCOMES: _OUTCOMES.c.received_ms < before_ms,
    }
    return {table.name: _delete(database, table, condition) for table, condition in old.items()}


def delete_project(database: Database, project: str) -> Deleted:
    """Deletes all that names the project, and every report about a recommendation of it."""
    own = select(_RECOMMENDATIONS.c.id).where(_RECOMMENDATIONS.c.project == project)
    # Reports first: afterwards nothing would say whose they are.
    theirs = or_(_OUTCOMES.c.project == project, _OUTCOMES.c.recommendation_id.in_(own))
    deleted = {_OUTCOMES.name: _delete(database, _OUTCOMES, theirs)}
    for table in (_RECOMMENDATIONS, _HOOKS):
        deleted[table.name] = _delete(database, table, table.c.project == project)
    return deleted


def row_counts(database: Database) -> dict[str, int]:
    """Rows by table."""
    with database.transaction() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (_RECOMMENDATIONS, _HOOKS, _OUTCOMES)
        }


def _delete(database: Database, table: Table, condition: ColumnElement[bool]) -> int:
    deleted = 0
    chunk = select(table.c.id).where(condition).limit(CHUNK).scalar_subquery()
    while True:
        with database.transaction() as connection:
            gone = connection.execute(delete(table).where(table.c.id.in_(chunk))).rowcount
        deleted += gone
        if gone < CHUNK:
            return deleted
