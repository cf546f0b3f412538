"""Rounds say which files they wrote; signed heads; closings with the results; a secret of each run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

POSTED = {
    "signatures": "run_id = NEW.run_id AND round = NEW.round",
    "closings": "run_id = NEW.run_id AND number = NEW.number",
}
"""The new tables, whose rows never change, and which row a new one would replace."""
STRICT = {"sqlite_strict": True, "sqlite_with_rowid": False}


def upgrade() -> None:
    """Adds columns and tables; runs that are there stay as they are, without files, secret and signatures."""
    op.add_column("runs", sa.Column("secret", sa.Text))
    op.add_column("rounds", sa.Column("files", sa.Text))
    op.create_table(
        "signatures",
        sa.Column("run_id", sa.Integer, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("accounts", sa.Text),
        sa.Column("public_key", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
        **STRICT,
    )
    op.create_table(
        "closings",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("head", sa.Text, nullable=False),
        sa.Column("files", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("public_key", sa.Text),
        sa.Column("signature", sa.Text),
        **STRICT,
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, same in POSTED.items():
        for statement in _sqlite(table, same) if is_sqlite else _postgresql(table):
            op.execute(statement)


def _sqlite(table: str, same: str) -> list[str]:
    refuse = f"SELECT RAISE(ABORT, '{table} are never changed')"
    changes = [
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} BEGIN {refuse}; END"
        for event in ("UPDATE", "DELETE")
    ]
    # INSERT OR REPLACE deletes without firing a trigger on DELETE.
    replacement = (
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN {refuse}; END"
    )
    return [*changes, replacement]


def _postgresql(table: str) -> list[str]:
    return [
        f"""CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION ipfl_refuse_change()"""
        for event in ("UPDATE", "DELETE", "TRUNCATE")
    ]
