"""The tables of a run store, as the code reads and writes them.

Their law (checks, triggers that refuse changes and overdraft) is in the migrations, with the database itself.
Every row belongs to a run and a round; `sequence` keeps the order in which the round loop reported it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

OPENING = -1
"""Round number of the opening transfers."""

metadata = MetaData()
# SQLite's strict tables know INTEGER, REAL and TEXT only; its INTEGER holds 64 bits anyway.
WHOLE = BigInteger().with_variant(Integer, "sqlite")
REAL_NUMBER: Double[float] = Double().with_variant(REAL, "sqlite")
YES_NO = Boolean(create_constraint=False).with_variant(Integer, "sqlite")


def _of_round(name: str, *columns: Column[Any] | UniqueConstraint) -> Table:
    """A table of rows that were posted with a round."""
    return Table(
        name,
        metadata,
        Column("run_id", Integer, primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("sequence", Integer, primary_key=True),
        *columns,
        ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
    )


runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("header", Text, nullable=False),
)
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
)
"""`line` is what the round loop reported, as JSON; what the other tables hold is null there."""
bids = _of_round(
    "bids",
    Column("client", Integer, nullable=False),
    Column("cluster", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    UniqueConstraint("run_id", "round", "client", "cluster"),
)
selections = _of_round(
    "selections",
    Column("client", Integer, nullable=False),
    Column("cluster", Integer, nullable=False),
    Column("how", Text, nullable=False),
    Column("delivered", YES_NO, nullable=False),
    UniqueConstraint("run_id", "round", "client", "cluster"),
)
contributions = _of_round(
    "contributions",
    Column("client", Integer, nullable=False),
    Column("cluster", Integer, nullable=False),
    Column("psi", REAL_NUMBER),
    Column("omega", Integer, nullable=False),
    UniqueConstraint("run_id", "round", "client", "cluster"),
)
transfers = _of_round(
    "transfers",
    Column("kind", Text, nullable=False),
    Column("source", Integer, nullable=False),
    Column("target", Integer, nullable=False),
    Column("amount", WHOLE, nullable=False),
    Column("cluster", Integer, nullable=False),
    Column("client", Integer, nullable=False),
)
metrics = Table(
    "metrics",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", REAL_NUMBER, nullable=False),
    ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
)
balances = Table(
    "balances",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("account", Integer, primary_key=True),
    Column("balance", WHOLE, nullable=False),
)
"""The fold of all transfers, kept by a trigger on every one of them."""


def insert_rows(connection: Connection, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """Inserts many rows at once, values in the order of the table's columns.

    PostgreSQL gets a list per column in one statement, which fires the trigger on transfers once for all.
    """
    if not rows:
        return
    names = ", ".join(column.name for column in table.columns)
    into = f"INSERT INTO {table.name} ({names})"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in table.columns)
        connection.exec_driver_sql(f"{into} VALUES ({marks})", [tuple(row) for row in rows])
        return
    kinds = [column.type.compile(connection.dialect) for column in table.columns]
    lists = ", ".join(f"%s::{kind}[]" for kind in kinds)
    columns = zip(*rows, strict=True)
    arrays = tuple(_array(column.type, next(columns)) for column in table.columns)
    connection.exec_driver_sql(f"{into} SELECT * FROM unnest({lists})", arrays)


def _array(kind: TypeEngine[Any], values: Sequence[Any]) -> list[Any] | str:
    """A column for PostgreSQL; whole numbers spelled out here, which takes the driver many times as long."""
    if isinstance(kind, Integer):
        return "{" + ",".join(map(str, values)) + "}"
    return list(values)
