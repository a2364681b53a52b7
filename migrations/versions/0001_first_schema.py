"""The first schema: recommendations, hook decisions, outcomes, policy bundles and which of them is active."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates every table."""
    op.create_table(
        "recommendations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("caller", sa.String(128)),
        sa.Column("project", sa.String(128)),
        sa.Column("model", sa.String(200)),
        sa.Column("gpu", sa.String(100), nullable=False),
        sa.Column("decision", sa.String(40), nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("features", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("policy_version", sa.String(200), nullable=False),
        sa.Column("policy_sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recommendations"),
    )
    op.create_index("ix_recommendations_created_ms", "recommendations", ["created_ms"])
    op.create_table(
        "hook_decisions",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("caller", sa.String(128)),
        sa.Column("project", sa.String(128)),
        sa.Column("endpoint", sa.String(128)),
        sa.Column("mode", sa.String(20), nullable=False),
        sa.Column("decision", sa.String(40), nullable=False),
        sa.Column("reason", sa.String(100)),
        sa.Column("recommendation_id", sa.String(36)),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hook_decisions"),
    )
    op.create_index("ix_hook_decisions_created_ms", "hook_decisions", ["created_ms"])
    op.create_index("ix_hook_decisions_project_endpoint", "hook_decisions", ["project", "endpoint"])
    op.create_table(
        "outcomes",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("received_ms", sa.BigInteger, nullable=False),
        sa.Column("recommendation_id", sa.String(36)),
        sa.Column("project", sa.String(128)),
        sa.Column("endpoint", sa.String(128)),
        sa.Column("arm", sa.String(20), nullable=False),
        sa.Column("source", sa.String(40), nullable=False),
        sa.Column("evidence", sa.String(20), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.Column("gpu", sa.String(100)),
        sa.Column("workload", sa.Text),
        sa.Column("engine_args", sa.Text, nullable=False),
        sa.Column("measured", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outcomes"),
    )
    op.create_index("ix_outcomes_recommendation_id", "outcomes", ["recommendation_id"])
    op.create_index("ix_outcomes_project_endpoint", "outcomes", ["project", "endpoint"])
    op.create_index("ix_outcomes_received_ms", "outcomes", ["received_ms"])
    op.create_table(
        "policy_bundles",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("version", sa.String(200), nullable=False),
        sa.Column("evidence", sa.String(20), nullable=False),
        sa.Column("gpu", sa.String(100), nullable=False),
        sa.Column("engine_version", sa.String(60), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_policy_bundles"),
    )
    op.create_table(
        "policy_bundle_files",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sha256", "name", name="pk_policy_bundle_files"),
        sa.ForeignKeyConstraint(
            ["sha256"], ["policy_bundles.sha256"], name="fk_policy_bundle_files_sha256_policy_bundles"
        ),
    )
    op.create_table(
        "policy_activations",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("replaced", sa.Integer),
        sa.Column("note", sa.String(200)),
        sa.PrimaryKeyConstraint("id", name="pk_policy_activations"),
        sa.ForeignKeyConstraint(
            ["sha256"], ["policy_bundles.sha256"], name="fk_policy_activations_sha256_policy_bundles"
        ),
        sa.ForeignKeyConstraint(
            ["replaced"], ["policy_activations.id"], name="fk_policy_activations_replaced_policy_activations"
        ),
    )
