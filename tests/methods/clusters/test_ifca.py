"""IFCA by hand: who picks which model, both kinds of averaging, restarts, and collapse as an event."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests import federation
from tests.federation import (
    Played,
    ScriptedEngine,
    answer_round,
    client,
    first_ask,
    play_round,
    points,
    sigma,
    train_round,
)

from ipfl.config.sections import AggregateConfig
from ipfl.core import Record, Setup
from ipfl.methods.clusters.ifca import IFCA, Clustering
from ipfl.methods.shared.random_restarts import accepted_share, spread_of_choices

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
            Record({"cluster_0": B}, {"n": 1, "cluster": 1}),
        ],
        ids=["no such cluster", "another's model"],
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
    @pytest.mark.parametrize(("clusters", "share"), [(1, 0), (2, 0.35), (4, 0.1)])
    def test_accepted_shares_of_the_authors(self, clusters, share):
        assert accepted_share(clusters) == pytest.approx(share)

    def test_spread_of_choices(self):
        # Of four clients three choose model 0 (of the tie, too) and one model 2, none model 1.
        losses = [[1, 2, 3], [0.5, 0.5, 9], [4, 3, 2], [1, 9, 9]]
        assert spread_of_choices(losses) == (0, pytest.approx((1 + 0.5 + 2 + 1) / 4))
        assert spread_of_choices([[1, 2], [2, 1], [1, 2], [1, 2]]).smallest_share == 0.25

    def test_every_model_of_every_set_starts_differently(self):
        state = IFCA(clusters=2, restarts=3).init(federation_of())
        starts = [model[0] for one in (state.models, *state.spare) for model in one]
        assert starts == [0, 1, 2, 3, 4, 5]

    @staticmethod
    def start_with(*choices: list[int], restarts: int = 3) -> tuple[Played, list[float]]:
        """A first round in which four of six clients rate each draw by these losses; what is then trained."""
        method = IFCA(clusters=2, restarts=restarts)
        ratings = iter([loss for draw in choices for loss in draw])
        engine = ScriptedEngine(
            {
                "rate": lambda client, _: Record({}, {"losses": next(ratings)}),
                "train": lambda client, _: update(client % 2, 8),
            }
        )
        done = play_round(method, method.init(federation_of(6, per_round=4)), engine, 6)
        *rated, train = engine.asks
        assert [ask.action for ask in rated] == ["rate"] * len(choices)
        for number, ask in enumerate(rated):
            assert len(ask.to) == 4
            sent = next(iter(ask.to.values()))
            assert [v[0] for v in sent.params.values()] == [2 * number, 2 * number + 1]
        assert len(train.to) == 4
        assert first_ask(method, done.state, 2, round=1).action == "train"
        return done, [v[0] for v in next(iter(train.to.values())).params.values()]

    def test_the_first_accepted_draw_ends_the_search(self):
        # Draw 0: three of four choose model 0 (0.25 < 0.35). Draw 1: two each (0.5). Draw 2 is never rated.
        done, trained = self.start_with([[0, 1]] * 3 + [[1, 0]], [[5, 6], [6, 5]] * 2)
        assert trained == [2, 3]
        assert done.kinds[0] == ("start_chosen", None)
        assert "draw 2 of 3" in done.events[0].text
        assert "50% of those asked" in done.events[0].text

    def test_the_best_draw_is_kept_if_none_is_accepted(self):
        # One of four chooses the other model of draw 1 (0.25 < 0.35), none that of draw 0, of lower loss.
        one_of_four = [[5, 6]] * 3 + [[6, 5]]
        assert self.start_with([[0, 1]] * 4, one_of_four, restarts=2)[1] == [2, 3]
        # All shares are 0: the lowest loss of the chosen models decides, and then the earlier draw.
        assert self.start_with([[3, 4]] * 4, [[1, 2]] * 4, [[2, 9]] * 4)[1] == [2, 3]
        assert self.start_with([[1, 4]] * 4, [[1, 2]] * 4, [[2, 9]] * 4)[1] == [0, 1]

    @pytest.mark.parametrize(
        "losses",
        [
            {},
            {0: Record({}, {"losses": [np.nan] * 2})},
        ],
    )
    def test_the_first_set_goes_on_if_nobody_scores(self, losses):
        method = IFCA(restarts=3)
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
