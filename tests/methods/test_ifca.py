"""IFCA by hand: who picks which model, both kinds of averaging, restarts, and collapse as an event."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests import federation
from tests.federation import Played, answer_round, client, first_ask, points, run_here, sigma, train_round

import ipfl
from ipfl.core import Record, Setup
from ipfl.core.sections import AggregateConfig
from ipfl.methods.ifca import IFCA, Clustering, best_start

A, B = np.array([1, -1], np.float32), np.array([-1, 1], np.float32)
"""A says class 0 of any x > 0, B says class 1."""


def start(*vectors: np.ndarray, per_round: int = 3) -> Clustering:
    return Clustering(tuple(vectors), per_round, seed=0, rule=AggregateConfig())


def federation_of(clients: int = 3, per_round: int | None = None) -> Setup:
    """Start number k is (k, −k)."""
    return federation.setup(clients, per_round, make_params=lambda k: np.array([k, -k], np.float32))


def update(cluster: object, x: float = 0, n: int = 1) -> Record:
    return Record({f"cluster_{cluster}": np.array([x, -x], np.float32)}, {"n": n, "cluster": cluster})


def answer(method: IFCA, state: Clustering, replies: dict[int, Record], round: int = 0) -> Played:
    """A round without a choice of starts."""
    played = answer_round(method, state, replies, round=round)
    assert played.engine.actions == ["train"]
    return played


class TestRound:
    # Of client 0, one point (2, class 0): it picks A. At A p_1 = σ(−4), so a step of 0.1 adds 0.1·2σ(−4).
    # Of client 1, one point (2, class 1): it picks B, where the step is the same with the signs turned.
    # Of client 2, two points (1, class 0): it picks A, p_1 = σ(−2), and the step adds 0.1·σ(−2).
    CLIENTS = (client((2, 0)), client((2, 1), id=1), client((1, 0), (1, 0), id=2))

    def test_models_are_averaged_over_those_that_chose_them(self):
        done, _ = train_round(IFCA(), start(A, B), self.CLIENTS)
        first = 1 + 0.1 * (1 * 2 * sigma(-4) + 2 * sigma(-2)) / 3
        second = 1 + 0.1 * 2 * sigma(-4)
        np.testing.assert_allclose(done.state.models[0], [first, -first], rtol=1e-6)
        np.testing.assert_allclose(done.state.models[1], [-second, second], rtol=1e-6)
        assert done.seats == [(0, 0, "random", True), (1, 1, "random", True), (2, 0, "random", True)]
        assert done.events == []
        assert [sorted(reply.params) for reply in done.replies.values()] == [
            ["cluster_0"], ["cluster_1"], ["cluster_0"],
        ]  # fmt: skip

    def test_gradients_are_divided_by_all_participants(self):
        done, _ = train_round(IFCA(average="gradients"), start(A, B), self.CLIENTS)
        # The same steps, but of 4 samples in all: 3 of them for A, 1 for B.
        first = 1 + 0.1 * (1 * 2 * sigma(-4) + 2 * sigma(-2)) / 4
        second = 1 + 0.1 * 2 * sigma(-4) / 4
        np.testing.assert_allclose(done.state.models[0], [first, -first], rtol=1e-6)
        np.testing.assert_allclose(done.state.models[1], [-second, second], rtol=1e-6)

    @pytest.mark.parametrize("average", ["models", "gradients"])
    def test_a_model_that_nobody_chose_stays(self, average):
        done, _ = train_round(IFCA(average=average), start(A, B), self.CLIENTS[:1])
        assert done.state.models[1] is B

    def test_one_gradient_whatever_the_epochs(self):
        me = client((2, 0), epochs=5)
        reply, _ = IFCA(average="gradients").on_train(Record({"cluster_0": A}), Record(), me)
        np.testing.assert_allclose(reply.params["cluster_0"][0], 1 + 0.1 * 2 * sigma(-4), rtol=1e-6)

    def test_a_model_whose_loss_is_not_a_number_is_not_chosen(self):
        broken = np.full(2, np.inf, np.float32)
        reply, _ = IFCA().on_train(Record({"cluster_0": broken, "cluster_1": B}), Record(), client((2, 0)))
        assert reply.facts["cluster"] == 1

    @pytest.mark.parametrize(
        "broken",
        [
            update(2, 9),
            update(-1, 9),
            update(None, 9),
            update(True, 9),
            Record({"cluster_0": B}, {"n": 1, "cluster": 1}),
            update(0, np.nan),
            update(0, 9, n=0),
        ],
        ids=["no such cluster", "negative", "none named", "a truth value", "another's model", "nan", "n=0"],
    )
    def test_invalid_replies_are_left_out(self, broken):
        done = answer(IFCA(), start(A, B), {0: update(0, 5), 1: broken, 2: update(1, 7)})
        assert [model.tolist() for model in done.state.models] == [[5, -5], [7, -7]]
        assert done.seats == [(0, 0, "random", True), (1, -1, "random", False), (2, 1, "random", True)]
        assert done.kinds == [("invalid_reply", 1)]
        assert done.state.choices == {0: 0, 2: 1}


class TestCollapse:
    def test_is_an_event_when_it_happens_and_when_it_ends(self):
        method = IFCA()
        done = answer(method, start(A, B), {0: update(1), 1: update(1)})
        assert done.kinds == [("collapse", None)]
        assert method.report(done.state) == {"clients_per_cluster": [0, 2], "collapsed": True}
        again = answer(method, done.state, {0: update(1), 1: update(1)}, round=1)
        assert again.events == []
        over = answer(method, again.state, {0: update(0), 1: update(1)}, round=2)
        assert over.kinds == [("unused_clusters", None)]
        assert over.state.unused == ()
        assert method.report(over.state) == {"clients_per_cluster": [1, 1], "collapsed": False}

    def test_some_of_several_clusters_left_empty_is_no_collapse_yet(self):
        method = IFCA(clusters=3)
        done = answer(method, start(A, B, A), {0: update(1), 1: update(2)})
        assert done.kinds == [("unused_clusters", None)]
        assert done.state.unused == (0,)
        assert method.report(done.state)["collapsed"] is False

    def test_no_answer_is_no_collapse(self):
        method = IFCA()
        done = answer(method, start(A, B), {0: Record()})
        assert done.kinds == [("invalid_reply", 0)]
        assert method.report(done.state)["collapsed"] is False

    def test_one_cluster_cannot_collapse(self):
        method = IFCA(clusters=1)
        done = answer(method, start(A), {0: update(0)})
        assert done.events == []
        assert method.report(done.state)["collapsed"] is False

    def test_choices_of_absent_clients_are_remembered(self):
        method = IFCA()
        first = answer(method, start(A, B), {0: update(1), 1: update(0)})
        second = answer(method, first.state, {0: update(0)}, round=1)
        assert method.preferences(second.state) == {0: 0, 1: 0}
        assert ("collapse", None) in second.kinds


class TestRestarts:
    def test_the_smallest_cluster_decides_then_the_loss(self):
        # Three clients, three sets of two models. Set 0: all choose model 0. Sets 1 and 2: two against one;
        # the mean loss of the chosen is (1 + 1 + 1)/3 in set 1 and (1 + 1 + 0.4)/3 in set 2.
        losses = np.array(
            [
                [[0.1, 9], [1, 2], [1, 2]],
                [[0.1, 9], [1, 2], [1, 2]],
                [[0.1, 9], [2, 1], [2, 0.4]],
            ]
        )
        assert best_start(losses) == 2
        assert best_start(losses[:, :2]) == 1
        assert best_start(losses[:, [1, 1]]) == 0

    def test_every_model_of_every_set_starts_differently(self):
        state = IFCA(clusters=2, restarts=3).init(federation_of())
        starts = [model[0] for one in (state.models, *state.spare) for model in one]
        assert starts == [0, 1, 2, 3, 4, 5]

    def test_clients_score_all_sets_before_the_first_training(self):
        method = IFCA(clusters=2, restarts=2)
        state = method.init(federation_of(4, per_round=2))
        ask = first_ask(method, state, 4)
        assert ask.action == "rate"
        assert len(ask.to) == 2
        one, other = ask.to
        assert [v[0] for v in ask.to[one].params.values()] == [0, 1, 2, 3]
        # Everyone chooses model 0 of set 0; set 1 is split.
        losses = {one: Record({}, {"losses": [0, 1, 5, 6]}), other: Record({}, {"losses": [0, 1, 6, 5]})}
        updates = {client: update(client % 2, 8) for client in range(4)}
        done = answer_round(method, state, updates, rate=losses)
        _, train = done.engine.asks
        assert train.action == "train"
        assert len(train.to) == 2
        assert [v[0] for v in next(iter(train.to.values())).params.values()] == [2, 3]
        assert done.kinds[0] == ("start_chosen", None)
        assert first_ask(method, done.state, 2, round=1).action == "train"

    @pytest.mark.parametrize(
        "losses",
        [
            {},
            {0: Record({}, {"losses": [1.0]})},
            {0: Record({}, {"losses": [np.nan] * 4})},
            {0: Record({}, {"losses": ["low"] * 4})},
        ],
    )
    def test_the_first_set_goes_on_if_nobody_scores(self, losses):
        method = IFCA(restarts=2)
        done = answer_round(method, method.init(federation_of()), {}, clients=3, rate=losses)
        _, train = done.engine.asks
        assert [v[0] for v in train.to[0].params.values()] == [0, 1]
        assert [kind for kind, client in done.kinds if client == 0] == ["no_answer"] + [
            "invalid_reply"
        ] * len(losses)

    def test_scores_are_mean_losses_on_the_training_data(self):
        # At w = 0 a point costs ln 2; at A a point (1, class 0) costs ln(1 + e^−2), of class 1 ln(1 + e^2).
        ask = Record({"cluster_0": np.zeros(2, np.float32), "cluster_1": A})
        reply, _ = IFCA(restarts=2).on_rate(ask, Record(), client((1, 0), (1, 1)))
        assert reply.facts["losses"] == pytest.approx(
            [np.log(2), np.log1p(np.exp(2)) / 2 + np.log1p(np.exp(-2)) / 2]
        )


def test_a_client_deploys_what_is_best_on_its_goal():
    method, me = IFCA(), client((2, 0))
    me = dataclasses.replace(me, parts=dataclasses.replace(me.parts, goal=points((2, 1))))
    offer = method.offer(start(A, B), 99)
    assert method.personalize(offer, Record(), me) is B
    assert method.models(start(A, B)) == {"cluster_0": A, "cluster_1": B}


def test_it_learns():
    task = ipfl.Task.load(clients=6, samples=60, test_samples=50, unseen=1, model="softmax")
    result = run_here(task, IFCA(restarts=3), rounds=10)
    assert result.personalized_accuracy > 0.4  # of ten classes
