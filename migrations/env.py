"""Run by alembic for each command; the connection comes from the caller, who holds the migration lock."""

from alembic import context

from service.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_type=True,
    compare_server_default=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
