"""Rounds that are rolled back: too few clients delivered, nothing is learned or paid, every bid goes back."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.methods.ipfl_plus.scripted import setup
from tests.small_runs import run_small, small_task
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.config.run_config import FaultsConfig
from ipfl.config.train_section import TrainConfig
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.store import RunStore
from ipfl.market.market_rows import Bid, Market, Transfer
from ipfl.stress.faults import FaultPlan

GONE = FaultsConfig(dropout=1, dropout_when=["during"])


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


def falls_short(plan, round):
    """Whether any of the 6 clients of a round sends no update."""
    return any(plan.fault(round, client) in ("before", "during") for client in range(6))


class TestMarket:
    def test_bids_are_returned_and_nothing_is_paid(self, task, tmp_path):
        method = ipfl.method("ipfl-plus")
        result = run_small(task, method, tmp_path / "run", rounds=4, faults=GONE)
        assert all(line["rolled_back"] for line in result.history)
        for line in result.history:
            kinds = Counter(transfer.kind for transfer in line["transfers"])
            assert set(kinds) <= {"bid", "refund"}
            assert kinds["bid"] == kinds["refund"] == len(line["bids"])
            assert not {"contributions", "economy", "reimbursed_share"} & set(line)
            assert {seat.delivered for seat in line["seats"]} == {False}
            assert (line["events"][0].kind, line["events"][0].client) == ("rolled_back", None)
        assert sum(len(line["bids"]) for line in result.history) > 0
        assert set(result.summary["report"]["balances"]) == {10_000}
        store = RunStore.open(tmp_path / "run")
        assert verify_run(store) is None
        shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "run")])
        assert "Rounds 0, 1, 2, 3 were rolled back" in shown.output
        shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "run"), "--round", "2"])
        assert "Round 2 was rolled back" in shown.output

    def test_bids_that_nobody_could_pay_for_are_dropped(self):
        """Price 10, 15 tokens each: one bid goes into escrow and back."""
        method = ipfl.method("ipfl-plus", payment={"price": 10, "opening": 15})
        # Client 3 wants cluster 1 most (its escrow is account −4), then cluster 0, and can pay for one.
        bids = (Bid(3, 0, 1), Bid(3, 1, 0))
        played = Market(
            (Transfer("bid", 3, -4, 10, 1, 3), Transfer("bid", 3, -3, 10, 0, 3)), bids, economy={}
        )
        assert method.roll_back(method.init(setup()), played) == Market(
            (Transfer("bid", 3, -4, 10, 1, 3), Transfer("refund", -4, 3, 10, 1, 3)), bids
        )

    def test_before_the_market_opens(self, tmp_path):
        task = small_task(seed=3, server_samples=10)
        method = ipfl.method("ipfl", initial_clustering=True, pretrain=2)
        result = run_small(task, method, tmp_path / "run", rounds=2, faults=GONE)
        assert [(line["rolled_back"], line["transfers"]) for line in result.history] == [(True, ())] * 2
        store = RunStore.open(tmp_path / "run")
        assert verify_run(store) is None


def test_fewer_than_min_clients(task):
    """6 clients, all asked: with 6 needed, a round counts only if no one drops out."""
    faults, train = FaultsConfig(dropout=0.1), TrainConfig(per_round=6, min_clients=6)
    result = run_small(task, "fedavg", rounds=12, train=train, faults=faults)
    short = [falls_short(FaultPlan(faults, 0), round) for round in range(12)]
    assert [line.get("rolled_back", False) for line in result.history] == short
    assert {*short} == {True, False}


def test_what_clients_remember_of_it_is_taken_back(task, tmp_path):
    """Two rounds count, the third is rolled back: its clients are left with what the second one gave them."""
    faults = FaultsConfig(dropout=0.05)
    plans = ((seed, FaultPlan(faults, seed)) for seed in range(10**4))
    seed = next(s for s, plan in plans if [falls_short(plan, r) for r in range(3)] == [False, False, True])
    options = {"seed": seed, "train": TrainConfig(per_round=6, min_clients=6), "faults": faults}
    remembered = []
    for rounds in (2, 3):
        out = tmp_path / str(rounds)
        result = run_small(task, "local", out, rounds=rounds, **options)
        newest = sorted((out / "memory").glob("*/*.safetensors"), key=lambda path: int(path.stem))
        remembered.append({path.parent.name: path.read_bytes() for path in newest})
    assert [line.get("rolled_back") for line in result.history] == [None, None, True]
    assert len(remembered[0]) == 6
    assert remembered[0] == remembered[1]


def test_a_round_that_is_rolled_back_is_evaluated_as_usual(task):
    evaluate = ipfl.EvaluateConfig(every=1)
    result = run_small(task, "fedavg", rounds=3, faults=GONE, evaluate=evaluate)
    assert len(result.evaluations) == 3
    assert len({str(line["evaluation"]) for line in result.history}) == 1, "nothing was learned"
