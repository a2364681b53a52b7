"""Decisions of the hook that are on record: what a repeated request is answered with."""

from sqlalchemy import select

from service.db.database import Database
from service.db.tables import Base, HookDecisionRow

_DECISIONS = Base.metadata.tables[HookDecisionRow.__tablename__]


def recorded_decision(database: Database, decision_id: str) -> tuple[str, str] | None:
    """The JSON texts of what was asked and answered under an id; None if it is not there. DatabaseAwayError."""
    with database.transaction() as connection:
        found = connection.execute(
            select(_DECISIONS.c.request, _DECISIONS.c.answer).where(_DECISIONS.c.id == decision_id)
        ).first()
    return (found[0], found[1]) if found else None
