"""Which endpoint a recommendation is for, shadow mode, and reports that were measured beside each other."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Only adds: the previous release runs on this schema too."""
    op.add_column("recommendations", sa.Column("endpoint", sa.String(128)))
    op.add_column("recommendations", sa.Column("mode", sa.String(20), nullable=False, server_default="apply"))
    named_only = sa.text("project IS NOT NULL")
    op.create_index(
        "ix_recommendations_project_endpoint",
        "recommendations",
        ["project", "endpoint", "created_ms"],
        sqlite_where=named_only,
        postgresql_where=named_only,
    )
    op.add_column("outcomes", sa.Column("pair", sa.String(80)))
    op.add_column("outcomes", sa.Column("invalid_cause", sa.String(100)))
    op.add_column("outcomes", sa.Column("mode", sa.String(20), nullable=False, server_default="apply"))
