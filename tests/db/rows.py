"""Records as the service writes them, with values that are easy to recognise."""

import itertools
import uuid
from typing import Any

from sqlalchemy import func, select

from service.db.database import Database
from service.db.outcomes import Outcome
from service.db.record import Record
from service.db.tables import Base

_numbers = itertools.count(1)


def recommendation(**changes: Any) -> Record:
    """A record of an answer for Qwen3-8B."""
    values: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "created_ms": 1_700_000_000_000 + next(_numbers),
        "caller": None,
        "project": None,
        "endpoint": None,
        "mode": "apply",
        "model": "Qwen/Qwen3-8B",
        "gpu": "NVIDIA-B200",
        "decision": "recommended",
        "request": '{"workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, '
        '"concurrency": 64}}',
        "features": '{"weight_gb": 16.4}',
        "answer": '{"set": {"max_num_seqs": 128}, "expected": null}',
        "policy_version": "1.2.3",
        "policy_sha256": "a" * 64,
    }
    return Record("recommendations", {**values, **changes})


def hook_decision(**changes: Any) -> Record:
    """A record of a decision of the hook."""
    values: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "created_ms": 1_700_000_000_000,
        "caller": "metis",
        "project": "search",
        "endpoint": "qwen",
        "mode": "shadow",
        "decision": "skip",
        "reason": "all_pinned",
        "recommendation_id": None,
        "request": "{}",
        "answer": "{}",
    }
    return Record("hook_decisions", {**values, **changes})


def outcome(number: int, **changes: Any) -> Outcome:
    """A report about nothing in particular."""
    values: dict[str, Any] = {
        "id": f"outcome-{number}",
        "recommendation_id": None,
        "project": None,
        "endpoint": None,
        "arm": "recommended",
        "mode": "apply",
        "source": "report",
        "evidence": "measured",
        "model": None,
        "gpu": None,
        "workload": None,
        "engine_args": {},
        "measured": {},
        "pair": None,
        "invalid_cause": None,
    }
    return Outcome(**{**values, **changes})


def count(database: Database, table: str = "recommendations") -> int:
    """Rows of a table."""
    with database.transaction() as connection:
        return connection.execute(select(func.count()).select_from(Base.metadata.tables[table])).scalar_one()


def ids(database: Database, table: str = "recommendations") -> set[str]:
    """Ids of a table's rows."""
    with database.transaction() as connection:
        return set(connection.execute(select(Base.metadata.tables[table].c.id)).scalars())
