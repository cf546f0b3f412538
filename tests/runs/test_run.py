"""The round loop: who is told what, who leaves, and what is left after Ctrl-C."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ipfl
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Ask, Record, Round
from ipfl.errors import InputError
from ipfl.methods.fedavg import FedAvg
from ipfl.runs.config import ClientsConfig, EvaluateConfig


@pytest.fixture(scope="module")
def task():
    return Task.load(clients=6, samples=20, test_samples=20, model="softmax")


def go(task, method=None, **options):
    options = {"rounds": 3, "workers": 0, "evaluate": EvaluateConfig(every=1)} | options
    return ipfl.run(task, method or FedAvg(), **options)


class Witness:
    def __init__(self):
        self.heard = []

    def start(self, method, rounds):
        self.heard.append(("start", method, rounds))

    def round(self, line):
        self.heard.append(("round", line["round"]))

    def finish(self):
        self.heard.append(("finish",))


class Interrupted(FedAvg):
    """Ctrl-C in the middle of round 2, after its replies came in."""

    def round(self, state, roster, round):
        done = yield from super().round(state, roster, round)
        if round == 2:
            raise KeyboardInterrupt
        return done


class Broken(FedAvg):
    def round(self, state, roster, round):
        yield Ask("train", {})
        raise RuntimeError("out of luck")


class Chatty(FedAvg):
    """Two phases, one of them to the server's own holdout."""

    def round(self, state, roster, round):
        yield Ask("size", {0: Record({}, {"who": "client"}), -1: Record({}, {"who": "server"})})
        replies = yield Ask("size", {1: Record({}, {"who": "client"})})
        return Round(state, {"sizes": [reply.facts["n"] for reply in replies.values()]}, ("said aloud",))

    def on_size(self, ask, mine, me):
        return Record({}, {"n": len(me.data("train"))}), mine


class TestRun:
    def test_the_observer_hears_everything_in_order(self, task):
        witness = Witness()
        go(task, observer=witness)
        rounds = [("round", 0), ("round", 1), ("round", 2)]
        assert witness.heard == [("start", "fedavg", 3), *rounds, ("finish",)]

    def test_and_the_end_when_it_fails(self, task):
        witness = Witness()
        with pytest.raises(RuntimeError, match="out of luck"):
            go(task, Broken(), observer=witness)
        assert witness.heard[-1] == ("finish",)

    def test_interrupted(self, task, tmp_path):
        whole, cut = go(task), go(task, Interrupted(), out=tmp_path)
        assert cut.summary["interrupted"] is True
        assert whole.summary["interrupted"] is False
        assert cut.summary["rounds"] == 2
        assert cut.history == whole.history[:2], "a round counts whole or not at all"
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
        assert cut.summary["evaluated_round"] == 1
        assert cut.personalized_accuracy == pytest.approx(
            whole.history[1]["evaluation"]["personalized_accuracy"]["mean"]
        )

    def test_interrupted_before_the_first_evaluation(self, task):
        result = go(task, Interrupted(), evaluate=EvaluateConfig(every=3))
        assert result.personalized_accuracy is None
        assert result.last is None

    def test_budget_of_trainings(self, task):
        assert [len(line["seats"]) for line in go(task).history] == [3, 3, 3], "half of 6 by default"
        five = go(task, train=TrainConfig(per_round=5))
        assert [len(line["seats"]) for line in five.history] == [5, 5, 5]

    def test_phases_and_traffic(self):
        """What is asked of the server's own holdout does not travel."""
        task = Task.load(clients=3, samples=20, test_samples=5, server_samples=4, model="softmax")
        (line,) = go(task, Chatty(), rounds=1).history
        n = task.data.sizes(1)["train"]
        assert line["sizes"] == [n]
        assert line["events"] == ["said aloud"]
        assert line["bytes_down"] == 2 * len('{"who": "client"}')
        assert line["bytes_up"] == 2 * len(f'{{"n": {n}}}')

    def test_seed_decides_everything(self, task):
        one, same, other = (go(task, seed=seed) for seed in (1, 1, 2))
        assert one.history == same.history
        assert one.models["global"].tobytes() == same.models["global"].tobytes()
        assert one.models["global"].tobytes() != other.models["global"].tobytes()

    def test_training_helps(self, task):
        """Ten classes: guessing is right one time in ten."""
        assert go(task, rounds=10, train=TrainConfig(lr=1.0)).personalized_accuracy > 0.25


@pytest.fixture(scope="module")
def reference(task):
    return go(task)


class TestLeaving:
    def better_for(self, reference, happy):
        """A reference that only the `happy` clients find worse than FedAvg itself."""
        return replace(
            reference,
            evaluations={
                round: replace(one, personalized={i: -1.0 if i in happy else 1.0 for i in one.personalized})
                for round, one in reference.evaluations.items()
            },
        )

    def test_whoever_gains_nothing_leaves_after_the_grace_period(self, task, reference):
        rival = self.better_for(reference, {0, 3})
        clients = ClientsConfig(leave=True, grace=1)
        result = go(task, reference=rival, clients=clients)
        # Evaluated after rounds 0, 1, 2; round 1 is the first after the grace period.
        assert [line["clients"] for line in result.history] == [6, 6, 2]
        assert [client for client, *_ in result.history[2]["seats"]] == [0, 3]
        assert result.summary["left"] == 4
        assert result.summary["opt_outs"] == 4

    def test_nobody_leaves_unless_asked_to(self, task, reference):
        result = go(task, reference=self.better_for(reference, set()))
        assert [line["clients"] for line in result.history] == [6, 6, 6]
        assert result.summary["opt_outs"] == 6

    def test_leaving_needs_a_reference(self, task, tmp_path):
        with pytest.raises(InputError, match="needs a reference run"):
            go(task, clients=ClientsConfig(leave=True), out=tmp_path / "out")

    def test_the_reference_s_newest_evaluation_counts(self, task):
        every_second = go(task, evaluate=EvaluateConfig(every=2))
        assert sorted(every_second.evaluations) == [1, 2]
        assert every_second.reference(0) is None
        assert every_second.reference(1) == every_second.evaluations[1].personalized
        assert every_second.reference(9) == every_second.evaluations[2].personalized
