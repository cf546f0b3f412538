"""Strategic clients: what they learn, what they choose, what each action sends."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.small_runs import run_small, small_task

import ipfl
from ipfl.client.memory import ClientMemory
from ipfl.client.runner import EVALUATE, Job
from ipfl.config.run_config import StrategyConfig
from ipfl.core import Record
from ipfl.stress.seen_models import SECOND_MEMORY
from ipfl.stress.strategy import (
    FIRST_TRAINING_GAIN,
    Experience,
    Strategic,
    choice_probabilities,
    strategy_report,
)

MODEL = np.array([5, 1, 1], np.float32)
BEFORE = np.array([2, 1, -3], np.float32)
"""The model made a step of (3, 0, 4), of length 5."""
CLIENT = 7


class Inner:
    """A runner whose clients say that the models are right on so many of 10 points, and want both."""

    task = SimpleNamespace(data=SimpleNamespace(parts=lambda client, round: SimpleNamespace(train=[0] * 12)))

    def __init__(self, folder: Any):
        self.memory = ClientMemory(folder)
        self.network = None  # strategies do not look at it
        self.hits = [4.0, 2.0]
        self.jobs: list[Job] = []

    def run(self, job: Job) -> Record:
        self.jobs.append(job)
        if job.action == "preference":
            return Record({}, {"bids": [0, 1], "hits": self.hits if job.record.params else [], "n": 10})
        return Record({name: model + 1 for name, model in job.record.params.items()}, {"n": 12})

    def deliver(self, job: Job) -> Any:
        yield SimpleNamespace(job=job, reply=self.run(job))


@pytest.fixture
def inner(tmp_path) -> Inner:
    return Inner(tmp_path)


def query(round: int, balance: int, *models: np.ndarray) -> Job:
    named = {f"cluster_{k}": model for k, model in enumerate(models)}
    facts = {"clusters": [0, 1], "means": [1.0, 1.0], "balance": balance, "price": 100}
    return Job("preference", round, CLIENT, Record(named, facts))


def training(round: int, *models: np.ndarray) -> Job:
    return Job("train", round, CLIENT, Record({f"cluster_{k}": model for k, model in enumerate(models)}))


def reply(strategic: Strategic, job: Job) -> Record | None:
    (delivery,) = strategic.deliver(job)
    return delivery.reply


def known(inner: Inner) -> dict[str, Any]:
    return inner.memory.load(CLIENT + SECOND_MEMORY).facts


class TestChoice:
    def test_by_hand(self):
        # Gains 2·ln 3 and 0 at a rate of 1/2: weights 3 : 1. A twentieth of the choices is at random.
        probability = choice_probabilities(np.array([2 * math.log(3), 0.0]))
        np.testing.assert_allclose(probability, [0.95 * 3 / 4 + 0.025, 0.95 / 4 + 0.025])

    def test_large_gains_do_not_overflow(self):
        np.testing.assert_allclose(choice_probabilities(np.array([1e9, 0.0])), [0.975, 0.025])


class TestExperience:
    def test_by_hand(self):
        mine = Experience([0.0] * 4, [0.0] * 4, [0] * 4)
        actions = ("train", "return", "buy", "abstain")
        assert mine.expected(actions) == [0, 0, 0, 0]
        mine.learn(0, -1.0, 2.0)  # trained in a seat that brought 2; models less their price brought −1
        mine.learn(0, 1.0, None)  # no seat; bidding brought 1: mean 0
        mine.learn(2, 0.0, -1.0)  # bought only, and forfeited a price
        assert (mine.bids, mine.bid_gain, mine.seats) == (3, 0.0, [1, 0, 1, 0])
        # Two seats in three bids. A seat brings 2 with training, −1 with buying only; what was never tried is
        # expected to bring the mean of both, 1/2. Not bidding brings nothing.
        assert mine.expected(actions) == pytest.approx([4 / 3, 1 / 3, -2 / 3, 0])

    def test_old_rounds_are_forgotten(self):
        # Ten rounds of 0, then a 1: its weight is a tenth.
        mine = Experience([0.0], [0.0], [0])
        for seat_gain in (*[0.0] * 10, 2.0):
            mine.learn(0, seat_gain / 2, seat_gain)
        assert (mine.bid_gain, mine.seat_gain) == (pytest.approx(0.1), pytest.approx([0.2]))


class TestLearning:
    @pytest.fixture
    def strategic(self, inner) -> Strategic:
        return Strategic(inner, StrategyConfig(cost=0.5, value=2.0, actions=("train",)), 0)

    def test_a_seat(self, inner, strategic):
        # It trained two models at 0.5 each. Its balance rose by 150 = 1.5 prices, worth 3; it had bid for two
        # models, worth 4 in prices. Its score rose by 0.1, worth 4. So bidding brought 4 − 4 = 0 beside the
        # seat, and the seat 3 + 4 − 1 = 6.
        reply(strategic, query(1, 1000, MODEL, MODEL))
        reply(strategic, training(1, MODEL, MODEL))
        assert (known(inner)["seated"], known(inner)["trained"], known(inner)["placed"]) == (1, 2, 2)
        inner.hits = [5.0, 2.0]
        reply(strategic, query(2, 1150, MODEL, MODEL))
        facts = known(inner)
        assert facts["bid_gain"] == pytest.approx(0)
        assert facts["seat_gain"] == pytest.approx([6])
        assert facts["gains"] == pytest.approx([FIRST_TRAINING_GAIN + 6])  # a seat in every bid so far
        assert facts["score"] == 0.5
        assert facts["log"] == [[1, 0], [2, 0]]

    def test_no_seat(self, inner, strategic):
        # It paid two prices, worth −4, and its score rose by 0.1, worth 4.
        reply(strategic, query(1, 1000, MODEL, MODEL))
        inner.hits = [5.0, 2.0]
        reply(strategic, query(2, 800, MODEL, MODEL))
        facts = known(inner)
        assert facts["bid_gain"] == pytest.approx(0)
        assert (facts["bids"], facts["seats"]) == (1, [0])
        assert facts["gains"] == pytest.approx([FIRST_TRAINING_GAIN])

    def test_without_models_the_last_score_stands(self, inner, strategic):
        reply(strategic, query(1, 1000, MODEL, MODEL))
        reply(strategic, query(2, 1000))
        assert known(inner)["score"] == 0.4


class TestActions:
    def act(self, inner: Inner, action: str, *, seen: bool = True) -> Record | None:
        """What a client sends when it has chosen this action and is asked to train one model."""
        config = StrategyConfig(cost=1, actions=("train", "return", "replay", "noise", "buy", "abstain"))
        params = {"before_cluster_0": BEFORE, "now_cluster_0": MODEL} if seen else {}
        facts = {"log": [[1, config.actions.index(action)]], "placed": 1, "seated": 0, "trained": 0}
        inner.memory.save(CLIENT + SECOND_MEMORY, Record(params, facts), 1)
        return reply(Strategic(inner, config, 0), training(1, MODEL))

    def sent(self, inner: Inner, action: str, *, seen: bool = True) -> np.ndarray:
        told = self.act(inner, action, seen=seen)
        assert told is not None
        assert told.facts == {"n": 12}
        return told.params["cluster_0"] - MODEL

    @pytest.mark.parametrize(
        ("action", "step"), [("train", [1, 1, 1]), ("return", [0, 0, 0]), ("replay", [3, 0, 4])]
    )
    def test_step_in_a_seat(self, inner, action, step):
        assert self.sent(inner, action).tolist() == step
        assert (known(inner)["seated"], known(inner)["trained"]) == (1, int(action == "train"))

    def test_replay_with_noise_of_the_same_length(self, inner):
        noise = self.sent(inner, "noise") - [3, 0, 4]
        assert np.linalg.norm(noise) == pytest.approx(5, rel=1e-5)

    @pytest.mark.parametrize("action", ["replay", "noise"])
    def test_who_saw_the_model_once_only_returns_it(self, inner, action):
        assert self.sent(inner, action, seen=False).tolist() == [0, 0, 0]

    @pytest.mark.parametrize("action", ["buy", "abstain"])
    def test_no_answer(self, inner, action):
        assert self.act(inner, action) is None
        assert inner.jobs == []

    def test_a_seat_before_the_first_query_is_trained_for(self, inner):
        config = StrategyConfig(cost=1)
        told = reply(Strategic(inner, config, 0), training(0, MODEL))
        assert told is not None
        assert (told.params["cluster_0"] == MODEL + 1).all()

    def test_bids_are_honest_but_for_abstaining(self, inner):
        # Who abstains bids for nothing; its scores are sent all the same.
        strategic = Strategic(inner, StrategyConfig(cost=1, actions=("train", "abstain")), 0)
        bids = {}
        for round in range(1, 40):
            told = reply(strategic, query(round, 1000, MODEL, MODEL))
            assert told is not None
            assert told.facts["hits"] == [4.0, 2.0]
            bids[known(inner)["log"][-1][1]] = told.facts["bids"]
        assert bids == {0: [0, 1], 1: []}

    def test_models_are_remembered_for_the_replay(self, inner):
        strategic = Strategic(inner, StrategyConfig(cost=1, actions=("train",)), 0)
        for round, model in enumerate((BEFORE, MODEL), start=1):
            reply(strategic, query(round, 1000, model, model))
        mine = inner.memory.load(CLIENT + SECOND_MEMORY).params
        assert mine["before_cluster_0"].tolist() == BEFORE.tolist()
        assert mine["now_cluster_0"].tolist() == MODEL.tolist()

    @pytest.mark.parametrize(("action", "client"), [(EVALUATE, CLIENT), ("train", -2), ("loss", CLIENT)])
    def test_everything_else_is_as_it_is(self, inner, action, client):
        job = Job(action, 1, client, Record({"cluster_0": MODEL}))
        reply(Strategic(inner, StrategyConfig(cost=1), 0), job)
        assert inner.jobs == [job]
        assert known(inner) == {}


class TestReport:
    def test_by_hand(self, tmp_path):
        # Three clients, one of whom was never asked. Seven rounds; the last five have 2, 1, 1, 1 and 0 of two
        # that train: (1 + ½ + ½ + ½ + 0)/5 = 1/2.
        memory, config = ClientMemory(tmp_path), StrategyConfig(cost=1, actions=("buy", "train"))
        one, other = [1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0]
        for client, chosen in ((0, one), (1, other)):
            log = [[round, action] for round, action in enumerate(chosen, start=1)]
            memory.save(client + SECOND_MEMORY, Record({}, {"log": log}), 7)
        told = strategy_report(config, memory, (0, 1, 2))
        assert told["actions"] == ["buy", "train"]
        assert told["honest_share"] == pytest.approx(1 / 2)
        assert told["shares"][0] == [1, 0.0, 1.0]
        assert told["shares"][3] == [4, 0.5, 0.5]
        assert [round for round, *_ in told["shares"]] == [1, 2, 3, 4, 5, 6, 7]

    def test_nobody_was_asked(self, tmp_path):
        told = strategy_report(StrategyConfig(cost=1), ClientMemory(tmp_path), (0, 1))
        assert told["honest_share"] is None
        assert told["shares"] == []


@pytest.fixture(scope="module")
def task() -> ipfl.Task:
    return small_task()


class TestRun:
    def test_the_summary_says_who_did_what_whatever_the_number_of_workers(self, task):
        setting = StrategyConfig(cost=0.5)
        here, there = (run_small(task, "ipfl-plus", rounds=4, strategy=setting, workers=w) for w in (0, 2))
        assert here.history == there.history
        told = here.summary["strategy"]
        assert told == there.summary["strategy"]
        assert told["actions"] == ["train", "return", "replay", "noise", "buy", "abstain"]
        assert 0 <= told["honest_share"] <= 1
        assert [round for round, *_ in told["shares"]] == [1, 2, 3]
        assert all(sum(row[1:]) == pytest.approx(1) for row in told["shares"])

    def test_methods_without_a_market_are_played_as_they_are(self, task):
        thinking = run_small(task, "fedavg", rounds=2, strategy=StrategyConfig(cost=5))
        assert thinking.summary["strategy"]["honest_share"] is None
        plain = run_small(task, "fedavg", rounds=2)
        assert thinking.summary["personalized_accuracy"] == plain.summary["personalized_accuracy"]
