"""What the database itself refuses, by checks and triggers."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.ledger.example_runs import HEADER, worked_run

from ipfl.ledger.database import StoreError
from ipfl.ledger.store import RunStore
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Transfer

POSTED = {
    "runs": "name = 'x'",
    "clients": "client = 3",
    "rounds": "checkpoint = 'x'",
    "bids": "rank = 5",
    "seats": "how = 'random'",
    "contributions": "psi = 0",
    "transfers": "amount = 1",
    "metrics": "value = 1",
}


def execute(store, sql):
    with store.engine.begin() as connection:
        connection.execute(text(sql))


def everything(store):
    with store.engine.connect() as connection:
        return {
            table: sorted(map(str, connection.execute(text(f"SELECT * FROM {table}")))) for table in POSTED
        }


@pytest.mark.parametrize("table", POSTED)
def test_what_is_posted_never_changes(place, table):
    store = worked_run(place)
    before = everything(store)
    for sql in (f"UPDATE {table} SET {POSTED[table]}", f"DELETE FROM {table}"):
        with pytest.raises(IntegrityError, match=f"{table} are never changed"):
            execute(store, sql)
    assert everything(store) == before


def test_postgresql_truncates_nothing(postgresql):
    store = worked_run(postgresql())
    with pytest.raises(IntegrityError, match="never changed"):
        execute(store, "TRUNCATE transfers")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT OR REPLACE INTO transfers VALUES (1, 0, 10, 'reward', -3, 2, 20, 0, 2)",
        "INSERT OR REPLACE INTO seats VALUES (1, 0, 9, 2, 0, 'random', 0, 0)",
        "INSERT OR REPLACE INTO rounds VALUES (1, 0, '', '', NULL, '{}', '{}', NULL, NULL)",
        # IGNORE would skip a mere check on the balance, and post the transfer all the same.
        "INSERT OR IGNORE INTO transfers VALUES (1, 0, 13, 'bid', 2, -2, 29, 0, 2)",
    ],
)
def test_sqlite_has_no_way_around(tmp_path, sql):
    store = worked_run(str(tmp_path))
    before = everything(store)
    with pytest.raises(IntegrityError):
        execute(store, sql)
    assert everything(store) == before


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        # After the round client 2 holds 28 tokens, the escrow of cluster 0 (−2) none.
        ("'bid', 2, -2, 29, 0, 2", "no_overdraft"),
        ("'refund', -2, 2, 1, 0, 2", "no_overdraft"),
        ("'bid', 2, -2, -1, 0, 2", "no_negative_amount"),
        ("'bid', 2, 2, 1, 0, 2", "two_accounts"),
        ("'fee', 2, -1, 1, 0, 2", "tokens_never_return"),
        ("'reward', -1, 2, 1, 0, 2", "only_the_issuer"),
        ("'open', 5, 2, 1, 0, 2", "only_the_issuer"),
        ("'gift', 5, 2, 1, 0, 2", "known_kind"),
        ("'reward', 5, 7, 1, 0, 2", "no such account"),
        ("'bid', 7, -2, 1, 0, 2", "no such account"),
    ],
)
def test_transfers_that_cannot_be(place, values, complaint):
    store = worked_run(place)
    before = store.balances()
    with pytest.raises(IntegrityError, match=complaint):
        execute(store, f"INSERT INTO transfers VALUES (1, 0, 13, {values})")
    assert store.balances() == before
    assert len(store.transfers()) == 16


def test_a_place_is_taken_once(place):
    store = worked_run(place)
    with pytest.raises(IntegrityError):
        execute(store, "INSERT INTO transfers VALUES (1, 0, 12, 'bid', 2, -2, 1, 0, 2)")


def test_no_transfer_without_its_round(place):
    store = worked_run(place)
    with pytest.raises(IntegrityError):
        execute(store, "INSERT INTO transfers VALUES (1, 1, 0, 'bid', 2, -2, 1, 0, 2)")


def test_balances_follow_the_transfers(place):
    store = worked_run(place)
    execute(store, "INSERT INTO transfers VALUES (1, 0, 13, 'bid', 2, -2, 28, 0, 2)")  # all that it has
    assert store.balances() == {2: 0, 5: 22, 9: 25, -1: -75, -2: 28, -3: 0, -4: 0, -5: 0}


def bid_and_refund(amount):
    return [Transfer("bid", 2, -2, amount, 0, 2), Transfer("refund", -2, 2, amount, 0, 2)]


def test_an_overdraft_in_the_middle_of_a_round_is_refused(place):
    """25 − 26 + 26: in the end nobody is short of anything, but in between client 2 was."""
    store = RunStore.create(place, "short", HEADER)
    store.commit_opening(opening_transfers(HEADER["clients"], 25))
    with pytest.raises(StoreError, match=r"cannot post round 0: refused by .*no_overdraft"):
        store.commit_round(0, {"transfers": bid_and_refund(26)}, None)
    assert store.last_round() is None
    assert len(store.transfers()) == 3
    store.commit_round(0, {"transfers": bid_and_refund(25)}, None)
    assert store.balances()[2] == 25


def test_large_sums_are_exact(place):
    most = 2**62 // 2  # two clients, 2**62 in all; no float holds the last token
    store = RunStore.create(place, "rich", {"clients": [0, 1]})
    store.commit_opening(opening_transfers([0, 1], most))
    store.commit_round(
        0, {"transfers": [Transfer("bid", 0, -2, 1, 0, 0), Transfer("reward", -2, 1, 1, 0, 1)]}, None
    )
    assert store.balances() == {0: most - 1, 1: most + 1, -1: -(2**62), -2: 0}
    assert store.balances(0) == store.balances()
