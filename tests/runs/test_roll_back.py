"""Void rounds: too few clients delivered, so nothing is learned, nothing is paid, and every bid goes back."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.methods.ipfl.scripted import setup
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.ledger import RunStore, verify
from ipfl.stress.faults import FaultPlan
from ipfl.stress.settings import FaultsConfig

TINY = {"clients": 6, "samples": 20, "test_samples": 20, "model": "softmax"}
GONE = FaultsConfig(dropout=1, dropout_when=["during"])


@pytest.fixture(scope="module")
def task():
    return Task.load(**TINY, seed=3)


def falls_short(plan, round):
    """Whether any of the 6 clients of a round sends no update."""
    return any(plan.fate(round, client) in ("before", "during") for client in range(6))


class TestMarket:
    def test_bids_are_returned_and_nothing_is_paid(self, task, tmp_path):
        result = ipfl.run(
            task,
            ipfl.method("ipfl", allowance=7),
            rounds=4,
            faults=GONE,
            workers=0,
            out=tmp_path / "run",
        )
        assert all(line["void"] for line in result.history)
        for line in result.history:
            kinds = Counter(kind for kind, *_ in line["transfers"])
            assert set(kinds) <= {"bid", "refund"}
            assert kinds["bid"] == kinds["refund"] == len(line["wanted"])
            assert not {"contributions", "economy", "reimbursed_share"} & set(line)
            assert {did for *_, did in line["seats"]} == {False}
            assert line["events"][0] == "the round is void: 0 of the 1 clients that it needs delivered"
        assert sum(len(line["wanted"]) for line in result.history) > 0
        assert set(result.summary["report"]["balances"]) == {10_000}
        with RunStore.open(tmp_path / "run") as store:
            assert verify(store) is None
        shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "run")])
        assert "Rounds 0, 1, 2, 3 were void: all bids went back, nobody was paid." in shown.output
        shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "run"), "--round", "2"])
        assert "Round 2 was void" in shown.output

    def test_whoever_could_pay_only_out_of_the_allowance_did_not_bid(self):
        """Price 10, 15 tokens each, allowance 5: two bids in a round that counts, one in a void one."""
        method = ipfl.method("ipfl", price=10, opening=15, allowance=5)
        # Client 3 wants cluster 1 most (its escrow is account −4), then cluster 0, and can pay for one.
        facts = {"wanted": [[3, 0, 1], [3, 1, 0]], "seats": [[3, 1, "performance", True]], "economy": {}}
        assert method.void(method.init(setup()), facts) == {
            "wanted": [[3, 0, 1], [3, 1, 0]],
            "seats": [[3, 1, "performance", False]],
            "transfers": [["bid", 3, -4, 10, 1, 3], ["refund", -4, 3, 10, 1, 3]],
        }

    def test_before_the_market_opens(self, task, tmp_path):
        method = ipfl.method("ipfl", warmup=2)
        result = ipfl.run(task, method, rounds=2, faults=GONE, workers=0, out=tmp_path / "run")
        assert [(line["void"], line["transfers"]) for line in result.history] == [(True, [])] * 2
        with RunStore.open(tmp_path / "run") as store:
            assert verify(store) is None


def test_fewer_than_min_clients(task):
    """6 clients, all asked: with 6 needed, a round counts only if no one drops out."""
    faults, train = FaultsConfig(dropout=0.1), TrainConfig(per_round=6, min_clients=6)
    result = ipfl.run(task, ipfl.method("fedavg"), rounds=12, train=train, faults=faults, workers=0)
    short = [falls_short(FaultPlan(faults, 0), round) for round in range(12)]
    assert [line.get("void", False) for line in result.history] == short
    assert {*short} == {True, False}


def test_what_clients_remember_of_it_is_taken_back(task, tmp_path):
    """Two rounds count, the third is void: its clients are left with what the second one gave them."""
    faults = FaultsConfig(dropout=0.05)
    plans = ((seed, FaultPlan(faults, seed)) for seed in range(10**4))
    seed = next(s for s, plan in plans if [falls_short(plan, r) for r in range(3)] == [False, False, True])
    options = {"seed": seed, "train": TrainConfig(per_round=6, min_clients=6), "faults": faults, "workers": 0}
    remembered = []
    for rounds in (2, 3):
        out = tmp_path / str(rounds)
        result = ipfl.run(task, ipfl.method("local"), rounds=rounds, out=out, **options)
        newest = sorted((out / "memory").glob("*/*.safetensors"), key=lambda path: int(path.stem))
        remembered.append({path.parent.name: path.read_bytes() for path in newest})
    assert [line.get("void") for line in result.history] == [None, None, True]
    assert len(remembered[0]) == 6
    assert remembered[0] == remembered[1]


def test_a_void_round_is_evaluated_as_usual(task):
    evaluate = ipfl.EvaluateConfig(every=1)
    result = ipfl.run(task, ipfl.method("fedavg"), rounds=3, faults=GONE, evaluate=evaluate, workers=0)
    assert len(result.evaluations) == 3
    assert len({str(line["evaluation"]) for line in result.history}) == 1, "nothing was learned"
