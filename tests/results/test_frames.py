"""A result as tables, and how it shows itself."""

from __future__ import annotations

import sys

import pytest
from tests.small_runs import run_small, small_task

import ipfl
from ipfl.core import NO_CLUSTER, Event, Seat
from ipfl.errors import InputError
from ipfl.ledger.store import RunStore
from ipfl.market.market_rows import Transfer
from ipfl.play.metrics import Evaluation
from ipfl.results.result import Result, mean_and_spread


@pytest.fixture(scope="module")
def made_up():
    """Two rounds of three clients, one of them unseen, and a few tokens."""
    evaluation = Evaluation(1, {0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5}, None, 1.0, {2: 0.125}, {0: 1.0})
    history = [
        {
            "round": 0,
            "clients": 2,
            "seats": (Seat(0, 0, "random", True), Seat(1, 1, "random", False)),
            "transfers": (Transfer("bid", 0, -2, 30, 0, 0), Transfer("reward", -3, 1, 5, 0, 1)),
            "events": (Event("no_answer", 1, "did not answer"),),
            "bytes_down": 10,
            "bytes_up": 5,
        },
        {
            "round": 1,
            "clients": 2,
            "seats": (Seat(0, 0, "random", True), Seat(0, 1, "random", True)),
            "transfers": (),
            "events": (),
            "bytes_down": 8,
            "bytes_up": 6,
            "evaluation": evaluation.figures() | evaluation.line(),
        },
    ]
    opening = (Transfer("open", -1, 0, 100, NO_CLUSTER, 0), Transfer("open", -1, 1, 100, NO_CLUSTER, 1))
    summary = {"method": "m", "dataset": "toy", "partition": "own", "clients": 3, "rounds": 2, "seed": 0}
    return Result(summary | evaluation.figures(), history, {1: evaluation}, None, {}, opening)


@pytest.mark.parametrize(
    "mean, spread, text",
    [(6.0921, 0.4149, "6.092 ± 0.41"), (123456.7, 234.5, "123457 ± 234"), (0, 0, "0 ± 0")],
)
def test_figures_in_units_are_short(mean, spread, text):
    assert mean_and_spread(mean, spread) == text


class TestTables:
    def test_clients(self, made_up):
        table = made_up.clients().set_index("client")
        assert table["accuracy"].to_dict() == {0: 0.5, 1: 0.75, 2: 0.125}
        assert table["global_accuracy"].fillna(-1).to_dict() == {0: 0.25, 1: 0.5, 2: -1}
        assert table["goal_accuracy"].fillna(-1).to_dict() == {0: 1.0, 1: -1, 2: -1}
        assert table["unseen"].to_dict() == {0: False, 1: False, 2: True}
        assert table["asked"].to_dict() == {0: 3, 1: 1, 2: 0}
        assert table["trained"].to_dict() == {0: 3, 1: 0, 2: 0}
        assert table["tokens"].to_dict() == {0: 70, 1: 105, 2: 0}
        assert table["paid"].to_dict() == {0: 30, 1: 0, 2: 0}
        assert table["earned"].to_dict() == {0: 0, 1: 5, 2: 0}
        assert table["returned"].to_dict() == {0: 0, 1: 0, 2: 0}

    def test_numbers_are_told_in_their_units(self):
        """A regression has a score and its metrics, no accuracy."""
        clients = [([[0.0], [1.0]] * 8, [10.0, 30.0] * 8)] * 2
        task = ipfl.Task.from_clients(clients, predict="regression", model="softmax")
        shown = repr(run_small(task, rounds=1))
        assert "  score  " in shown
        assert "  mae  " in shown
        assert "accuracy" not in shown

    def test_columns_without_a_value_are_numbers(self, made_up):
        """An object column of None has no mean."""
        assert made_up.rounds()["pma"].dtype == "float64"

    def test_names_of_clients(self, made_up, monkeypatch):
        assert "name" not in made_up.clients().columns
        monkeypatch.setitem(made_up.summary, "client_names", {"0": "Bern", "1": "Chur"})
        clients, ledger = made_up.clients(), made_up.ledger()
        assert list(clients.columns[:2]) == ["client", "name"]
        assert clients["name"].fillna("").tolist() == ["Bern", "Chur", ""]
        assert ledger["name"].tolist() == [{0: "Bern", 1: "Chur"}[client] for client in ledger["client"]]

    def test_rounds(self, made_up):
        table = made_up.rounds()
        assert table["round"].tolist() == [0, 1]
        assert table["asked"].tolist() == [2, 1]
        assert table["trained"].tolist() == [1, 1]
        assert table["personalized_accuracy"].fillna(-1).tolist() == [-1, 0.625]
        assert table["tokens_moved"].tolist() == [35, 0]
        assert table["events"].tolist() == [1, 0]
        assert table["rolled_back"].tolist() == [False, False]

    def test_ledger(self, made_up):
        table = made_up.ledger()
        assert table["round"].tolist() == [-1, -1, 0, 0]
        assert table["source"].tolist() == ["issuer", "issuer", "client 0", "pool 0"]
        assert table["target"].tolist() == ["client 0", "client 1", "escrow 0", "client 1"]
        assert table["cluster"].isna().tolist() == [True, True, False, False]

    def test_they_say_what_the_store_says(self, tmp_path):
        """The balances, and every transfer in its place."""
        result = run_small(small_task(), "ipfl-plus", tmp_path / "run", rounds=3)
        store = RunStore.open(tmp_path / "run")
        with store.snapshot() as reader:
            posted = [(one.round, one.sequence, *one.transfer[3:4]) for one in reader.transfers()]
            balances = {client: account.balance for client, account in reader.accounts().items()}
        for one in (result, ipfl.load(tmp_path / "run")):
            ledger = one.ledger()
            assert list(zip(ledger["round"], ledger["sequence"], ledger["amount"], strict=True)) == posted
            clients = one.clients()
            assert clients.set_index("client")["tokens"].to_dict() == balances
            moved = clients["earned"] + clients["returned"] - clients["paid"]
            assert (clients["tokens"] == 10_000 + moved).all()
            assert clients["returned"].sum() > 0

    def test_a_method_without_tokens(self):
        result = run_small(small_task(), "fedavg", rounds=1)
        assert len(result.ledger()) == 0
        assert "kind" in result.ledger().columns
        assert "tokens" not in result.clients().columns

    def test_without_pandas(self, made_up, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(InputError, match=r'pip install "ipfl\[pandas\]"'):
            made_up.clients()


class TestShown:
    def test_repr_fits_a_cell(self):
        """The review found 94,300 characters."""
        result = run_small(small_task(), "ipfl-plus", rounds=2)
        text = repr(result)
        assert len(text.splitlines()) <= 12
        assert all(len(line) <= 80 for line in text.splitlines())
        assert "ipfl-plus" in text
        assert "cluster_0, cluster_1" in text
