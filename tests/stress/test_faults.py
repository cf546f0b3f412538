"""Faults, injected and survived: each kind alone and what must happen, all together in a killed run."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.play.killed_runs import die_at_call, is_killed, run_contents, run_six_rounds
from tests.small_runs import ask_anything, run_small, small_engine, small_task

import ipfl
from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ASSESS, EVALUATE, ClientRunner, Job
from ipfl.config.run_config import FaultsConfig, StrategyConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import NO_CLUSTER, Ask, Method, Record, Round, Seat
from ipfl.core.replies import ReplySchema
from ipfl.errors import InputError
from ipfl.ledger.store import RunStore
from ipfl.stress import make_wrapper
from ipfl.stress.faults import ENORMOUS_COMPONENT, FaultPlan, Faulty, break_reply

ALL = {"dropout": 0.3, "slow": 0.05, "crash": 0.05, "broken": 0.1}
BROKEN = ("nan", "infinite", "shape", "enormous")


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


SAME_VECTORS = ReplySchema(
    {"done": list[str]}, lambda sent, facts: {name: len(vector) for name, vector in sent.params.items()}
)


class Phases(Method):
    """Three phases; a client remembers every one that it worked in."""

    name = "phases"
    summary = "for tests of faults"

    def init(self, setup):
        return setup.params

    def round(self, state, roster, round):
        everyone = dict.fromkeys(roster.clients, Record({"m": state}))
        delivered = set()
        for action in ("prepare", "train", "judge"):
            delivered |= set((yield Ask(action, everyone, SAME_VECTORS)))
        seats = (Seat(client, NO_CLUSTER, "random", client in delivered) for client in roster.clients)
        return Round(state + 1, tuple(seats))

    def offer(self, state, client):
        return Record({"global": state})

    def personalize(self, offer, mine, me):
        return offer.params["global"]

    def _work(self, ask, mine, me):
        done = [*mine.facts.get("done", []), f"{me.round} {me.action}"]
        return Record(ask.params, {"done": done}), Record({}, {"done": done})

    on_prepare = on_train = on_judge = _work


class TestPlan:
    def test_a_pure_function_of_seed_round_and_client(self):
        config = FaultsConfig(**ALL)
        faults = [
            [FaultPlan(config, seed).fault(r, c) for r in range(20) for c in range(20)] for seed in (1, 1, 2)
        ]
        assert faults[0] == faults[1] != faults[2]
        broken = [FaultPlan(config, 1).breakage(a, r, 0) for a in ("train", "judge") for r in range(50)]
        assert broken[:50] != broken[50:]

    def test_shares_are_what_was_asked_for(self):
        """10 000 draws: a share p comes out within 4 standard deviations, 4·√(p(1−p)/10 000) ≤ 0.02."""
        plan = FaultPlan(FaultsConfig(dropout=0.3, slow=0.2, crash=0.1, broken=0.05), 0)
        counts = Counter(plan.fault(r, c) for r in range(100) for c in range(100))
        expected = {"before": 0.1, "during": 0.1, "after": 0.1, "slow": 0.2, "crash": 0.1, None: 0.4}
        assert {fault: count / 10_000 for fault, count in counts.items()} == pytest.approx(expected, abs=0.02)
        kinds = Counter(plan.breakage("train", r, c) for r in range(100) for c in range(100))
        expected = dict.fromkeys((*BROKEN, "duplicate"), 0.01) | {None: 0.95}
        assert {kind: count / 10_000 for kind, count in kinds.items()} == pytest.approx(expected, abs=0.01)

    def test_more_than_all_clients(self):
        with pytest.raises(InputError, match="more than 1 together"):
            FaultPlan(FaultsConfig(dropout=0.6, slow=0.3, crash=0.2), 0)

    def test_the_evaluator_and_the_server_itself_are_spared(self, tmp_path):
        task = small_task(server_samples=10)
        runner = ClientRunner(task, Phases(), TrainConfig(), 0, ClientMemory(tmp_path))
        faulty = Faulty(runner, FaultPlan(FaultsConfig(dropout=1, broken=1), 0))
        start = Record({"global": runner.initial})
        jobs = [
            Job(EVALUATE, 0, 0, start),
            Job(ASSESS, 0, 0, Record(start.params, {"limit": 5})),
            Job("judge", 0, -1, Record()),
        ]
        replies = [[delivery.reply.facts for delivery in faulty.deliver(job)] for job in jobs]
        assert [one["n"] for (one,) in replies[:2]] == [20, 5]
        assert replies[2] == [{"done": ["0 judge"]}]
        (delivery,) = faulty.deliver(Job("judge", 0, 1, Record()))
        assert delivery.reply is None


class TestBrokenReply:
    REPLY = Record({"m": np.arange(4, dtype=np.float32)}, {"n": 3})

    @pytest.mark.parametrize(
        ("kind", "number"), [("nan", np.nan), ("infinite", np.inf), ("enormous", ENORMOUS_COMPONENT)]
    )
    def test_one_component_of_a_vector(self, kind, number):
        broken = break_reply(self.REPLY, kind, np.random.default_rng(0)).params["m"]
        (wrong,) = np.flatnonzero(broken != self.REPLY.params["m"])
        assert np.array_equal(broken[wrong], np.float32(number), equal_nan=True)
        assert self.REPLY.params["m"].tolist() == [0, 1, 2, 3], "the client's own stays"

    def test_one_component_too_many(self):
        broken = break_reply(self.REPLY, "shape", np.random.default_rng(0))
        assert broken.params["m"].tolist() == [0, 1, 2, 3, 0]

    def test_facts_of_a_reply_without_vectors(self):
        rng, kept = np.random.default_rng(0), {"ok": True, "name": "x"}
        reply = Record({}, {"n": 3, "hits": [1.0, 2.0], **kept})
        large = ENORMOUS_COMPONENT
        assert break_reply(reply, "enormous", rng).facts == {"n": large, "hits": [large] * 2, **kept}
        assert break_reply(reply, "shape", rng).facts == {"n": 3, "hits": [1.0], **kept}
        assert break_reply(reply, "duplicate", rng) == reply


@pytest.mark.parametrize("workers", [0, 2])
class TestFates:
    """One round of three phases in which every client has the same fault."""

    @staticmethod
    def played(task, workers, tmp_path, **faults):
        plan = FaultPlan(FaultsConfig(**faults), 0)
        wrap = make_wrapper(None, plan, StrategyConfig(), 0)
        with small_engine(task, Phases(), workers=workers, memory=tmp_path / "memory", wrap=wrap) as engine:
            answered = [
                list(engine.ask(Ask(action, {0: Record(), 1: Record()}), 0))
                for action in ("prepare", "train", "judge")
            ]
            engine.ask(Ask("prepare", {}), 1)
            remembered = engine.runner.memory.load(0).facts.get("done", [])
            return answered, remembered, engine

    @staticmethod
    def kinds(engine):
        return [(event.kind, event.client) for event in engine.events]

    @pytest.mark.parametrize(
        ("when", "answered", "remembered"),
        [
            ("before", [[], [], []], []),
            ("during", [[0, 1], [], []], ["0 prepare"]),
            ("after", [[0, 1], [0, 1], []], ["0 prepare", "0 train"]),
        ],
    )
    def test_dropping_out(self, task, workers, tmp_path, when, answered, remembered):
        found = self.played(task, workers, tmp_path, dropout=1, dropout_when=[when])
        assert found[:2] == (answered, remembered)
        assert found[2].events == []  # that they did not answer is the loop's to say

    def test_too_slow(self, task, workers, tmp_path):
        answered, remembered, engine = self.played(task, workers, tmp_path, slow=1)
        assert answered == [[], [], []]
        assert remembered == ["0 prepare", "0 train", "0 judge"], "it did its work"
        assert self.kinds(engine) == [("late", 0), ("late", 1)] * 3

    def test_crashing(self, task, workers, tmp_path):
        answered, remembered, engine = self.played(task, workers, tmp_path, crash=1)
        assert answered == [[0, 1], [], []]
        assert remembered == ["0 prepare"]
        assert self.kinds(engine) == [("worker_died", 0), ("worker_died", 1)]

    def test_answering_twice(self, task, workers, tmp_path):
        answered, remembered, engine = self.played(
            task, workers, tmp_path, broken=1, broken_kinds=["duplicate"]
        )
        assert answered == [[0, 1]] * 3
        assert remembered == ["0 prepare", "0 train", "0 judge"], "it worked once"
        assert engine.discarded == 6
        assert self.kinds(engine) == [("second_answer", 0), ("second_answer", 1)] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_late_reply_arrives_later_and_is_not_taken_for_another(task, workers, monkeypatch):
    """Client 0 is late in rounds 0 and 1, client 1 never: its replies bring those of client 0 along."""
    plan = FaultPlan(FaultsConfig(slow=0.5), 0)
    monkeypatch.setattr(plan, "fault", lambda round, client: "slow" if client == 0 and round < 2 else None)
    to = {client: Record({"m": np.full(3, client, np.float32)}) for client in (0, 1)}
    with small_engine(
        task, Phases(), workers=workers, wrap=make_wrapper(None, plan, StrategyConfig(), 0)
    ) as engine:
        replies = [engine.ask(ask_anything("train", to), round) for round in range(3)]
        assert [list(one) for one in replies] == [[1], [1], [0, 1]]
        for one in replies:
            assert {client: reply.params["m"].tolist() for client, reply in one.items()} == {
                client: [client] * 3 for client in one
            }
        assert engine.discarded == 2


class TestBrokenReplies:
    def test_if_some_are_the_others_count(self, task):
        faults = FaultsConfig(broken=0.4, broken_kinds=[*BROKEN])
        result = run_small(task, "fedavg", rounds=6, faults=faults)
        plan, seats = FaultPlan(faults, 0), [seat for line in result.history for seat in line["seats"]]
        for line in result.history:
            whole = [not plan.breakage("train", line["round"], seat.client) for seat in line["seats"]]
            delivered = [seat.delivered for seat in line["seats"]]
            assert delivered == (whole if any(whole) else [False] * len(whole))
            broken = [e.client for e in line["events"] if e.kind == "invalid_reply"]
            expected = [seat.client for seat, valid in zip(line["seats"], whole, strict=True) if not valid]
            assert sorted(broken) == sorted(expected)
        assert {seat.delivered for seat in seats} == {True, False}
        model = result.models["global"]
        assert np.abs(model).max() < 10
        assert model.tobytes() != task.network(0).read().tobytes()


class Sleeper(Phases):
    """Client 2 takes its time to train in round 0."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_train(self, ask, mine, me):
        if me.id == 2 and me.round == 0:
            time.sleep(self.seconds)
        return self._work(ask, mine, me)


class TestDeadline:
    @pytest.mark.parametrize(("workers", "seconds"), [(0, 2.2), (2, 60)])
    def test_who_takes_longer_is_left_out(self, task, workers, seconds):
        clients = ipfl.ClientsConfig(deadline=2)
        result = run_small(task, Sleeper(seconds), rounds=2, clients=clients, workers=workers)
        kinds = [event.kind for event in result.history[0]["events"] if event.client == 2]
        assert kinds == ["overdue"], "and not also that it did not answer"
        assert result.history[1]["events"] == ()
        assert result.summary["seconds"] < 30


class TestSameEverywhere:
    def test_killed_and_resumed(self, task, tmp_path):
        """Killed three times, at commits of rounds that count or are rolled back: the same result."""
        options = {
            "faults": FaultsConfig(**ALL),
            "train": TrainConfig(per_round=4, min_clients=3),
            "rounds": 10,
        }
        run_six_rounds(task, "local", tmp_path / "whole" / "run", **options)
        whole = run_contents(tmp_path / "whole" / "run")
        rolled_back = [line["round"] for line in whole[2][1] if line.get("rolled_back")]
        assert 0 < len(rolled_back) < 10
        out = tmp_path / "run"
        for calls in (2, 2, 3):
            place = lambda n=calls: die_at_call(RunStore, "commit_round", n, after=True)  # noqa: E731
            assert is_killed(task, "local", out, place, **options)
        run_six_rounds(task, "local", out, resume=True, **options)
        assert run_contents(out) == whole


class TestConfig:
    def test_every_key_is_documented(self):
        page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
        injected = page.split("## Settings")[1].split("The plan is a function")[0]
        assert re.findall(r"^\| `(\w+)` \|", injected, re.M) == list(FaultsConfig.model_fields)
        for kind in (*BROKEN, "duplicate", "before", "during", "after"):
            assert f"`{kind}`" in injected
