"""Bids say what the client thinks of the model and whether it was served, seats whether they are excused."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, false

from ipfl.ledger.lines import BOOLEAN, DOUBLE

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds the columns; rows that are there hold what they had before: nothing known, nobody served."""
    no = "0" if op.get_bind().dialect.name == "sqlite" else false()
    op.add_column("bids", Column("score", DOUBLE, nullable=True))
    op.add_column("bids", Column("served", BOOLEAN, nullable=False, server_default=no))
    op.add_column("seats", Column("excused", BOOLEAN, nullable=False, server_default=no))
