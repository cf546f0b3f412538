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
    """Renames the table, and on SQLite its triggers with their messages."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        for trigger in ("no_update", "no_delete", "no_replace"):
            op.execute(f"DROP TRIGGER selections_{trigger}")
    op.rename_table("selections", "seats")
    if not is_sqlite:  # its triggers say the name of whatever table they are on
        return
    refuse = "SELECT RAISE(ABORT, 'seats are never changed')"
    for event in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER seats_no_{event.lower()} BEFORE {event} ON seats BEGIN {refuse}; END")
    # INSERT OR REPLACE deletes without firing a trigger on DELETE.
    op.execute(
        f"CREATE TRIGGER seats_no_replace BEFORE INSERT ON seats "
        f"WHEN EXISTS (SELECT 1 FROM seats WHERE {SAME_ROW}) BEGIN {refuse}; END"
    )
