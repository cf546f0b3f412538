"""A client at deployment, with a model of two parameters: which points count, mixing, fine-tuning.

The logits of a point x are (w_0·x, w_1·x): a model (w, −w) with w > 0 says class 0 of every x > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.federation import ZERO, client, points, setup, sigma

from ipfl.client.client import Client
from ipfl.core import QUICK, Record
from ipfl.data.federated import Parts
from ipfl.methods.ipfl import personalization
from ipfl.methods.ipfl.method import IPFL
from ipfl.methods.ipfl.personalization import OwnPoints, fine_tune_on_evidence, mix_on_evidence

Pairs = Sequence[tuple[float, int]]
RIGHT = np.array([1, -1], np.float32)
"""Says class 0 of every point above 0."""
WRONG = -RIGHT


def person(train: Pairs, goal: Pairs, probe: Pairs | None = None, use_probe: bool = True) -> Client:
    """A client with these parts; `probe` is the same as `goal` if it is not given."""
    me, held_back = client(*train, action="evaluate", use_probe=use_probe), points(*goal)
    own = held_back if probe is None else points(*probe)
    return replace(me, parts=Parts(points(*train), own, held_back, me.parts.test))


def fine_tuned(me: Client, start: np.ndarray = ZERO) -> np.ndarray:
    return fine_tune_on_evidence(start, OwnPoints.of(me, 128), me)


class TestWhichPointsCount:
    def test_goal_and_train_if_the_client_wants_to_be_good_at_what_it_has(self):
        own = OwnPoints.of(person([(2, 0), (3, 1)], goal=[(1, 1)]), 128)
        assert own.labels.tolist() == [1, 0, 1]
        assert (len(own.held_back), len(own.trained)) == (1, 2)

    def test_equal_parts_are_the_same_also_where_they_were_made_twice(self):
        own = OwnPoints.of(person([(2, 0)], goal=[(1, 1)], probe=[(1, 1)]), 128)
        assert (len(own.held_back), len(own.trained)) == (1, 1)

    def test_only_goal_if_it_is_something_else(self):
        own = OwnPoints.of(person([(2, 0), (3, 1)], goal=[(1, 1)], probe=[(1, 0)]), 128)
        assert (len(own.held_back), len(own.trained)) == (1, 0)

    def test_no_point_twice_where_a_newcomer_has_one_set_for_all(self):
        own = OwnPoints.of(person([(2, 0), (3, 1)], goal=[(2, 0), (3, 1)]), 128)
        assert (len(own.held_back), len(own.trained)) == (0, 2)

    def test_no_more_of_each_than_the_limit(self):
        own = OwnPoints.of(person([(2, 0)] * 5, goal=[(1, 1)] * 5), 3)
        assert (len(own.held_back), len(own.trained)) == (3, 3)


class TestMixing:
    def test_the_paper_s_mix_stays_without_evidence(self):
        # At x = 0 every model gives 1/2 to both classes, so that no mix is better than another.
        me = person([(0, 0), (0, 1)], goal=[(0, 0)])
        mixed = mix_on_evidence([RIGHT, 3 * RIGHT], np.array([0.25, 0.75]), OwnPoints.of(me, 128), me)
        assert mixed.tolist() == [2.5, -2.5]  # 0.25·1 + 0.75·3

    def test_a_single_model_is_taken_if_the_mix_is_wrong(self):
        # υ = (0.4, 0.6) mixes (1, −1) and (−1, 1) to (−0.2, 0.2), which is wrong everywhere; so are υ^s for
        # s > 0, and s = 0 says nothing. Only the first model alone is right.
        me = person([(2, 0), (1, 0)], goal=[(3, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        assert mixed.tolist() == RIGHT.tolist()

    def test_one_point_is_not_enough(self):
        me = person([(2, 0)], goal=[(2, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        np.testing.assert_allclose(mixed, [-0.2, 0.2], rtol=1e-6)


class TestFineTuning:
    def test_what_is_learned_holds_for_points_left_out(self):
        # Every point is of class 0 and each half of `train` teaches that: w_0 grows, and class 0 is right.
        tuned = fine_tuned(person([(2, 0)] * 4, goal=[(1, 0), (2, 0)]))
        assert tuned[0] > 0
        assert tuned[1] == pytest.approx(-tuned[0])

    def test_what_is_learned_by_heart_only_is_not_taken(self):
        # The folds are the even and the odd places. Each teaches the opposite of the other, so that every
        # point left out is wrong; the points at x = 0 say nothing.
        me = person([(2, 0), (2, 1), (2, 0), (2, 1), (2, 0)], goal=[(0, 0), (0, 1)])
        assert fine_tuned(me).tolist() == [0, 0]

    def test_half_of_the_way_without_evidence(self, monkeypatch):
        # All scores are the same at x = 0. Half of the way from (0, 0) to (1, −1).
        monkeypatch.setattr(Client, "train", lambda *_, **__: RIGHT)
        assert fine_tuned(person([(0, 0), (0, 1)] * 2, goal=[(0, 0), (0, 1)])).tolist() == [0.5, -0.5]
        # None of it where the goal is something else than the points to train on.
        other = person([(0, 0), (0, 1)] * 2, goal=[(0, 0), (0, 1)], probe=[(0, 0)])
        assert fine_tuned(other).tolist() == [0, 0]

    def test_all_of_the_way_if_that_is_better_by_a_standard_error(self, monkeypatch):
        # Scores are σ(2wxt), and t = 5 makes the labels most likely: σ(0), σ(5), σ(10) in all six points.
        monkeypatch.setattr(Client, "train", lambda *_, **__: RIGHT)
        assert fine_tuned(person([(1, 0)] * 4, goal=[(1, 0)] * 2)).tolist() == RIGHT.tolist()

    def test_a_training_that_diverged_is_not_taken(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: np.full(2, np.nan, np.float32))
        assert fine_tuned(person([(1, 0)] * 2, goal=[(1, 0)]), WRONG).tolist() == WRONG.tolist()

    def test_the_goal_decides_alone_if_it_is_something_else(self):
        me = person([(2, 0)] * 4, goal=[(2, 1)] * 4, probe=[(2, 0)] * 4)
        assert fine_tuned(me).tolist() == [0, 0]
        me = person([(2, 1)] * 4, goal=[(2, 1)] * 4, probe=[(2, 0)] * 4)
        assert fine_tuned(me)[1] > 0

    @pytest.mark.parametrize(("chosen", "expected"), [(0, [-1, 1]), (1, [0, -0.1]), (2, [1, -1.2])])
    def test_the_candidates_are_the_mix_half_of_the_way_and_all_of_it(self, chosen, expected, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: np.array([1, -1.2], np.float32))
        tables = []
        monkeypatch.setattr(
            personalization, "choose_on_evidence", lambda scores, *_: tables.extend(scores) or chosen
        )
        me = person([(2, 0), (1, 0)] * 2, goal=[(2, 0)])
        np.testing.assert_allclose(fine_tuned(me, WRONG), expected, rtol=1e-6, atol=1e-8)
        # Every candidate is scored on all five points: (−1, 1) is wrong on them, the others are right.
        assert [(len(table), bool((table > 0.5).all())) for table in tables] == [
            (5, False),
            (5, True),
            (5, True),
        ]

    def test_a_client_without_points_to_train_on_keeps_its_mix(self):
        me = person([(2, 0)], goal=[(2, 0), (1, 0)])
        empty = replace(me, parts=replace(me.parts, train=me.parts.test))
        assert fine_tuned(empty, RIGHT).tolist() == RIGHT.tolist()

    def test_it_is_the_same_every_time(self):
        first, second = (fine_tuned(person([(2, 0), (1, 0), (3, 0)], goal=[(1, 0)])) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_folds_are_of_the_scored_points_and_everything_else_is_trained_on(self, monkeypatch):
        # Two of five points are scored, one in each fold: first all are trained on, then the four others.
        trained_on = []
        monkeypatch.setattr(Client, "train", lambda me, start, on=None, **_: trained_on.append(on) or start)
        me = person([(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)], goal=[(1, 0), (2, 0)])
        fine_tune_on_evidence(ZERO, OwnPoints.of(me, 2), me)
        assert trained_on[0] is None
        assert [on.x[:, 0].tolist() for on in trained_on[1:3]] == [[2, 3, 4, 5], [1, 3, 4, 5]]

    def test_once_it_is_decided_the_points_held_back_are_trained_on_too(self, monkeypatch):
        # Every training finds the right model, so that all points are evidence for it.
        trained_on = []
        monkeypatch.setattr(Client, "train", lambda me, start, on=None, **_: trained_on.append(on) or RIGHT)
        me = person([(1, 0), (2, 0), (3, 0), (4, 0)], goal=[(5, 0), (6, 0)])
        np.testing.assert_array_equal(fine_tuned(me, WRONG), RIGHT)
        assert trained_on[-1].x[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
        # Not where others decide by them: whether a client leaves, or when a run stops.
        trained_on.clear()
        held = person([(1, 0), (2, 0), (3, 0), (4, 0)], goal=[(5, 0), (6, 0)], use_probe=False)
        np.testing.assert_array_equal(fine_tuned(held, WRONG), RIGHT)
        assert all(on is None or 5 not in on.x for on in trained_on)
        # With a goal of its own, that is no training data.
        trained_on.clear()
        other = person([(1, 0), (2, 0), (3, 0)], goal=[(5, 0), (6, 0)], probe=[(7, 0)])
        np.testing.assert_array_equal(fine_tuned(other, WRONG), RIGHT)
        assert all(on is None or 5 not in on.x for on in trained_on)


class TestClient:
    def test_training_on_some_points_only(self):
        # At w = 0 the gradient of (2, class 0) is (−1, 1), of (2, class 1) the opposite: together nothing.
        me = client((2, 0), (2, 1))
        np.testing.assert_allclose(me.train(ZERO), [0, 0], atol=1e-8)
        np.testing.assert_allclose(me.train(ZERO, on=points((2, 0))), [0.1, -0.1], rtol=1e-6)

    def test_log_probabilities_by_hand(self):
        # Logits (2, −2) at x = 2: log σ(4) and log σ(−4); at x = 0 two halves.
        logs = client((2, 0)).log_scores(RIGHT, points((2, 1), (0, 0)))
        np.testing.assert_allclose(np.exp(logs), [[sigma(4), sigma(-4)], [0.5, 0.5]], rtol=1e-5)

    def test_log_probabilities_of_no_points(self):
        me = client((2, 0))
        assert me.log_scores(RIGHT, me.data("goal")).shape == (0, 2)


class TestAdapt:
    OFFER = Record({"cluster_0": ZERO, "cluster_1": ZERO}, {"clusters": [0, 1], "means": [0.5, 0.5]})

    def test_so_many_epochs_by_hand(self):
        # Steps of 0.2·0.1. At w = 0 the gradient of (2, class 0) is (−1, 1): w = 0.02·(1, −1). There it is
        # 2σ(−4·0.02) long, so that the second epoch adds 0.02·2σ(−0.08).
        me = person([(2, 0)], goal=[(2, 1)])
        tuned = IPFL(adapt=2).personalize(self.OFFER, Record(), me)
        expected = 0.02 + 0.02 * 2 * sigma(-0.08)
        np.testing.assert_allclose(tuned, [expected, -expected], rtol=1e-5)

    @pytest.mark.parametrize("mix", ["paper", "best", "tuned", "evidence"])
    def test_0_trains_nothing(self, mix, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        model = IPFL(mix=mix, adapt=0).personalize(self.OFFER, Record(), me)
        assert model.tolist() == [0, 0]

    def test_auto_trains_where_it_helps(self):
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        assert IPFL().personalize(self.OFFER, Record(), me)[0] > 0

    def test_a_quick_look_does_not_train(self):
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        watched = Record(self.OFFER.params, {**self.OFFER.facts, QUICK: True})
        mixed = IPFL(adapt=0).personalize(self.OFFER, Record(), me)
        assert np.array_equal(IPFL().personalize(watched, Record(), me), mixed)
        assert not np.array_equal(IPFL().personalize(self.OFFER, Record(), me), mixed)

    @pytest.mark.parametrize(
        ("settings", "passes"),
        [
            ({"mix": "paper", "adapt": 0}, 2),  # both models
            ({"mix": "tuned", "adapt": 0}, 2 + 5),  # and five mixes of them
            ({"mix": "evidence", "adapt": 0}, 2 + 2 * 7),  # all seven candidates on `goal` and on `train`
            ({"mix": "paper", "adapt": 4}, 2 + 3 * 4),
            ({"mix": "paper", "adapt": "auto"}, 2),  # which does not train while a run is only watched
        ],
    )
    def test_cost(self, settings, passes):
        method = IPFL(**settings)
        assert method.personalize_cost(method.init(setup(4))) == passes
