"""The tables of a run store, as the code reads and writes them.

The migrations add checks, and triggers that refuse changes and overdrafts. The tables of `row_tables` take
their columns from the row types; `sequence` numbers the rows that a round reported under one key.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from ipfl.core.rounds import ROW_TYPES
from ipfl.ledger.lines import BIG_INTEGER, DOUBLE, TABLE_KEYS, columns_of

OPENING = -1
"""Round number of the opening transfers."""

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("header", Text, nullable=False),
    Column("secret", Text),
)
"""`secret`: 32 random bytes in hex, with which the chains of the run's accounts begin; null in older runs."""
clients = Table(
    "clients",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("client", Integer, primary_key=True),
)
rounds = Table(
    "rounds",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("checkpoint", Text),
    Column("line", Text, nullable=False),
    Column("files", Text),
)
"""`line` is what the round loop reported, as JSON; what the other tables hold is null there. `files` is the
SHA-256 of every file that the round wrote, by path in the run's folder, as JSON; null in older runs."""
signatures = Table(
    "signatures",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("accounts", Text),
    Column("public_key", Text, nullable=False),
    Column("signature", Text, nullable=False),
    ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
)
"""The signed heads (`ipfl.ledger.statements.LedgerHead`). Not in `rounds`: equal runs have equal rounds, but
not equal keys."""
closings = Table(
    "closings",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("head", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("public_key", Text),
    Column("signature", Text),
)
"""One each time that the run ended: what it wrote after its last round (`files`, as in `rounds`)."""


def _row_table(key: str) -> Table:
    """The table of the rows that rounds report under a key."""
    # A client has one row per cluster and round, except among the transfers.
    unique = [] if key == "transfers" else [UniqueConstraint("run_id", "round", "client", "cluster")]
    return Table(
        key,
        metadata,
        Column("run_id", Integer, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("sequence", Integer, primary_key=True),
        *columns_of(ROW_TYPES[key]),
        ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
        *unique,
    )


row_tables = {key: _row_table(key) for key in TABLE_KEYS}
"""Key of a round's line → table of its rows."""
bids, seats = row_tables["bids"], row_tables["seats"]
contributions, transfers = row_tables["contributions"], row_tables["transfers"]
client_index = Index("transfers_by_client", transfers.c.run_id, transfers.c.client, transfers.c.round)
"""A client's page is as quick with a million transfers of others as without."""
metrics = Table(
    "metrics",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", DOUBLE, nullable=False),
    ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
)
balances = Table(
    "balances",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("account", Integer, primary_key=True),
    Column("balance", BIG_INTEGER, nullable=False),
)
"""The sum of all transfers, kept by a trigger on every one of them."""
