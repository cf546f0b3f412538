"""Stores that are opened for reading only: nothing can be written, nothing is upgraded."""

import pytest
from tests.ledger.example_runs import BALANCES, LINE, worked_run

from ipfl.console.app import open_console
from ipfl.console.figures import run_row
from ipfl.ledger.database import StoreError
from ipfl.ledger.store import RunStore


def test_it_is_read_and_not_written(place):
    worked_run(place).close()
    with RunStore.open(place, read_only=True, retry_seconds=0) as store:
        assert {i: store.balances()[i] for i in BALANCES} == BALANCES
        with pytest.raises(StoreError, match=r"read-?only"):
            store.commit_round(1, {**LINE, "round": 1}, "checkpoint-1")
        assert store.last_round() == 0


def test_what_is_posted_meanwhile_is_seen(place):
    with worked_run(place) as writer, RunStore.open(place, read_only=True) as store:
        assert store.last_round() == 0
        writer.commit_round(1, {**LINE, "round": 1}, "checkpoint-1")
        assert store.last_round() == 1


def test_console_of_a_postgresql_database(postgresql):
    url = postgresql()
    worked_run(url, "first").close()
    worked_run(url, "second", rounds=3).close()
    console = open_console(None, url, "127.0.0.1", auth=False)
    rows = {key: run_row(console.runs, found) for key, found in console.runs.find().items()}
    assert {key: (row.done, row.rounds, row.state, row.tokens) for key, row in rows.items()} == {
        "first": (1, 1, "finished", 75),
        "second": (1, 3, "unfinished", 75),  # no news since the console looked for the first time
    }
    with console.runs.read(console.find("second")) as (_, reader):
        from ipfl.console.auction import round_detail
        from ipfl.console.client_page import movements
        from ipfl.console.figures import flow, series
        from ipfl.console.transfers import Search, find_transfers

        assert round_detail(reader, {}, 0, 0, 50).total == 5
        assert movements(reader, 2, None, 10).movements[0].balance == 28
        assert find_transfers(reader, {}, Search(kind="reward"), 0, 10).total == 3
        assert flow(reader).links == []
        assert series(reader).round == [0]
