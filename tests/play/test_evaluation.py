"""When is evaluated, on whom, and what comes out; and what a method is shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from tests.federation import setup
from tests.small_runs import run_small, small_engine, small_task

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import EVALUATE, ClientRunner, Job
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.train_section import AdaptConfig, TrainConfig
from ipfl.core import EMPTY, Method, Record, Round, TaskFacts, holdout_id, stream
from ipfl.core.replies import InvalidReplyError
from ipfl.play.evaluation import SCORES, Evaluator
from ipfl.play.metrics import Evaluation
from ipfl.training.task import Task


@pytest.fixture(scope="module")
def task():
    return small_task()


@dataclass(frozen=True)
class Still(Method):
    """A method without training, whose server has two models: the start, and one that always says class 0."""

    name = "still"
    summary = "nothing happens"

    def init(self, setup):
        constant = np.zeros_like(setup.params)
        constant[-setup.task.outputs] = 1  # softmax regression: the bias of class 0 comes after all weights
        return {"global": setup.params, "zero": constant}

    def round(self, state, roster, round):
        return Round(state)
        yield

    def offer(self, state, client):
        return Record(state)

    def personalize(self, offer, mine, me):
        return offer.params["zero"]

    def models(self, state):
        return state


@dataclass(frozen=True)
class Constant(Still):
    """Two clusters, whose models always say class 0 and class 1; client 0 prefers the second."""

    name = "constant"

    def init(self, setup):
        models = {f"cluster_{label}": np.zeros_like(setup.params) for label in (0, 1)}
        for label, model in enumerate(models.values()):
            model[label - setup.task.outputs] = 1
        return models

    def personalize(self, offer, mine, me):
        return offer.params["cluster_0"]

    def preferences(self, state):
        return {client: int(client == 0) for client in range(6)}


class TestWhen:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({}, [True, False]),  # the last one is whole
            ({"patience": 30}, [False, False]),  # decides when to end
        ],
    )
    def test_only_what_is_watched_goes_without_the_last_step(self, task, settings, expected):
        result = run_small(task, Still(), rounds=12, adapt=AdaptConfig(epochs=1), **settings)
        found = [evaluation.last_step_passes for evaluation in result.evaluations.values()]
        assert found == [None if is_quick else 3 for is_quick in expected]

    @pytest.mark.parametrize(("every", "evaluated"), [({}, [5, 7]), ({"every": 3}, [2, 5, 7])])
    def test_every_so_many_rounds_and_the_last(self, task, every, evaluated):
        result = run_small(task, Still(), rounds=8, evaluate=EvaluateConfig(**every))
        assert [line["round"] for line in result.history if "evaluation" in line] == evaluated
        assert sorted(result.evaluations) == evaluated


def setup_of(task):
    return setup(6, 3, params=task.network(0).read(), task=TaskFacts(task.data.classes))


class TestWho:
    @pytest.mark.parametrize("clients", [None, 99])
    def test_everyone_by_default(self, task, clients):
        assert Evaluator(task, Still(), EvaluateConfig(clients=clients), 0).clients == tuple(range(6))

    def test_a_seeded_choice(self, task):
        chosen = {
            seed: Evaluator(task, Still(), EvaluateConfig(clients=3), seed).clients for seed in range(9)
        }
        for seed, clients in chosen.items():
            assert len(set(clients)) == 3
            assert list(clients) == sorted(clients)
            assert set(clients) <= set(task.data.clients)
            assert Evaluator(task, Still(), EvaluateConfig(clients=3), seed).clients == clients
        assert len(set(chosen.values())) > 1


class TestWhat:
    def test_accuracies_by_hand(self, task):
        """The constant model's accuracy is the share of class 0 among the labels."""
        evaluator = Evaluator(task, Still(), EvaluateConfig(holdout=9), 0)
        state = Still().init(setup_of(task))
        with small_engine(task, Still()) as engine:
            measured = evaluator(engine, state, 0, last=True)
        for client in task.data.clients:
            labels = task.data.parts(client).test.y
            assert measured.personalized[client] == pytest.approx(np.mean(labels == 0))
            labels = task.data.parts(client).goal.y
            assert measured.goal[client] == pytest.approx(np.mean(labels == 0))
        assert set(measured.shared) == set(task.data.clients)
        assert measured.shared != measured.personalized
        for distribution, row in enumerate(measured.cluster_accuracy):
            chosen = stream(0, "holdout", distribution).permutation(len(task.data.holdout(distribution)))[:9]
            labels = task.data.holdout(distribution).y[chosen]
            assert row[1] == pytest.approx(np.mean(labels == 0))
        assert measured.purity is None
        assert measured.unseen == {}

    def test_the_holdout_is_no_slice_of_an_ordered_pool(self):
        """Test points ordered by class: the first 30 are all of class 0, of 30 at random about half.

        Hypergeometric, 30 of 60 with 30 of class 0: 15 ± 1.95; five times that on either side.
        """
        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        y = np.repeat([0, 1], 30)
        clients = [{"train": (x, y), "test": (x, y)}]
        task = Task.from_clients(clients, model="softmax", classes=2)
        state = Still().init(setup_of(task))

        def accuracies(seed):
            with small_engine(task, Still(), seed=seed) as engine:
                rows = Evaluator(task, Still(), EvaluateConfig(holdout=30), seed)
                return [rows(engine, state, round).cluster_accuracy for round in (0, 1)]

        first, second = accuracies(0)
        assert first == second, "the same points in every round"
        assert 5 <= 30 * first[0][1] <= 25
        assert accuracies(0)[0] == first
        by_seed = {accuracies(seed)[0][0][1] for seed in range(5)}
        assert len(by_seed) > 1, "other points with another seed"

    @pytest.mark.parametrize(
        "facts",
        [
            {"goal_hits": 5.5, "goal_n": 5},
            {"goal_hits": -1, "goal_n": 5},
            {"goal_n": 5},
        ],
        ids=["more hits than points", "negative", "missing"],
    )
    def test_impossible_scores_on_goal_are_refused(self, facts):
        with pytest.raises(InvalidReplyError):
            SCORES.check(EMPTY, Record({}, {"n": 10, "hits": 3} | facts))

    def test_a_client_without_goal_points(self, task):
        measured = Evaluation(0, {0: 0.5, 1: 0.75}, {}, None, None, goal={1: 0.25})
        line = measured.line() | {"cluster_accuracy": None, "purity": None}
        assert line["goal"] == [None, 0.25]
        assert Evaluation.from_line(0, json.loads(json.dumps(line))) == measured

    def test_separation_by_hand(self):
        """Accuracy of the preferred model minus the other's: shares of two classes among the labels."""
        shares = [0.25, 0.75, 0.5, 0.75, 1.0, 0.75]  # of class 0; client 0 prefers the model of class 1
        clients = []
        for share in shares:
            y = np.repeat([0, 1], [int(20 * share), int(20 - 20 * share)])
            part = (np.zeros((20, 3), np.float32), y)
            clients.append({"train": (part[0], np.arange(20) % 2), "test": part})
        task = Task.from_clients(clients, model="softmax", classes=2)
        evaluator, state = Evaluator(task, Constant(), EvaluateConfig(), 0), Constant().init(setup_of(task))
        with small_engine(task, Constant()) as engine:
            assert evaluator(engine, state, 0).separation == {}, "only after the last round"
            measured = evaluator(engine, state, 0, last=True)
            assert [event.kind for event in engine.events] == []
        assert measured.separation == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0, 3: 0.5, 4: 1.0, 5: 0.5})
        assert measured.figures()["separation"]["mean"] == pytest.approx(0.5)
        line = json.loads(json.dumps(measured.figures() | measured.line()))
        assert Evaluation.from_line(0, line) == measured

    def test_clusters_that_do_not_separate_are_reported(self):
        """All have as many points of either class: neither model is better for anybody."""
        clients = [(np.zeros((20, 3), np.float32), np.arange(20) % 2) for _ in range(6)]
        clients = [{"train": one, "test": one} for one in clients]
        task = Task.from_clients(clients, model="softmax", classes=2)
        result = run_small(task, Constant(), rounds=5)
        kinds = [[event.kind for event in line["events"]] for line in result.history]
        assert kinds == [[], [], [], [], ["not_separated"]]
        assert result.summary["separation"] == {"mean": 0.0, "std": 0.0}

    def test_unseen_clients_only_at_the_end(self):
        task = small_task(unseen=2)
        evaluator = Evaluator(task, Still(), EvaluateConfig(), 0)
        state = Still().init(setup_of(task))
        with small_engine(task, Still()) as engine:
            early, late = evaluator(engine, state, 0), evaluator(engine, state, 1, last=True)
        assert early.unseen == {}
        assert set(late.unseen) == set(task.data.unseen)
        assert set(late.personalized) == set(task.data.clients) == set(early.personalized)

    @staticmethod
    def evaluate_without(task, is_lost):
        """An evaluation in which some replies are lost."""
        with small_engine(task, Still()) as engine:
            ask_everyone = engine.ask
            engine.ask = lambda ask, round: {
                client: reply
                for client, reply in ask_everyone(ask, round).items()
                if not is_lost(ask, client)
            }
            return Evaluator(task, Still(), EvaluateConfig(), 0)(engine, Still().init(setup_of(task)), 0)

    def test_a_distribution_that_was_not_assessed_leaves_no_misnumbered_rows(self, task):
        measured = self.evaluate_without(task, lambda ask, client: ask.action != EVALUATE and client == 0)
        assert measured.cluster_accuracy is None
        assert len(measured.personalized) == 6

    def test_clients_that_do_not_answer_are_not_measured(self, task):
        measured = self.evaluate_without(task, lambda ask, client: ask.action == EVALUATE and client == 2)
        assert sorted(measured.personalized) == [0, 1, 3, 4, 5]


@dataclass(frozen=True)
class Curious(Still):
    """Looks at what it is shown."""

    def on_train(self, ask, mine, me):
        return Record({}, self.look(me)), mine

    def personalize(self, offer, mine, me):
        assert self.look(me)["test"] == 0
        return super().personalize(offer, mine, me)

    @staticmethod
    def look(me):
        return {part: len(getattr(me.parts, part)) for part in ("train", "probe", "goal", "test")}


class TestClientRunner:
    @pytest.fixture
    def runner(self, tmp_path):
        task = small_task(server_samples=5)
        return ClientRunner(task, Curious(), TrainConfig(), 0, ClientMemory(tmp_path / "memory"))

    def test_a_method_never_sees_the_test_part(self, runner):
        assert runner.task.data.sizes(0)["test"] == 20
        facts = runner.run(Job("train", 0, 0, EMPTY)).facts
        assert facts["test"] == 0
        for part in ("train", "probe", "goal"):
            assert facts[part] == runner.task.data.sizes(0)[part] > 0
        state = Curious().init(setup_of(runner.task))
        # `personalize` asserts the same; the evaluator counts on all 20 test points.
        assert runner.run(Job(EVALUATE, 0, 0, Record(state))).facts["n"] == 20

    @pytest.mark.parametrize("use_probe", [False, True])
    @pytest.mark.parametrize("needs_probe", [False, True])
    def test_probe_is_trained_on_only_if_wanted_and_not_needed(self, runner, use_probe, needs_probe):
        class Declared(Curious):
            def on_train(self, ask, mine, me):
                return Record({"x": me.data("train").x.reshape(-1)}, self.look(me)), mine

        Declared.needs_probe = needs_probe
        runner.method, runner.settings = Declared(), TrainConfig(use_probe=use_probe)
        reply, sizes = runner.run(Job("train", 0, 0, EMPTY)), runner.task.data.sizes(0)
        # 20 samples a client, a fifth of them probe.
        assert (sizes["train"], sizes["probe"]) == (16, 4)
        assert reply.facts["train"] == (20 if use_probe and not needs_probe else 16)
        assert reply.facts["probe"] == reply.facts["goal"] == 4
        parts = runner.task.data.parts(0)
        expected = [parts.train.x, parts.probe.x][: 2 if use_probe and not needs_probe else 1]
        np.testing.assert_array_equal(reply.params["x"], np.concatenate(expected).reshape(-1))

    def test_the_server_s_own_holdout(self, runner):
        for distribution in range(2):
            facts = runner.run(Job("train", 0, holdout_id(distribution), EMPTY)).facts
            assert {facts[part] for part in ("train", "probe", "goal")} == {5}
        with pytest.raises(ValueError, match="no holdout of distribution 0"):
            ClientRunner(small_task(), Curious(), TrainConfig(), 0, runner.memory).run(
                Job("train", 0, -1, EMPTY)
            )
