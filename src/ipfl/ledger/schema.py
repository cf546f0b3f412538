"""The tables of a run store, with what the database itself refuses.

Checks refuse negative amounts and tokens from elsewhere than the issuer; triggers refuse overdrafts,
transfers of clients that do not belong to the run, and any change of what was posted. The tables of
`row_tables` take their columns from the row types; `sequence` numbers the rows that a round reported under
one key.

There is one format. A database of another one is refused.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)

from ipfl.errors import InputError
from ipfl.ledger.database import display_url, read_only
from ipfl.ledger.lines import BIG_INTEGER, DOUBLE, TABLE_KEYS, columns_of
from ipfl.ledger.statements import OPENING as OPENING
from ipfl.market.bank import ISSUER
from ipfl.market.market_rows import ROW_TYPES

STORE_FORMAT = 4
"""Number of these tables, and of what they hold."""
SCHEMA_LOCK = 7_106_117
"""Number of the PostgreSQL lock that is held while the tables are made; an arbitrary number."""
STRICT: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}

metadata = MetaData()

store_format = Table("ipfl_store", metadata, Column("format", Integer, nullable=False), sqlite_strict=True)
runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("header", Text, nullable=False),
    sqlite_strict=True,
)
clients = Table(
    "clients",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("client", Integer, CheckConstraint("client >= 0"), primary_key=True),
    **STRICT,
)
rounds = Table(
    "rounds",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("round", Integer, CheckConstraint("round >= -1"), primary_key=True),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("checkpoint", Text),
    Column("line", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("public_key", Text),
    Column("signature", Text),
    **STRICT,
)
"""`line` is what the round loop reported, as JSON; what the other tables hold is null there. `files` is the
SHA-256 of every file that the round wrote, by path in the run's folder, as JSON. The hash does not cover the
signature: equal runs have equal rounds, but not equal keys."""
CHECKS = {
    "bids": [CheckConstraint("rank >= 0")],
    "seats": [CheckConstraint("how IN ('performance', 'random')")],
    "contributions": [CheckConstraint("omega >= 0")],
    "transfers": [
        CheckConstraint(
            "kind IN ('open', 'allowance', 'bid', 'refund', 'fee', 'reimbursement', 'reward')",
            name="known_kind",
        ),
        CheckConstraint("amount >= 0", name="no_negative_amount"),
        CheckConstraint("source <> target", name="two_accounts"),
        CheckConstraint("target <> -1", name="tokens_never_return_to_the_issuer"),
        CheckConstraint(
            "(source = -1) = (kind IN ('open', 'allowance'))", name="only_the_issuer_makes_tokens"
        ),
    ],
}
"""Key of a round's line → what holds for each of its rows."""


def _row_table(key: str) -> Table:
    """The table of the rows that rounds report under a key."""
    # A client has one row per cluster and round, except among the transfers.
    unique = [] if key == "transfers" else [UniqueConstraint("run_id", "round", "client", "cluster")]
    return Table(
        key,
        metadata,
        Column("run_id", Integer, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("sequence", Integer, CheckConstraint("sequence >= 0"), primary_key=True),
        *columns_of(ROW_TYPES[key]),
        ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
        *unique,
        *CHECKS[key],
        **STRICT,
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
    **STRICT,
)
balances = Table(
    "balances",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("account", Integer, primary_key=True),
    Column("balance", BIG_INTEGER, nullable=False),
    CheckConstraint(f"balance >= 0 OR account = {ISSUER}", name="no_overdraft"),
    **STRICT,
)
"""The sum of all transfers, kept by a trigger on every one of them."""
POSTED = (runs, clients, rounds, *row_tables.values(), metrics)
"""Tables whose rows never change."""

SQLITE = [
    """
CREATE TRIGGER transfers_post AFTER INSERT ON transfers BEGIN
  INSERT INTO balances (run_id, account, balance)
    SELECT NEW.run_id, NEW.target, 0 WHERE NEW.target < -1
    ON CONFLICT (run_id, account) DO NOTHING;
  SELECT RAISE(ABORT, 'no such account')
    WHERE (SELECT count(*) FROM balances
           WHERE run_id = NEW.run_id AND account IN (NEW.source, NEW.target)) < 2;
  SELECT RAISE(ABORT, 'no_overdraft') FROM balances
    WHERE run_id = NEW.run_id AND account = NEW.source AND account <> -1 AND balance < NEW.amount;
  UPDATE balances SET balance = balance - NEW.amount
    WHERE run_id = NEW.run_id AND account = NEW.source;
  UPDATE balances SET balance = balance + NEW.amount
    WHERE run_id = NEW.run_id AND account = NEW.target;
END"""
]
"""The first transfer to the escrow or the pool of a cluster opens its account; no other transfer does so.
RAISE, because INSERT OR IGNORE would skip a row that only a check refuses."""
SIDES = """SELECT run_id, round, sequence, source AS account, -amount AS delta FROM posted
           UNION ALL SELECT run_id, round, sequence, target, amount FROM posted"""
"""Both sides of the transfers of a statement: what each adds to an account."""
POSTGRESQL = [
    f"""
CREATE FUNCTION ipfl_post_transfers() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE broken record;
BEGIN
  INSERT INTO balances (run_id, account, balance)
    SELECT DISTINCT run_id, target, 0 FROM posted WHERE target < -1
    ON CONFLICT (run_id, account) DO NOTHING;
  SELECT moves.round, moves.sequence, moves.account, held.balance + moves.moved AS balance
    INTO broken
    FROM (SELECT run_id, round, sequence, account,
                 sum(delta) OVER (PARTITION BY run_id, account ORDER BY round, sequence) AS moved
          FROM ({SIDES}) AS sides) AS moves
    LEFT JOIN balances AS held USING (run_id, account)
    WHERE held.balance IS NULL OR (account <> -1 AND held.balance + moves.moved < 0)
    ORDER BY moves.round, moves.sequence LIMIT 1;
  IF FOUND AND broken.balance IS NULL THEN
    RAISE EXCEPTION 'no such account: %', broken.account USING ERRCODE = 'check_violation';
  ELSIF FOUND THEN
    RAISE EXCEPTION 'no_overdraft: account % would hold % after transfer % of round %',
      broken.account, broken.balance, broken.sequence, broken.round USING ERRCODE = 'check_violation';
  END IF;
  UPDATE balances AS held SET balance = held.balance + moves.total
    FROM (SELECT run_id, account, sum(delta) AS total FROM ({SIDES}) AS sides
          GROUP BY run_id, account) AS moves
    WHERE held.run_id = moves.run_id AND held.account = moves.account;
  RETURN NULL;
END $$""",
    """
CREATE TRIGGER transfers_post AFTER INSERT ON transfers REFERENCING NEW TABLE AS posted
  FOR EACH STATEMENT EXECUTE FUNCTION ipfl_post_transfers()""",
    """
CREATE FUNCTION ipfl_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% are never changed', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$""",
]
"""Once per statement, not per row: a row's balance updated 100,000 times in a transaction leaves as many dead
versions to walk through. The running sum still refuses an overdraft at any single transfer."""


def _sqlite_guards(table: Table) -> list[str]:
    """Triggers that refuse a change of a table's rows."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table.name} are never changed'); END"
    keys = [table.primary_key, *(one for one in table.constraints if isinstance(one, UniqueConstraint))]
    same = " OR ".join(
        "(" + " AND ".join(f"{column.name} = NEW.{column.name}" for column in key.columns) + ")"
        for key in keys
    )
    # INSERT OR REPLACE deletes without firing a trigger on DELETE.
    return [
        f"CREATE TRIGGER {table.name}_no_update BEFORE UPDATE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_delete BEFORE DELETE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} "
        f"WHEN EXISTS (SELECT 1 FROM {table.name} WHERE {same}) {refuse}",
    ]


def _postgresql_guards(table: Table) -> list[str]:
    """The same for PostgreSQL, where an insert replaces nothing."""
    return [
        f"CREATE TRIGGER {table.name}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
        "FOR EACH STATEMENT EXECUTE FUNCTION ipfl_refuse_change()"
    ]


def make_tables(engine: Engine) -> None:
    """Makes the tables in a database that has none of them, in one transaction.

    Raises:
        InputError: The database has them in another format.
    """
    with engine.connect() as connection:
        if _is_here(read_only(connection), engine):
            return
    with engine.begin() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        if not is_sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        if _is_here(connection, engine):  # another process was faster
            return
        metadata.create_all(connection, checkfirst=False)
        guards = chain.from_iterable(map(_sqlite_guards if is_sqlite else _postgresql_guards, POSTED))
        for statement in (*(SQLITE if is_sqlite else POSTGRESQL), *guards):
            connection.execute(text(statement))
        connection.execute(insert(store_format).values(format=STORE_FORMAT))


def check_tables(engine: Engine) -> None:
    """Accepts a database that holds a run store.

    Raises:
        InputError: It holds none, or one of another format.
    """
    with engine.connect() as connection:
        if not _is_here(read_only(connection), engine):
            raise InputError(f"{display_url(engine.url)} holds no run store")


def _is_here(connection: Connection, engine: Engine) -> bool:
    """Whether the tables are there."""
    found = inspect(connection)
    has_tables = found.has_table(store_format.name)
    if not has_tables and not found.has_table("ipfl_schema"):  # as stores before format 4 have it
        return False
    here = connection.scalars(select(store_format)).all() if has_tables else ["3 or lower"]
    if here != [STORE_FORMAT]:
        said = " and ".join(map(str, here)) or "unknown"
        raise InputError(
            f"{display_url(engine.url)} was written by another version of ipfl "
            f"(format {said:.50}; this one reads format {STORE_FORMAT})"
        )
    return True
