"""The transfers of one client are found without a look at those of all others."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
CHANGES_COLUMNS = False


def upgrade() -> None:
    """Adds the index; no row changes."""
    op.create_index("transfers_by_client", "transfers", ["run_id", "client", "round"])
