"""Stored bundles and which of them is active: one pointer for all replicas, moved in one transaction."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from service.bundle import Bundle, stored_bundle
from service.db.database import Database
from service.db.record import insert_or_ignore
from service.db.tables import Base, PolicyActivationRow, PolicyBundleFileRow, PolicyBundleRow
from service.domain.errors import ArtefactError

_BUNDLES = Base.metadata.tables[PolicyBundleRow.__tablename__]
_FILES = Base.metadata.tables[PolicyBundleFileRow.__tablename__]
_ACTIVATIONS = Base.metadata.tables[PolicyActivationRow.__tablename__]
SHORTEST_DIGEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBundle:
    """One line of `bundle list`. created_ms: when it was stored, in Unix milliseconds."""

    sha256: str
    name: str
    version: str
    evidence: str
    gpu: str
    engine_version: str
    created_ms: int
    active: bool


def active_digest(database: Database) -> str | None:
    """The sha256 of the active bundle; None where each replica serves the bundle of its own settings."""
    with database.transaction() as connection:
        found = _newest(connection)
        return found[1] if found else None


def read_bundle(database: Database, sha256: str) -> Bundle:
    """The stored bundle, verified anew; ArtefactError if it is not there or was changed."""
    with database.transaction() as connection:
        rows = connection.execute(select(_FILES.c.name, _FILES.c.content).where(_FILES.c.sha256 == sha256)).all()
    return stored_bundle(sha256, {name: bytes(content) for name, content in rows})


def stored_bundles(database: Database) -> list[StoredBundle]:
    """Every stored bundle, oldest first."""
    with database.transaction() as connection:
        newest = _newest(connection)
        rows = connection.execute(select(_BUNDLES).order_by(_BUNDLES.c.created_ms, _BUNDLES.c.sha256)).mappings().all()
    active = newest[1] if newest else None
    return [StoredBundle(**row, active=row["sha256"] == active) for row in rows]


def full_digest(database: Database, beginning: str) -> str:
    """The stored digest that begins so; ArtefactError unless it is exactly one."""
    found = [bundle.sha256 for bundle in stored_bundles(database) if bundle.sha256.startswith(beginning)]
    if len(beginning) < SHORTEST_DIGEST or len(found) != 1:
        raise ArtefactError(
            f"{beginning!r}: {len(found)} stored bundles begin so; give a bundle folder, or at least {SHORTEST_DIGEST} "
            "characters of a digest of 'bundle list'"
        )
    return found[0]


def activate(database: Database, bundle: Bundle, *, now_ms: int, note: str | None = None) -> None:
    """Stores the bundle if it is new and makes it the active one, both or neither. The caller has verified it."""
    manifest = bundle.manifest
    row = {
        "sha256": bundle.sha256,
        "name": manifest.name,
        "version": manifest.version,
        "evidence": manifest.evidence,
        "gpu": manifest.gpu,
        "engine_version": manifest.engine_version,
        "created_ms": now_ms,
    }
    files = [{"sha256": bundle.sha256, "name": name, "content": content} for name, content in bundle.files.items()]
    with database.transaction() as connection:
        connection.execute(insert_or_ignore(connection, _BUNDLES), row)
        connection.execute(insert_or_ignore(connection, _FILES), files)
        newest = _newest(connection)
        if newest is None or newest[1] != bundle.sha256:
            replaced = newest[0] if newest else None
            _activate(connection, bundle.sha256, replaced=replaced, now_ms=now_ms, note=note)


def roll_back(
    database: Database, *, now_ms: int, verify: Callable[[Bundle], object], note: str | None = None
) -> str | None:
    """Makes active what was active before the present one, and so on back; its digest, None for the settings' bundle.

    `verify` refuses a bundle that cannot be served. ArtefactError if nothing was ever activated.
    """
    with database.transaction() as connection:
        newest = _newest(connection)
        if newest is None or newest[1] is None:
            raise ArtefactError("nothing is activated: each replica serves the bundle of its settings; nothing to do")
        earlier = connection.execute(
            select(_ACTIVATIONS.c.sha256, _ACTIVATIONS.c.replaced).where(_ACTIVATIONS.c.id == newest[2])
        ).one_or_none()
    target, replaced = (earlier.sha256, earlier.replaced) if earlier else (None, None)
    if target is not None:
        verify(read_bundle(database, target))
    with database.transaction() as connection:
        _activate(connection, target, replaced=replaced, now_ms=now_ms, note=note)
    return target


def _activate(
    connection: Connection, sha256: str | None, *, replaced: int | None, now_ms: int, note: str | None
) -> None:
    values = {"sha256": sha256, "replaced": replaced, "created_ms": now_ms, "note": note}
    connection.execute(insert(_ACTIVATIONS).values(values))


def _newest(connection: Connection) -> tuple[int, str | None, int | None] | None:
    """(id, sha256, replaced) of the activation in force."""
    newest = select(func.max(_ACTIVATIONS.c.id)).scalar_subquery()
    columns = (_ACTIVATIONS.c.id, _ACTIVATIONS.c.sha256, _ACTIVATIONS.c.replaced)
    row = connection.execute(select(*columns).where(_ACTIVATIONS.c.id == newest)).one_or_none()
    return (row.id, row.sha256, row.replaced) if row else None
