"""The tables of a run store, with what the database itself refuses.

Checks refuse negative amounts, overdrafts and tokens from elsewhere than the issuer; keys refuse accounts and
rounds that are not there; triggers refuse any change of what was posted. `sequence` numbers the rows that a
round reported under one key.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ipfl.errors import InputError

OPENING = -1
"""Round number of the opening transfers."""
STORE_FORMAT = 5
"""Number of these tables, and of what they hold, in the file's `user_version`. Another one is refused."""
TABLES = (
    "CREATE TABLE run (name TEXT NOT NULL, header TEXT NOT NULL) STRICT",
    "CREATE TABLE clients (client INTEGER PRIMARY KEY CHECK (client >= 0)) STRICT",
    # `line` is what the round loop reported, as JSON; what the other tables hold is null there. `files` is
    # the SHA-256 of every file that the round wrote, by path in the run's folder, as JSON. The hash does not
    # cover the signature: equal runs have equal rounds, but not equal keys.
    """
CREATE TABLE rounds (
  round INTEGER PRIMARY KEY CHECK (round >= -1),
  previous TEXT NOT NULL,
  hash TEXT NOT NULL,
  checkpoint TEXT,
  line TEXT NOT NULL,
  files TEXT NOT NULL,
  public_key TEXT,
  signature TEXT
) STRICT""",
    """
CREATE TABLE bids (
  round INTEGER REFERENCES rounds,
  sequence INTEGER CHECK (sequence >= 0),
  client INTEGER NOT NULL,
  cluster INTEGER NOT NULL,
  rank INTEGER NOT NULL CHECK (rank >= 0),
  score REAL,
  served INTEGER NOT NULL,
  PRIMARY KEY (round, sequence),
  UNIQUE (round, client, cluster)
) STRICT, WITHOUT ROWID""",
    """
CREATE TABLE seats (
  round INTEGER REFERENCES rounds,
  sequence INTEGER CHECK (sequence >= 0),
  client INTEGER NOT NULL,
  cluster INTEGER NOT NULL,
  how TEXT NOT NULL CHECK (how IN ('performance', 'random')),
  delivered INTEGER NOT NULL,
  excused INTEGER NOT NULL,
  PRIMARY KEY (round, sequence),
  UNIQUE (round, client, cluster)
) STRICT, WITHOUT ROWID""",
    """
CREATE TABLE contributions (
  round INTEGER REFERENCES rounds,
  sequence INTEGER CHECK (sequence >= 0),
  client INTEGER NOT NULL,
  cluster INTEGER NOT NULL,
  psi REAL,
  omega INTEGER NOT NULL CHECK (omega >= 0),
  PRIMARY KEY (round, sequence),
  UNIQUE (round, client, cluster)
) STRICT, WITHOUT ROWID""",
    """
CREATE TABLE transfers (
  round INTEGER REFERENCES rounds,
  sequence INTEGER CHECK (sequence >= 0),
  kind TEXT NOT NULL CONSTRAINT known_kind
    CHECK (kind IN ('open', 'allowance', 'bid', 'refund', 'fee', 'reimbursement', 'reward')),
  source INTEGER NOT NULL REFERENCES balances,
  target INTEGER NOT NULL REFERENCES balances,
  amount INTEGER NOT NULL CONSTRAINT no_negative_amount CHECK (amount >= 0),
  cluster INTEGER NOT NULL,
  client INTEGER NOT NULL,
  PRIMARY KEY (round, sequence),
  CONSTRAINT two_accounts CHECK (source <> target),
  CONSTRAINT tokens_never_return_to_the_issuer CHECK (target <> -1),
  CONSTRAINT only_the_issuer_makes_tokens CHECK ((source = -1) = (kind IN ('open', 'allowance')))
) STRICT, WITHOUT ROWID""",
    # A client's page is as quick with a million transfers of others as without.
    "CREATE INDEX transfers_by_client ON transfers (client, round)",
    """
CREATE TABLE metrics (
  round INTEGER REFERENCES rounds,
  name TEXT,
  value REAL NOT NULL,
  PRIMARY KEY (round, name)
) STRICT, WITHOUT ROWID""",
    # The sum of all transfers, kept by a trigger on every one of them. The first transfer to the escrow or
    # the pool of a cluster opens its account; no other transfer does so.
    """
CREATE TABLE balances (
  account INTEGER PRIMARY KEY,
  balance INTEGER NOT NULL,
  CONSTRAINT no_overdraft CHECK (balance >= 0 OR account = -1)
) STRICT""",
    """
CREATE TRIGGER transfers_post AFTER INSERT ON transfers BEGIN
  INSERT INTO balances SELECT NEW.target, 0 WHERE NEW.target < -1 ON CONFLICT DO NOTHING;
  UPDATE balances SET balance = balance - NEW.amount WHERE account = NEW.source;
  UPDATE balances SET balance = balance + NEW.amount WHERE account = NEW.target;
END""",
)
ROW_TABLES = ("bids", "seats", "contributions", "transfers")
"""Tables of the rows that a round reports under the key of the same name; a column per field of the row."""
POSTED = ("run", "clients", "rounds", *ROW_TABLES, "metrics")
"""Tables whose rows never change."""


def make_tables(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file, within the transaction of the connection."""
    for statement in TABLES:
        connection.execute(statement)
    for table in POSTED:
        for change in ("UPDATE", "DELETE"):
            connection.execute(
                f"CREATE TRIGGER {table}_no_{change} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} are never changed'); END"
            )
    connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")


def check_format(connection: sqlite3.Connection, file: Path) -> None:
    """Accepts a file with these tables.

    Raises:
        InputError: It is a database of something else, or of another version.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != STORE_FORMAT:
        raise InputError(
            f"{file} is no run store, or of another version of ipfl "
            f"(format {found}; this one reads format {STORE_FORMAT})"
        )
