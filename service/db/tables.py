"""The tables. A change here needs a migration that only adds: the previous release runs on the new schema meanwhile.

Times are Unix milliseconds. JSON is stored as text: it is written once, read by people and reports, never searched.
"""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
# Answers for nobody in particular cost no index entry.
_NAMED_ONLY: dict[str, Any] = {
    "sqlite_where": text("project IS NOT NULL"),
    "postgresql_where": text("project IS NOT NULL"),
}
# Ids of ours are UUIDs; names of callers, projects and endpoints are bounded where they enter.
ID, NAME, DIGEST = 36, 128, 64


class Base(DeclarativeBase):
    """Constraint names are fixed, so that migrations are the same on every database."""

    metadata = MetaData(naming_convention=_NAMES)


class RecommendationRow(Base):
    """One acknowledged answer: the request as it was understood, the features that were scored, the answer."""

    __tablename__ = "recommendations"
    __table_args__ = (
        Index("ix_recommendations_created_ms", "created_ms"),
        Index("ix_recommendations_project_endpoint", "project", "endpoint", "created_ms", **_NAMED_ONLY),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    caller: Mapped[str | None] = mapped_column(String(NAME))
    project: Mapped[str | None] = mapped_column(String(NAME))
    model: Mapped[str | None] = mapped_column(String(200))
    gpu: Mapped[str] = mapped_column(String(100))
    decision: Mapped[str] = mapped_column(String(40))
    request: Mapped[str] = mapped_column(Text)
    features: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text)
    policy_version: Mapped[str] = mapped_column(String(200))
    policy_sha256: Mapped[str] = mapped_column(String(DIGEST))
    endpoint: Mapped[str | None] = mapped_column(String(NAME))
    mode: Mapped[str] = mapped_column(String(20), server_default="apply")


class HookDecisionRow(Base):
    """What the endpoint-creation hook decided about one request; the request's secrets never come here."""

    __tablename__ = "hook_decisions"
    __table_args__ = (
        Index("ix_hook_decisions_created_ms", "created_ms"),
        Index("ix_hook_decisions_project_endpoint", "project", "endpoint"),
    )

    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    caller: Mapped[str | None] = mapped_column(String(NAME))
    project: Mapped[str | None] = mapped_column(String(NAME))
    endpoint: Mapped[str | None] = mapped_column(String(NAME))
    mode: Mapped[str] = mapped_column(String(20))
    decision: Mapped[str] = mapped_column(String(40))
    reason: Mapped[str | None] = mapped_column(String(100))
    # No foreign key: the recommendation may still be in a spool, or be older than what is kept.
    recommendation_id: Mapped[str | None] = mapped_column(String(ID))
    request: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text)


class OutcomeRow(Base):
    """One report of what really ran and what was measured. Labels: nothing of it is ever read while ranking."""

    __tablename__ = "outcomes"
    __table_args__ = (
        Index("ix_outcomes_recommendation_id", "recommendation_id"),
        Index("ix_outcomes_project_endpoint", "project", "endpoint"),
        Index("ix_outcomes_received_ms", "received_ms"),
    )

    # Derived from the content, so that a repeated report is the same row.
    id: Mapped[str] = mapped_column(String(ID), primary_key=True)
    received_ms: Mapped[int] = mapped_column(BigInteger)
    recommendation_id: Mapped[str | None] = mapped_column(String(ID))
    project: Mapped[str | None] = mapped_column(String(NAME))
    endpoint: Mapped[str | None] = mapped_column(String(NAME))
    arm: Mapped[str] = mapped_column(String(20))
    source: Mapped[str] = mapped_column(String(40))
    evidence: Mapped[str] = mapped_column(String(20))
    model: Mapped[str | None] = mapped_column(String(200))
    gpu: Mapped[str | None] = mapped_column(String(100))
    workload: Mapped[str | None] = mapped_column(Text)
    engine_args: Mapped[str] = mapped_column(Text)
    measured: Mapped[str] = mapped_column(Text)
    # Reports of two arms that were measured beside each other share it.
    pair: Mapped[str | None] = mapped_column(String(80))
    invalid_cause: Mapped[str | None] = mapped_column(String(100))
    mode: Mapped[str] = mapped_column(String(20), server_default="apply")


class PolicyBundleRow(Base):
    """A bundle that was verified before it was stored. sha256 is its manifest's."""

    __tablename__ = "policy_bundles"

    sha256: Mapped[str] = mapped_column(String(DIGEST), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    version: Mapped[str] = mapped_column(String(200))
    evidence: Mapped[str] = mapped_column(String(20))
    gpu: Mapped[str] = mapped_column(String(100))
    engine_version: Mapped[str] = mapped_column(String(60))
    created_ms: Mapped[int] = mapped_column(BigInteger)


class PolicyBundleFileRow(Base):
    """One file of a stored bundle, the manifest included."""

    __tablename__ = "policy_bundle_files"

    sha256: Mapped[str] = mapped_column(ForeignKey("policy_bundles.sha256"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class PolicyActivationRow(Base):
    """The newest row names the active bundle; sha256 null means the one in each replica's own settings.

    replaced: the activation that was in force before and that a rollback returns to; null for the first.
    """

    __tablename__ = "policy_activations"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(ForeignKey("policy_bundles.sha256"))
    replaced: Mapped[int | None] = mapped_column(ForeignKey("policy_activations.id"))
    note: Mapped[str | None] = mapped_column(String(200))
