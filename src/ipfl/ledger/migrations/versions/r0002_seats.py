"""The table `selections` is called `seats`, like the rows that it holds."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

SAME_ROW = (
    "(run_id = NEW.run_id AND round = NEW.round AND sequence = NEW.sequence) OR "
    "(run_id = NEW.run_id AND round = NEW.round AND client = NEW.client AND cluster = NEW.cluster)"
)
"""Which row of `seats` a new one would replace."""


def upgrade() -> None:
    """Renames the table and its triggers."""
    if op.get_bind().dialect.name == "sqlite":
        _upgrade_sqlite()
        return
    op.rename_table("selections", "seats")
    for event in ("update", "delete", "truncate"):  # their message names the table that they are on
        op.execute(f"ALTER TRIGGER selections_no_{event} ON seats RENAME TO seats_no_{event}")


def _upgrade_sqlite() -> None:
    """SQLite cannot rename triggers, and their messages hold the table's name: they are made again."""
    for event in ("update", "delete", "replace"):
        op.execute(f"DROP TRIGGER IF EXISTS selections_no_{event}")
    op.rename_table("selections", "seats")
    refuse = "SELECT RAISE(ABORT, 'seats are never changed')"
    for event in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER seats_no_{event.lower()} BEFORE {event} ON seats BEGIN {refuse}; END")
    # INSERT OR REPLACE deletes without firing a trigger on DELETE.
    op.execute(
        f"CREATE TRIGGER seats_no_replace BEFORE INSERT ON seats "
        f"WHEN EXISTS (SELECT 1 FROM seats WHERE {SAME_ROW}) BEGIN {refuse}; END"
    )
