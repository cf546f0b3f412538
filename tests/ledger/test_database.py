"""What the database itself refuses, and a round that is posted whole or not at all."""

import sqlite3
import threading

import pytest
from tests.ledger.example_runs import HEADER, LINE, opened_run, worked_run

from ipfl.core import Event
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger import database
from ipfl.ledger import store as store_module
from ipfl.ledger.database import StoreError
from ipfl.ledger.schema import POSTED
from ipfl.ledger.store import RunStore
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Transfer


def execute(store, sql):
    with database.writing(store.file) as connection:
        connection.execute(sql)


def everything(store):
    with database.reading(store.file) as connection:
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in POSTED}


class TestRefused:
    @pytest.mark.parametrize("table", POSTED)
    def test_what_is_posted_never_changes(self, place, table):
        store = worked_run(place)
        before = everything(store)
        with database.reading(store.file) as connection:
            column = connection.execute(f"SELECT * FROM {table}").description[0][0]
        for sql in (f"UPDATE {table} SET {column} = 7", f"DELETE FROM {table}"):
            with pytest.raises(sqlite3.IntegrityError, match=f"{table} are never changed"):
                execute(store, sql)
        assert everything(store) == before

    @pytest.mark.parametrize(
        ("place_of_it", "values", "complaint"),
        [
            # After the round client 2 holds 28 tokens, the escrow of cluster 0 (−2) none.
            ("0, 13", "'bid', 2, -2, 29, 0, 2", "no_overdraft"),
            ("0, 13", "'refund', -2, 2, 1, 0, 2", "no_overdraft"),
            ("0, 13", "'bid', 2, -2, -1, 0, 2", "no_negative_amount"),
            ("0, 13", "'bid', 2, 2, 1, 0, 2", "two_accounts"),
            ("0, 13", "'fee', 2, -1, 1, 0, 2", "tokens_never_return"),
            ("0, 13", "'reward', -1, 2, 1, 0, 2", "only_the_issuer"),
            ("0, 13", "'open', 5, 2, 1, 0, 2", "only_the_issuer"),
            ("0, 13", "'gift', 5, 2, 1, 0, 2", "known_kind"),
            ("0, 13", "'reward', 5, 7, 1, 0, 2", "FOREIGN KEY"),  # there is no client 7
            ("0, 13", "'bid', 7, -2, 1, 0, 2", "FOREIGN KEY"),
            ("0, 12", "'bid', 2, -2, 1, 0, 2", "UNIQUE"),  # this place is taken
            ("1, 0", "'bid', 2, -2, 1, 0, 2", "FOREIGN KEY"),  # there is no round 1
        ],
    )
    def test_transfers_that_cannot_be(self, place, place_of_it, values, complaint):
        store = worked_run(place)
        before = store.balances()
        with pytest.raises(sqlite3.IntegrityError, match=complaint):
            execute(store, f"INSERT INTO transfers VALUES ({place_of_it}, {values})")
        assert store.balances() == before
        assert len(store.transfers()) == 16

    def test_an_overdraft_in_the_middle_of_a_round(self, place):
        """25 − 26 + 26: in the end nobody is short of anything, but in between client 2 was."""
        store = opened_run(place)

        def moves(amount):
            return [Transfer("bid", 2, -2, amount, 0, 2), Transfer("refund", -2, 2, amount, 0, 2)]

        with pytest.raises(StoreError, match=r"cannot post round 0: refused by .*no_overdraft"):
            store.commit_round(0, {"transfers": moves(26)})
        assert (store.last_round(), len(store.transfers())) == (None, 3)
        store.commit_round(0, {"transfers": moves(25)})
        assert store.balances()[2] == 25

    def test_connections_that_read_cannot_write(self, place):
        store = worked_run(place)
        with store.snapshot() as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.connection.execute("CREATE TABLE mine (a)")


def test_large_sums_are_exact(place):
    most = 2**62 // 2  # two clients, 2**62 in all; no float holds the last token
    store = RunStore.create(place, "rich", {"clients": [0, 1]})
    store.commit_opening(opening_transfers([0, 1], most))
    store.commit_round(
        0, {"transfers": [Transfer("bid", 0, -2, 1, 0, 0), Transfer("reward", -2, 1, 1, 0, 1)]}
    )
    assert store.balances() == {0: most - 1, 1: most + 1, -1: -(2**62), -2: 0}
    assert store.balances(0) == store.balances()


class TestCommit:
    """A crash, a full disk, a reader."""

    @pytest.mark.parametrize("table", ["rounds", "transfers", "metrics"])
    def test_a_crash_in_the_middle_leaves_nothing(self, place, monkeypatch, table):
        store = opened_run(place)
        before, real = everything(store), store_module.insert_rows

        def insert(connection, into, given):
            real(connection, into, given)
            if into == table:
                raise KeyboardInterrupt

        monkeypatch.setattr(store_module, "insert_rows", insert)
        with pytest.raises(KeyboardInterrupt):
            store.commit_round(0, LINE, "checkpoint-0")
        monkeypatch.undo()
        assert everything(store) == before
        assert store.balances() == {2: 25, 5: 25, 9: 25, -1: -75}
        store.commit_round(0, LINE, "checkpoint-0")
        assert verify_run(store) is None

    def test_a_full_disk_is_a_clear_error(self, place, monkeypatch):
        """SQLite's own limit on a file's size gives the very error of a full disk."""
        store, connect = opened_run(place), sqlite3.connect

        def limited(*arguments, **options):
            connection = connect(*arguments, **options)
            connection.execute("PRAGMA max_page_count = 1")
            return connection

        monkeypatch.setattr(sqlite3, "connect", limited)
        with pytest.raises(StoreError, match=r"post round 0: the disk of .* is full; nothing of it was kept"):
            store.commit_round(0, LINE | {"events": [Event("log", None, "x" * 100_000)]})
        assert store.last_round() is None

    def test_a_reader_sees_one_moment(self, place):
        """What is posted while somebody reads does not show until they look again."""
        store = opened_run(place)
        with store.snapshot() as reader:
            assert reader.round_numbers() == [-1]
            worker = threading.Thread(target=store.commit_round, args=(0, LINE))
            worker.start()
            worker.join()
            assert reader.round_numbers() == [-1]
            assert reader.balances() == {2: 25, 5: 25, 9: 25, -1: -75}
        assert store.last_round() == 0


def test_another_run_in_the_same_file(place):
    worked_run(place)
    with pytest.raises(InputError, match=r"run\.db is there already"):
        RunStore.create(place, "second", HEADER)
