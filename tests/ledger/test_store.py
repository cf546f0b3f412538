"""Runs in the store: what goes in comes out, once and only once."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sqlalchemy import text
from tests.ledger.example_runs import BALANCES, HEADER, LINE, RULES, worked_run

from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger import store as store_module
from ipfl.ledger.database import StoreError, make_engine, parse_address
from ipfl.ledger.store import RunStore
from ipfl.market.bank import Kind, TransferRows, TransferTable, opening_transfers


def count(store, table):
    with store.engine.connect() as connection:
        return connection.scalar(text(f"SELECT count(*) FROM {table}"))


def test_a_run_comes_back_as_it_was_posted(place):
    worked_run(place).close()
    with RunStore.open(place) as store:
        assert store.name == "worked"
        assert store.header == HEADER
        assert store.last_round() == 0
        with store.snapshot() as reader:
            assert reader.last().checkpoint == "checkpoint-0"
        assert [json.dumps(line) for line in store.lines()] == [json.dumps(LINE)]  # keys in their order too
        # Nothing stays in escrows (−2, −4) and pools (−3, −5); 3·25 tokens were issued.
        assert store.balances() == BALANCES | {-1: -75, -2: 0, -3: 0, -4: 0, -5: 0}
        assert store.balances(-1) == {2: 25, 5: 25, 9: 25, -1: -75}
        assert store.balances(0) == store.balances()


def test_more_transfers_than_one_statement_inserts(place, monkeypatch):
    # Three clients open with 25; two of them bid 5 each, in statements of one row (SQLite) or by one COPY.
    monkeypatch.setattr(store_module, "ROWS_AT_A_TIME", 1)
    bids = TransferTable(Kind.BID, "client", "escrow", 5, np.array([[True], [False], [True]]))
    rows = TransferRows([bids], np.array([2, 5, 9]))
    with RunStore.create(place, "bids", HEADER) as store:
        store.commit_opening(opening_transfers(HEADER["clients"], 25))
        store.commit_round(0, {"round": 0, "transfers": rows})
        store.commit_round(0, {"round": 0, "transfers": tuple(rows)})  # the same content: the same hash
        assert store.balances() == {2: 20, 5: 25, 9: 20, -1: -75, -2: 10}
        assert tuple(posted.transfer for posted in store.transfers(round=0)) == rows


def test_transfers_by_client_and_by_round(place):
    store = worked_run(place)
    assert tuple(posted.transfer for posted in store.transfers(round=0)) == LINE["transfers"]
    mine = store.transfers(client=5)
    assert [(entry.round, entry.sequence) for entry in mine] == [
        (-1, 1),
        (0, 2),
        (0, 5),
        (0, 7),
        (0, 9),
        (0, 11),
    ]
    assert [entry.reason for entry in store.transfers(client=9, round=0)] == [
        "bid for cluster 1",
        "seat in cluster 1",
        "trained in cluster 1",
    ]


def test_every_row_has_its_table(place):
    store = worked_run(place)
    counts = {name: count(store, name) for name in ("bids", "seats", "contributions", "transfers")}
    assert counts == {"bids": 4, "seats": 4, "contributions": 3, "transfers": 3 + 13}
    with store.snapshot() as reader:
        assert reader.metrics(0) == {
            "round": 0,
            "clients": 3,
            "economy.gini": 0.125,
            "cluster_probe_accuracy.0": 0.5,
            "cluster_probe_accuracy.1": 0.75,
        }


def test_a_replay_is_recorded_once(place):
    store = worked_run(place)
    store.commit_opening(opening_transfers(HEADER["clients"], RULES["opening"]))
    store.commit_round(0, LINE, "checkpoint-0")
    assert count(store, "transfers") == 16
    assert count(store, "rounds") == 2


def test_writers_at_the_same_time_record_a_round_once(place):
    store = RunStore.create(place, "raced", HEADER)
    store.commit_opening(opening_transfers(HEADER["clients"], RULES["opening"]))
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(RunStore.open(place).commit_round, 0, LINE, None) for _ in range(4)]
        assert [one.result() for one in done] == [None] * 4
    assert count(store, "transfers") == 16


@pytest.mark.parametrize("changed", [{"clients": 4}, {"transfers": LINE["transfers"][:-1]}, {"seats": []}])
def test_another_content_for_a_posted_round_is_refused(place, changed):
    store = worked_run(place)
    with pytest.raises(StoreError, match="round 0 of run 'worked' is posted already, with another content"):
        store.commit_round(0, LINE | changed, "checkpoint-0")
    with pytest.raises(StoreError, match="another content"):
        store.commit_round(0, LINE, "checkpoint-x")
    assert list(store.lines()) == [LINE]


def test_rounds_are_posted_in_order(place):
    store = worked_run(place)
    with pytest.raises(StoreError, match="the next one is round 1"):
        store.commit_round(2, {}, None)
    with pytest.raises(StoreError, match="from 0"):
        store.commit_round(-1, {}, None)
    bare = RunStore.create(place if "://" in place else place + "/2", "bare", HEADER | {"rules": None})
    bare.commit_round(0, {"loss": 0.5}, None)
    with pytest.raises(StoreError, match="round -1 cannot be posted: the next one is round 1"):
        bare.commit_opening([])


def test_a_method_without_a_market_posts_lines_only(place):
    store = RunStore.create(place, "plain", {"method": "fedavg", "clients": [0, 1]})
    assert (store.last_round(), list(store.lines())) == (None, [])
    lines = [{"round": 0, "by": {10: 1.5, 9: 2}}, {"round": 1, "empty": [], "none": None, "transfers": ()}]
    for number, line in enumerate(lines):
        store.commit_round(number, line, None)
    # What JSON makes of it: names of numbers are text.
    assert list(store.lines()) == [{"round": 0, "by": {"10": 1.5, "9": 2}}, lines[1]]
    assert store.balances() == {0: 0, 1: 0, -1: 0}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"loss": float("nan")}, "round 0 cannot be kept as JSON"),
        ({"what": object()}, "round 0 cannot be kept as JSON"),
        ({"transfers": [["gift", 1, 2, 3, 0, 1]]}, r"transfers should be rows \[kind, source, target"),
        ({"transfers": [["bid", 2, -2, 1.5, 0, 2]]}, "1.5 is not a whole number"),
        ({"seats": None}, r"seats should be rows \[client, cluster, how, delivered"),
        ({"contributions": [[2, 0, float("inf"), 1]]}, "inf is not a finite number"),
        ({"bids": [[1, 2]]}, r"bids should be rows \[client, cluster, rank"),
        ({"contributions": {"0": 1}}, r"contributions should be rows \[client, cluster, psi, omega"),
        ({"best_before": [1]}, r"best_before should be rows \[cluster, value\]"),
    ],
)
def test_a_line_of_another_shape_is_refused(place, line, complaint):
    store = RunStore.create(place, "odd", HEADER)
    with pytest.raises(StoreError, match=complaint):
        store.commit_round(0, line, None)
    assert store.last_round() is None


def test_runs_share_a_database(place):
    here = place if "://" in place else place + ".db"
    first, second = worked_run(here, "first"), worked_run(here, "second")
    second.commit_round(1, {"round": 1}, None)
    assert (first.last_round(), second.last_round()) == (0, 1)
    assert first.head() != second.head()  # the chain begins with the run's name
    assert RunStore.open(here, "first").balances() == first.balances()
    with pytest.raises(InputError, match="holds first, second; name one of these runs"):
        RunStore.open(here)
    with pytest.raises(InputError, match="no run 'third'; it holds first, second"):
        RunStore.open(here, "third")
    with pytest.raises(InputError, match="already holds a run 'first'"):
        RunStore.create(here, "first", HEADER)


@pytest.mark.parametrize(
    ("name", "header", "complaint"),
    [
        ("", HEADER, "printable name"),
        ("a\nb", HEADER, "printable name"),
        ("run", {}, "needs clients"),
        ("run", {"clients": [1, 1]}, "twice"),
        ("run", {"clients": [-1]}, "needs clients"),
        ("run", {"clients": [1], "x": {1}}, "JSON"),
        ("run", {"clients": [1], "rules": ["price"]}, "rules that are not a mapping"),
    ],
)
def test_a_run_that_makes_no_sense_is_not_entered(place, name, header, complaint):
    with pytest.raises(InputError, match=complaint):
        RunStore.create(place, name, header)


@pytest.mark.parametrize("here", [5, None])
def test_a_store_of_another_format_is_refused(place, here):
    """In one line, by who reads and by who would add a run."""
    store = worked_run(place)
    with store.engine.begin() as connection:
        connection.execute(
            text("DELETE FROM ipfl_store" if here is None else "UPDATE ipfl_store SET format = 5")
        )
    words = r"was written by another version of ipfl \(format (5|unknown); this one reads format 4\)$"
    for refused in (RunStore.open, lambda where: RunStore.create(where, "other", HEADER)):
        with pytest.raises(InputError, match=words) as caught:
            refused(place)
        assert len(str(caught.value).splitlines()) == 1


def test_a_store_from_before_formats_had_a_table_is_refused(place, tmp_path):
    (tmp_path / "run").mkdir()
    with make_engine(parse_address(place)).begin() as connection:
        connection.execute(text("CREATE TABLE ipfl_schema (version_num TEXT)"))
    with pytest.raises(InputError, match="another version of ipfl"):
        RunStore.open(place)


def test_no_store_where_none_was_made(place, tmp_path):
    with pytest.raises(InputError, match="no run store"):
        RunStore.open(place)
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "run.db").write_text("not a database, but long enough to be looked at as if it were one" * 20)
    with pytest.raises(StoreError, match="is not a run store"):
        RunStore.open(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        RunStore.create(tmp_path / "file" / "run", "run", HEADER)


def test_a_wrong_address_is_said_at_once():
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"cannot enter run 'run': failed in .*[Cc]onnection refused"):
        RunStore.create("postgresql://me@127.0.0.1:1/x", "run", HEADER)
    assert time.monotonic() - started < 5


def test_zero_has_one_sign(place):
    """SQLite makes 0 of −0: the hash must not depend on it."""
    store = RunStore.create(place, "signed", {"clients": [2]})
    line = {"contributions": [[2, 0, -0.0, 1]], "best_before": [[0, -0.0]], "loss": -0.0}
    store.commit_round(0, line, None)
    assert verify_run(store) is None


def test_a_password_is_not_in_complaints():
    with pytest.raises(StoreError) as caught:
        RunStore.open("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__  # the original may hold the whole URL
    with pytest.raises(InputError) as unread:
        RunStore.open("postgresql://me:secret@[::1/x")
    assert "secret" not in str(unread.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("mysql://me:secret@db/x", "not mysql://"), ("sqlite://", "would be lost"), ("x://", "not x://")],
)
def test_other_addresses_are_refused(url, complaint):
    with pytest.raises(InputError, match=complaint):
        parse_address(url)


def test_sqlite_writes_ahead(tmp_path):
    with worked_run(str(tmp_path)).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    assert (tmp_path / "run.db").is_file()
