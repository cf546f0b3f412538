"""A database that goes away, is locked or is full: a round is posted whole or not at all."""

import sqlite3
import threading
import time

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from tests.ledger.example_runs import LINE, opened_run, worked_run

import ipfl
from ipfl.core import Event
from ipfl.keep.run_audit import verify_run
from ipfl.ledger import store as store_module
from ipfl.ledger.database import StoreError
from ipfl.ledger.store import RunStore


def count_rows(store):
    with store.engine.connect() as connection:
        return {
            table: connection.scalar(text(f"SELECT count(*) FROM {table} WHERE round >= 0"))
            for table in ("rounds", "bids", "seats", "contributions", "transfers", "metrics")
        }


NOTHING = dict.fromkeys(("rounds", "bids", "seats", "contributions", "transfers", "metrics"), 0)


@pytest.mark.parametrize("table", ["rounds", "transfers", "metrics"])
def test_a_crash_in_the_middle_of_a_commit_leaves_nothing(place, monkeypatch, table):
    store = opened_run(place)
    real = store_module.insert_rows

    def insert(connection, into, given):
        real(connection, into, given)
        if into.name == table:
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "insert_rows", insert)
    with pytest.raises(KeyboardInterrupt):
        store.commit_round(0, LINE, "checkpoint-0")
    monkeypatch.undo()
    assert count_rows(store) == NOTHING
    assert store.balances() == {2: 25, 5: 25, 9: 25, -1: -75}
    store.commit_round(0, LINE, "checkpoint-0")
    assert verify_run(store) is None


def test_a_commit_whose_answer_was_lost_is_repeated_once(place):
    """The server had the round, but the connection broke before it could say so."""
    store = opened_run(place, retry_seconds=5)
    lost = []

    def lose(connection):
        if not lost and connection.scalar(text("SELECT count(*) FROM rounds WHERE round = 0")):
            lost.append(True)
            connection.connection.driver_connection.commit()
            raise sqlite3_busy() if connection.dialect.name == "sqlite" else connection_gone()

    event.listen(store.engine, "commit", lose)
    store.commit_round(0, LINE, None)
    assert lost
    assert count_rows(store) == {
        "rounds": 1,
        "bids": 4,
        "seats": 4,
        "contributions": 3,
        "transfers": 13,
        "metrics": 5,
    }


def sqlite3_busy():
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return OperationalError("COMMIT", {}, error)


def connection_gone():
    return OperationalError("COMMIT", {}, psycopg.OperationalError("the connection is lost"))


def test_a_locked_file_is_waited_for(tmp_path):
    store = opened_run(str(tmp_path))
    other = sqlite3.connect(tmp_path / "run.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(1.5, other.rollback)  # longer than SQLite itself waits
    release.start()
    store.commit_round(0, LINE, None)
    release.join()
    assert store.last_round() == 0


def test_a_file_that_stays_locked_is_a_clear_error(tmp_path):
    store = opened_run(str(tmp_path), retry_seconds=0.1)
    other = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"cannot post round 0: failed in .*run\.db: database is locked"):
        store.commit_round(0, LINE, None)
    assert store.last_round() is None  # reading goes on meanwhile
    other.rollback()
    store.commit_round(0, LINE, None)


def test_a_restarting_server_is_waited_for(own_server):
    """PostgreSQL is stopped, and started again while a round is posted."""
    store = opened_run(own_server.get_uri())
    own_server.stop()
    store.retry_seconds = 0.3
    started = time.monotonic()
    with pytest.raises(StoreError, match="cannot post round 0: failed in postgresql"):
        store.commit_round(0, LINE, None)
    assert time.monotonic() - started < 5
    store.retry_seconds = 30
    again = threading.Timer(1.0, own_server.start)
    again.start()
    store.commit_round(0, LINE, None)
    again.join()
    assert verify_run(store) is None


def test_a_server_that_restarts_in_the_middle_of_a_commit(own_server, monkeypatch):
    """The first attempt dies with its connection, half done; the second is the only one that counts."""
    store = opened_run(own_server.get_uri())
    real, restarted = store_module.insert_rows, []

    def insert(connection, into, given):
        real(connection, into, given)
        if into.name == "transfers" and not restarted:
            restarted.append(True)
            own_server.stop()
            own_server.start()

    monkeypatch.setattr(store_module, "insert_rows", insert)
    store.commit_round(0, LINE, None)
    assert restarted
    assert verify_run(store) is None
    assert count_rows(store)["transfers"] == 13


def test_a_run_outlives_its_store_s_absence(own_server, tmp_path):
    """PostgreSQL stops after round 0 and starts again a second later, while round 1 waits to be posted."""
    task = ipfl.Task.load(clients=6, samples=20, test_samples=20, model="softmax", seed=3)

    class Stopper:
        def start(self, method, rounds): ...

        def finish(self): ...

        def round(self, line):
            if line["round"] == 0:
                own_server.stop()
                threading.Timer(1.0, own_server.start).start()

    config, engine = ipfl.RunConfig(rounds=3, seed=3), ipfl.local_engine(workers=0)
    plain = ipfl.run(task, ipfl.method("ipfl-plus"), config, engine=engine)
    url = own_server.get_uri()
    out = ipfl.RunOutput(tmp_path / "run", store=url)
    stored = ipfl.run(task, ipfl.method("ipfl-plus"), config, engine=engine, out=out, observer=Stopper())
    assert stored.history == plain.history
    with RunStore.open(url, "run") as store:
        assert store.last_round() == 2
        assert verify_run(store) is None


def test_a_full_disk_is_a_clear_error(place):
    store = opened_run(place, retry_seconds=0.1)
    if store.engine.dialect.name == "sqlite":
        # SQLite's own limit on a file's size gives the very error of a full disk.
        event.listen(store.engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 1"))
        large = LINE | {"events": [Event("log", None, "x" * 100_000)]}
    else:
        fill_disk(store)
        large = LINE
    with pytest.raises(
        StoreError, match=r"cannot post round 0: the disk of .* is full; nothing of it was kept"
    ):
        store.commit_round(0, large, None)
    assert count_rows(RunStore.open(place)) == NOTHING


def test_a_full_disk_is_waited_for(place):
    """Somebody makes room after half a second."""
    store = opened_run(place)
    if store.engine.dialect.name == "sqlite":
        limited = [True]
        event.listen(
            store.engine, "connect", lambda raw, _: limited and raw.execute("PRAGMA max_page_count = 1")
        )
        room = threading.Timer(0.5, limited.clear)
    else:
        fill_disk(store)
        room = threading.Timer(0.5, free_disk, [store])
    room.start()
    store.commit_round(0, LINE | {"events": [Event("log", None, "x" * 100_000)]}, None)
    room.join()
    assert verify_run(store) is None


def free_disk(store):
    """The opposite of `fill_disk`."""
    with store.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER fill ON metrics"))


def fill_disk(store):
    """PostgreSQL says 53100 when it cannot extend a file."""
    with store.engine.begin() as connection:
        connection.execute(
            text(
                """CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$
                   BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"""
            )
        )
        connection.execute(
            text("CREATE TRIGGER fill BEFORE INSERT ON metrics FOR EACH ROW EXECUTE FUNCTION fill()")
        )


def test_a_reader_sees_one_moment(place):
    """What is posted while somebody reads does not show until they look again."""
    store = opened_run(place)
    with store.snapshot() as reader:
        assert reader.round_numbers() == [-1]
        worker = threading.Thread(target=store.commit_round, args=(0, LINE, None))
        worker.start()
        worker.join()
        assert reader.round_numbers() == [-1]
        assert reader.balances() == {2: 25, 5: 25, 9: 25, -1: -75}
    assert store.last_round() == 0


def test_no_connection_is_kept(place):
    """Worker processes are forked from the round loop and must not inherit one."""
    store = worked_run(place)
    assert store.engine.pool.status() == "NullPool"
