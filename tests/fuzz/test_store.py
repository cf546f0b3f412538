"""Run stores, however changed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import HUGE, WORDS, clean, edited, feed, hostile
from tests.ledger.example_runs import HEADER, LINE, change_as_owner, worked_run

from ipfl.keep.run_audit import verify_run
from ipfl.ledger.export import csv_lines
from ipfl.ledger.store import RunStore


def read_all(place: str) -> None:
    """All that `ipfl ledger` and `--resume` read of a store."""
    store = clean(lambda: RunStore.open(place))
    if store is None:
        return
    reads: list[Callable[[], Any]] = [
        lambda: verify_run(store),
        lambda: list(csv_lines(store)),
        lambda: list(store.lines()),
        lambda: store.balances(0),
        lambda: shown_accounts(store),
    ]
    for read in reads:
        clean(read)


def shown_accounts(store: RunStore) -> None:
    from ipfl.report.ledger_tables import accounts_table, transfers_table

    with store.snapshot() as reader:
        transfers_table(reader.transfers(2, None), "t")
        accounts_table(reader.accounts(), "a")


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    """A store with the round worked out by hand, in one file without triggers that would stop an edit."""
    store = worked_run(tmp_path / "valid")
    change_as_owner(store)
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return store.file


@pytest.mark.slow
def test_edited_files(valid: Path, tmp_path: Path) -> None:
    """A damaged file of SQLite's."""
    content, place = valid.read_bytes(), tmp_path / "edited"
    place.mkdir()

    def check(given: bytes) -> None:
        for old in place.iterdir():
            old.unlink()
        (place / "run.db").write_bytes(given)
        read_all(str(place))

    feed(100, edited([content], [b'{"', b"transfers", b"CREATE TABLE"]), check)


COLUMNS = {
    "run": ["name", "header"],
    "clients": ["client"],
    "rounds": ["round", "previous", "hash", "checkpoint", "line", "files", "public_key", "signature"],
    "bids": ["sequence", "client", "cluster", "rank"],
    "seats": ["sequence", "client", "how", "delivered"],
    "contributions": ["client", "psi", "omega"],
    "transfers": ["round", "sequence", "kind", "source", "target", "amount", "cluster", "client"],
    "metrics": ["name", "value"],
    "balances": ["account", "balance"],
}


def rows() -> st.SearchStrategy[tuple[str, str, Any]]:
    """A column, and what all its rows, or the first, are to hold."""
    rest = json.loads(
        json.dumps({**LINE, "bids": None, "seats": None, "contributions": None, "transfers": None})
    )
    hard = [
        "[" * 2000,
        "9" * 5000,
        "{}",
        "[]",
        "null",
        '{"bids": [[1e999, 0, 0]]}',
        '{"loss": NaN}',
        '{"a":' * 300,
        b"\xff",
    ]
    text = st.one_of(
        hostile(rest, [[[10**30, 0, 0]], [["bid", 2, -2, 1, 0, 2]]]).map(json.dumps),
        hostile(json.loads(json.dumps(HEADER)), [10**9, 2**40, [10**30], {"clusters": 10**9}]).map(
            json.dumps
        ),
        st.sampled_from([*hard, *WORDS[:7]]),
    )
    value = text | st.sampled_from([None, 0.5, b"\0", *[huge for huge in HUGE if abs(huge) < 2**63], 10**7])
    place = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns])
    often = st.sampled_from([("run", "header"), ("rounds", "line")])
    return st.tuples(place | often, value).map(lambda drawn: (*drawn[0], drawn[1]))


@pytest.mark.slow
def test_hostile_rows(valid: Path, tmp_path: Path) -> None:
    """Tables without checks, and a value in them that no run could have posted."""
    loose = tmp_path / "loose.db"
    shutil.copy(valid, loose)
    with sqlite3.connect(loose) as connection:
        for table in COLUMNS:
            connection.execute(f"CREATE TABLE loose AS SELECT * FROM {table}")
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"ALTER TABLE loose RENAME TO {table}")
    connection.close()
    place = tmp_path / "hostile.db"

    def check(given: tuple[str, str, Any]) -> None:
        table, column, value = given
        shutil.copy(loose, place)
        with sqlite3.connect(place) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            if isinstance(value, str):
                value = value.encode("utf-8", "replace").decode()
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid < 3", (value,))
        connection.close()
        read_all(str(place))

    feed(100, rows(), check)
