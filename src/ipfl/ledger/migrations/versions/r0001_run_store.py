"""All tables (runs, rounds, bids, selections, contributions, transfers, metrics, balances) with their checks.

The database itself refuses negative amounts, an overdraft at any transfer, new tokens from elsewhere than the
issuer, transfers of clients that do not belong to the run, and any change of what was posted.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

PLACE = "run_id = NEW.run_id AND round = NEW.round AND sequence = NEW.sequence"
SEAT = "run_id = NEW.run_id AND round = NEW.round AND client = NEW.client AND cluster = NEW.cluster"
POSTED = {
    "runs": "id = NEW.id OR name = NEW.name",
    "clients": "run_id = NEW.run_id AND client = NEW.client",
    "rounds": "run_id = NEW.run_id AND round = NEW.round",
    "bids": f"({PLACE}) OR ({SEAT})",
    "selections": f"({PLACE}) OR ({SEAT})",
    "contributions": f"({PLACE}) OR ({SEAT})",
    "transfers": PLACE,
    "metrics": "run_id = NEW.run_id AND round = NEW.round AND name = NEW.name",
}
"""Tables whose rows never change, and which row a new one would replace."""

WHOLE = sa.BigInteger().with_variant(sa.Integer, "sqlite")
REAL_NUMBER: sa.Double[float] = sa.Double().with_variant(sa.REAL, "sqlite")
YES_NO = sa.Boolean(create_constraint=False).with_variant(sa.Integer, "sqlite")
STRICT = {"sqlite_strict": True, "sqlite_with_rowid": False}


def _of_round(name: str, *columns: Any) -> None:
    op.create_table(
        name,
        sa.Column("run_id", sa.Integer, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        *columns,
        sa.ForeignKeyConstraint(["run_id", "round"], ["rounds.run_id", "rounds.round"]),
        **STRICT,
    )


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _sequence() -> sa.Column[int]:
    return sa.Column("sequence", sa.Integer, sa.CheckConstraint("sequence >= 0"), primary_key=True)


def _once() -> sa.UniqueConstraint:
    return sa.UniqueConstraint("run_id", "round", "client", "cluster")


def upgrade() -> None:
    """Makes the tables, then the triggers."""
    _runs()
    _market()
    _books()
    triggers = SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL
    for statement in triggers:
        op.execute(statement)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("header", sa.Text, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "clients",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("client", sa.Integer, sa.CheckConstraint("client >= 0"), primary_key=True),
        **STRICT,
    )
    op.create_table(
        "rounds",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("round", sa.Integer, sa.CheckConstraint("round >= -1"), primary_key=True),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("checkpoint", sa.Text),
        sa.Column("line", sa.Text, nullable=False),
        **STRICT,
    )
    _of_round(
        "metrics",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", REAL_NUMBER, nullable=False),
    )


def _market() -> None:
    _of_round(
        "bids",
        _sequence(),
        _whole("client"),
        _whole("cluster"),
        _whole("rank"),
        sa.CheckConstraint("rank >= 0"),
        _once(),
    )
    _of_round(
        "selections",
        _sequence(),
        _whole("client"),
        _whole("cluster"),
        sa.Column("how", sa.Text, nullable=False),
        sa.Column("delivered", YES_NO, nullable=False),
        sa.CheckConstraint("how IN ('performance', 'random')"),
        _once(),
    )
    _of_round(
        "contributions",
        _sequence(),
        _whole("client"),
        _whole("cluster"),
        sa.Column("psi", REAL_NUMBER),
        _whole("omega"),
        sa.CheckConstraint("omega >= 0"),
        _once(),
    )


def _books() -> None:
    kinds = "'open', 'allowance', 'bid', 'refund', 'fee', 'reimbursement', 'reward'"
    _of_round(
        "transfers",
        _sequence(),
        sa.Column("kind", sa.Text, nullable=False),
        _whole("source"),
        _whole("target"),
        sa.Column("amount", WHOLE, nullable=False),
        _whole("cluster"),
        _whole("client"),
        sa.CheckConstraint(f"kind IN ({kinds})", name="known_kind"),
        sa.CheckConstraint("amount >= 0", name="no_negative_amount"),
        sa.CheckConstraint("source <> target", name="two_accounts"),
        sa.CheckConstraint("target <> -1", name="tokens_never_return_to_the_issuer"),
        sa.CheckConstraint(
            "(source = -1) = (kind IN ('open', 'allowance'))", name="only_the_issuer_makes_tokens"
        ),
    )
    op.create_table(
        "balances",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("account", sa.Integer, primary_key=True),
        sa.Column("balance", WHOLE, nullable=False),
        sa.CheckConstraint("balance >= 0 OR account = -1", name="no_overdraft"),
        **STRICT,
    )


SQLITE = [
    # The issuer, and each client that is entered, gets an account with balance 0.
    """CREATE TRIGGER runs_account AFTER INSERT ON runs BEGIN
         INSERT INTO balances (run_id, account, balance) VALUES (NEW.id, -1, 0);
       END""",
    """CREATE TRIGGER clients_account AFTER INSERT ON clients BEGIN
         INSERT INTO balances (run_id, account, balance) VALUES (NEW.run_id, NEW.client, 0);
       END""",
    # RAISE, because INSERT OR IGNORE would skip a row that only a check refuses.
    # The first transfer to the escrow or the pool of a cluster opens its account; no other transfer does so.
    """CREATE TRIGGER transfers_post AFTER INSERT ON transfers BEGIN
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
       END""",
    *(
        f"""CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} BEGIN
              SELECT RAISE(ABORT, '{table} are never changed');
            END"""
        for table in POSTED
        for event in ("UPDATE", "DELETE")
    ),
    # INSERT OR REPLACE deletes without firing a trigger on DELETE.
    *(
        f"""CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table}
            WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN
              SELECT RAISE(ABORT, '{table} are never changed');
            END"""
        for table, same in POSTED.items()
    ),
]

SIDES = """SELECT run_id, round, sequence, source AS account, -amount AS delta FROM posted
           UNION ALL SELECT run_id, round, sequence, target, amount FROM posted"""
"""Both sides of the transfers of a statement: what each adds to an account."""

POSTGRESQL = [
    """CREATE FUNCTION ipfl_open_issuer() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         INSERT INTO balances (run_id, account, balance) VALUES (NEW.id, -1, 0);
         RETURN NULL;
       END $$""",
    """CREATE TRIGGER runs_account AFTER INSERT ON runs
       FOR EACH ROW EXECUTE FUNCTION ipfl_open_issuer()""",
    """CREATE FUNCTION ipfl_open_clients() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         INSERT INTO balances (run_id, account, balance) SELECT run_id, client, 0 FROM posted;
         RETURN NULL;
       END $$""",
    """CREATE TRIGGER clients_account AFTER INSERT ON clients REFERENCING NEW TABLE AS posted
       FOR EACH STATEMENT EXECUTE FUNCTION ipfl_open_clients()""",
    # Once per statement, not per row: a row's balance updated 100,000 times in a transaction leaves as many
    # dead versions to walk through. The running sum still refuses an overdraft at any single transfer.
    f"""CREATE FUNCTION ipfl_post_transfers() RETURNS trigger LANGUAGE plpgsql AS $$
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
    """CREATE TRIGGER transfers_post AFTER INSERT ON transfers REFERENCING NEW TABLE AS posted
       FOR EACH STATEMENT EXECUTE FUNCTION ipfl_post_transfers()""",
    """CREATE FUNCTION ipfl_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         RAISE EXCEPTION '% are never changed', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
       END $$""",
    *(
        f"""CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION ipfl_refuse_change()"""
        for table in POSTED
        for event in ("UPDATE", "DELETE", "TRUNCATE")
    ),
]
