"""Runs in the store: what goes in comes out, once and only once."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.ledger.example_runs import BALANCES, HEADER, LINE, opened_run, worked_run

from ipfl.errors import InputError
from ipfl.ledger.database import StoreError
from ipfl.ledger.store import RunStore


def count(store, table):
    with store.snapshot() as reader:
        return reader.column(f"SELECT count(*) FROM {table}")[0]


def test_a_run_comes_back_as_it_was_posted(place):
    worked_run(place)
    store = RunStore.open(place)
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


def test_transfers_by_client_and_by_round(place):
    store = worked_run(place)
    assert tuple(posted.transfer for posted in store.transfers(round=0)) == LINE["transfers"]
    mine = store.transfers(client=5)
    assert [(one.round, one.sequence) for one in mine] == [(-1, 1), *((0, n) for n in (2, 5, 7, 9, 11))]
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


def test_whoever_posts_a_round_again_changes_nothing(place):
    """As after a commit whose result is not known; even at the same time."""
    store = opened_run(place)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(RunStore.open(place).commit_round, 0, LINE) for _ in range(4)]
        assert [one.result() for one in done] == [None] * 4
    assert (count(store, "transfers"), count(store, "rounds")) == (16, 2)


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
        store.commit_round(2, {})
    with pytest.raises(StoreError, match="from 0"):
        store.commit_round(-1, {})
    bare = RunStore.create(place / "2", "bare", HEADER | {"rules": None})
    bare.commit_round(0, {"loss": 0.5})
    with pytest.raises(StoreError, match="round -1 cannot be posted: the next one is round 1"):
        bare.commit_opening([])


def test_a_method_without_a_market_posts_lines_only(place):
    store = RunStore.create(place, "plain", {"method": "fedavg", "clients": [0, 1]})
    assert (store.last_round(), list(store.lines())) == (None, [])
    lines = [{"round": 0, "by": {10: 1.5, 9: 2}}, {"round": 1, "empty": [], "none": None, "transfers": ()}]
    for number, line in enumerate(lines):
        store.commit_round(number, line)
    # What JSON makes of it: names of numbers are text.
    assert list(store.lines()) == [{"round": 0, "by": {"10": 1.5, "9": 2}}, lines[1]]
    assert store.balances() == {0: 0, 1: 0, -1: 0}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"loss": float("nan")}, "round 0 cannot be kept as JSON"),
        ({"what": object()}, "round 0 cannot be kept as JSON"),
        ({"seats": None}, r"seats should be rows \[client, cluster, how, delivered"),
    ],
)
def test_a_line_of_another_shape_is_refused(place, line, complaint):
    store = RunStore.create(place, "odd", HEADER)
    with pytest.raises(StoreError, match=complaint):
        store.commit_round(0, line)
    assert store.last_round() is None


@pytest.mark.parametrize(
    ("name", "header", "complaint"),
    [
        ("", HEADER, "printable name"),
        ("a\nb", HEADER, "printable name"),
        ("run", {}, "clients: Field required"),
        ("run", {"clients": [1, 1]}, "a client is named twice"),
        ("run", {"clients": [-1]}, "clients.0: Input should be greater than or equal to 0"),
        ("run", {"clients": [1], "x": {1}}, "JSON"),
        ("run", {"clients": [1], "rules": ["price"]}, "rules: Input should be an object"),
        ("run", {"clients": [1], "client_names": {"a": "b"}}, "client_names"),
    ],
)
def test_a_run_that_makes_no_sense_is_not_entered(place, name, header, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        RunStore.create(place, name, header)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("change", ["PRAGMA user_version = 6", "PRAGMA user_version = 0"])
def test_a_store_of_another_format_is_refused(place, change):
    store = worked_run(place)
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute(change)
    words = r"is no run store, or of another version of ipfl \(format [06]; this one reads format 5\)$"
    with pytest.raises(InputError, match=words):
        RunStore.open(place)
