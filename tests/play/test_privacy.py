"""`[privacy]` in whole runs: what is reported, who stops, what is refused, and that a seed decides it all."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.federation import ScriptedEngine, run_here
from tests.small_nets import LayerNormed

import ipfl
from ipfl.core import Ask, Record
from ipfl.core.replies import Count, ReplySchema
from ipfl.errors import InputError
from ipfl.methods import METHODS, method_class
from ipfl.play.driver import Traffic, exchange

DOCUMENT = Path(__file__).parent.parent.parent / "docs/privacy.md"
SMALL = {"rounds": 3, "evaluate": {"every": 100}, "train": {"per_round": 3, "epochs": 1}}


@pytest.fixture(scope="module")
def task():
    config = ipfl.Config.load(None, ["task.clients=4", "task.model=softmax", "task.samples=30"])
    return ipfl.Task.build(config.task, 0)


def private_run(task, method, out=None, **privacy):
    return run_here(task, ipfl.method(method), out=out, **SMALL, privacy={"noise": 1.0, **privacy})


@pytest.fixture(scope="module")
def result(task, tmp_path_factory):
    return private_run(task, "fedavg", out=tmp_path_factory.mktemp("private") / "run")


class TestReport:
    def test_epsilon_by_round_and_client(self, result):
        lines = [dict(line["epsilon"]) for line in result.history]
        assert all(
            {*line} == {seat.client for seat in told["seats"]}
            for line, told in zip(lines, result.history, strict=True)
        )
        latest = {}
        for line in lines:
            for client, epsilon in line.items():
                assert epsilon > latest.get(client, 0)
                latest[client] = epsilon
        privacy = result.summary["privacy"]
        assert privacy["epsilon"] == {str(client): latest[client] for client in sorted(latest)}
        assert privacy["largest_epsilon"] == max(latest.values())
        # 24 points in one batch of 32 are one step per round: the first costs what one Gaussian does.
        assert min(lines[0].values()) == pytest.approx(4.75, abs=0.01)

    def test_without_noise_nothing_is_said(self, task):
        plain = run_here(task, ipfl.method("fedavg"), **{**SMALL, "rounds": 1})
        assert plain.summary["privacy"] is None
        assert "epsilon" not in plain.history[0]

    def test_workers_change_nothing(self, task, result):
        config = ipfl.RunConfig(**SMALL, privacy={"noise": 1.0})
        other = ipfl.run(task, ipfl.method("fedavg"), config, engine=ipfl.local_engine(workers=2))
        assert [line["epsilon"] for line in other.history] == [line["epsilon"] for line in result.history]
        assert np.array_equal(other.models["global"], result.models["global"])


class TestBudget:
    def test_a_client_stops_before_it_is_exceeded(self, task):
        # One step: ε = 4.75. Two: more than 6.
        stopped = private_run(task, "fedavg", epsilon=6.0)
        events = [
            event for line in stopped.history for event in line["events"] if event.kind == "budget_spent"
        ]
        assert stopped.summary["privacy"]["largest_epsilon"] == pytest.approx(4.75, abs=0.01)
        assert stopped.summary["privacy"]["spent"] == sorted({event.client for event in events}) != []

    def test_needs_noise(self):
        with pytest.raises(InputError, match=r"privacy\.epsilon needs privacy\.noise"):
            ipfl.RunConfig(privacy={"epsilon": 1.0})


class TestWhoSpeaksOfPrivacy:
    def ask(self, **facts):
        traffic = Traffic()
        engine = ScriptedEngine({"train": lambda client, sent: Record({}, {"n": 1, **facts})})
        found = exchange(Ask("train", {0: Record()}, ReplySchema({"n": Count})), engine, 0, traffic)
        return found, traffic

    def test_it_is_taken_out_before_the_method_sees_the_reply(self):
        found, traffic = self.ask(epsilon=2.5)
        assert found[0].facts == {"n": 1}
        assert traffic.epsilon == {0: 2.5}

    @pytest.mark.parametrize("claim", ["much", -1.0, float("nan"), [1.0], None, True])
    def test_a_claim_that_is_no_number(self, claim):
        found, traffic = self.ask(epsilon=claim)
        assert not found
        assert [event.kind for event in traffic.events()] == ["invalid_reply"]

    def test_a_spent_budget_is_no_answer(self):
        found, traffic = self.ask(epsilon=2.5, budget_spent=True)
        assert not found
        assert [event.kind for event in traffic.events()] == ["budget_spent"]


def methods_said_to_be(word):
    """Those that docs/privacy.md lists as `possible` or `refused`."""
    (said,) = re.findall(rf"^- \*\*{word}\*\*: (.*?)(?=^-|^$)", DOCUMENT.read_text(), re.M | re.S)
    return [name for name in re.findall(r"`([\w-]+)`", said) if name in METHODS]


@pytest.mark.slow
class TestWhichMethods:
    def play(self, task, name):
        if method_class(name).needs_parts:
            task = replace(task, factory=LayerNormed)
        return run_here(task, ipfl.method(name), **{**SMALL, "rounds": 2}, privacy={"noise": 1.0})

    @pytest.mark.parametrize("name", methods_said_to_be("Possible"))
    def test_possible(self, task, name):
        assert self.play(task, name).summary["privacy"]["largest_epsilon"] > 0

    @pytest.mark.parametrize("name", methods_said_to_be("Refused"))
    def test_refused(self, task, name):
        with pytest.raises(InputError, match=r"^\[privacy\] (needs|cannot protect)"):
            self.play(task, name)


def test_contributions_by_the_gradient(task):
    method = ipfl.method("ipfl-plus", contribution={"rule": "paper"})
    result = run_here(task, method, **SMALL, privacy={"noise": 1.0})
    assert result.summary["privacy"]["largest_epsilon"] > 0
