"""Run by alembic: applies the migrations in the transaction that `upgrade` opened."""

from __future__ import annotations

from alembic import context

from ipfl.ledger.migrations import VERSION_TABLE
from ipfl.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
