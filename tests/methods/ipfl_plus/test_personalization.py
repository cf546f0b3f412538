"""A client at deployment, with a model of two parameters: which points count, mixing, fine-tuning.

The logits of a point x are (w_0·x, w_1·x): a model (w, −w) with w > 0 says class 0 of every x > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import ZERO, client, points, setup, sigma
from torch import nn

from ipfl.client.client import Client
from ipfl.core import QUICK, Record
from ipfl.data.federated import Parts
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.personalization import (
    OwnPoints,
    fine_tune_some_of_the_way,
    fine_tuned_share,
    mix_on_evidence,
    with_label_prior,
)
from ipfl.training.network import Network

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
    return fine_tune_some_of_the_way(start, OwnPoints.of(me, 128), me)


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
    def test_the_mix_at_hand_stays_without_evidence(self):
        # At x = 0 every model gives 1/2 to both classes, so that no mix is better than another.
        me = person([(0, 0), (0, 1)], goal=[(0, 0)])
        mixed = mix_on_evidence([RIGHT, 3 * RIGHT], np.array([0.25, 0.75]), OwnPoints.of(me, 128), me)
        # υ^4 = (1, 81)/82 of the outputs 1 and 3: 244/82.
        np.testing.assert_allclose(mixed, [244 / 82, -244 / 82], rtol=1e-6)

    def test_a_single_model_is_taken_if_the_mix_is_wrong(self):
        # υ = (0.4, 0.6) mixes (1, −1) and (−1, 1) to (−0.2, 0.2), which is wrong everywhere; so are υ^s for
        # s > 0, and s = 0 says nothing. Only the first model alone is right.
        me = person([(2, 0), (1, 0)], goal=[(3, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        assert mixed.tolist() == RIGHT.tolist()

    def test_one_point_is_not_enough(self):
        me = person([(2, 0)], goal=[(2, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        # υ^4 = (2^4, 3^4)/97 of 1 and −1.
        np.testing.assert_allclose(mixed, [-65 / 97, 65 / 97], rtol=1e-6)

    @pytest.mark.parametrize(
        ("use_probe", "hold_back", "kept"), [(True, 0.5, 1), (True, 1, 0), (False, 0.5, 0)]
    )
    def test_more_is_asked_of_points_that_were_trained_on(self, use_probe, hold_back, kept, monkeypatch):
        asked = []
        monkeypatch.setattr(
            "ipfl.methods.ipfl_plus.personalization.choose_on_evidence",
            lambda _, ask_for: asked.append(ask_for) or 0,
        )
        method = IPFL(hold_back=hold_back, adapt=0)
        offer = method.offer(method.init(setup(1)), 0)
        method.personalize(offer, Record(), person([(1, 0)], goal=[(1, 1)], use_probe=use_probe))
        assert [one is not None for one in asked] == [bool(kept)]
        other = person([(1, 0)], goal=[(1, 1)], probe=[(1, 0)], use_probe=use_probe)
        method.personalize(offer, Record(), other)
        assert asked.pop() is None, "nobody trains on a goal that is something else"


class TestFineTuning:
    def test_a_quarter_of_the_way_with_points_of_all_classes(self, monkeypatch):
        # A quarter of the way from (−1, 1) to (1, −1).
        monkeypatch.setattr(Client, "train", lambda *_, **__: RIGHT)
        me = person([(2, 0), (2, 1)], goal=[(1, 0), (1, 1)])
        np.testing.assert_allclose(fine_tuned(me, WRONG), [-0.5, 0.5], rtol=1e-6)

    def test_more_of_it_with_few_of_them(self, monkeypatch):
        # One of two classes: r = 1/2, and 1.25·(1 − 1/2) = 0.625 of the way of 2.
        monkeypatch.setattr(Client, "train", lambda *_, **__: RIGHT)
        me = person([(2, 0), (2, 0)], goal=[(1, 0)])
        np.testing.assert_allclose(fine_tuned(me, WRONG), [0.25, -0.25], rtol=1e-6)

    def test_who_goes_most_of_the_way_trains_longer_and_who_goes_all_of_it_in_larger_steps(self, monkeypatch):
        trained = []
        monkeypatch.setattr(
            Client,
            "train",
            lambda me, _, epochs, lr, **__: trained.append((epochs, lr / me.settings.lr)) or RIGHT,
        )
        fine_tuned(person([(2, 0), (2, 1)], goal=[(1, 0)]))
        fine_tuned(person([(2, 0), (2, 0)], goal=[(1, 0)]))  # 0.625 of the way
        one_of_five = replace(person([(2, 0)], goal=[(1, 0)]), classes=5)
        np.testing.assert_array_equal(fine_tuned(one_of_five, WRONG), RIGHT)
        gentle = pytest.approx(0.2)
        assert trained == [(5, gentle), (20, gentle), (20, pytest.approx(0.5))]

    def test_none_of_it_where_the_goal_is_something_else(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        other = person([(2, 0), (2, 1)], goal=[(1, 0)], probe=[(2, 0)])
        assert fine_tuned(other, WRONG).tolist() == WRONG.tolist()

    def test_a_training_that_diverged_is_not_taken(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: np.full(2, np.nan, np.float32))
        assert fine_tuned(person([(1, 0)] * 2, goal=[(1, 0)]), WRONG).tolist() == WRONG.tolist()

    def test_a_client_without_points_to_train_on_keeps_its_mix(self):
        me = person([(2, 0)], goal=[(2, 0), (1, 0)])
        empty = replace(me, parts=replace(me.parts, train=me.parts.test))
        assert fine_tuned(empty, RIGHT).tolist() == RIGHT.tolist()

    def test_it_is_the_same_every_time(self):
        first, second = (fine_tuned(person([(2, 0), (1, 0), (3, 0)], goal=[(1, 0)])) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_held_back_points_are_trained_on_if_nobody_else_decides_by_them(self, monkeypatch):
        trained_on = []
        monkeypatch.setattr(Client, "train", lambda me, start, on=None, **_: trained_on.append(on) or start)
        fine_tuned(person([(1, 0), (2, 0)], goal=[(5, 0), (6, 0)]))
        assert trained_on.pop().x[:, 0].tolist() == [1, 2, 5, 6]
        fine_tuned(person([(1, 0), (2, 0)], goal=[(5, 0), (6, 0)], use_probe=False))
        assert trained_on.pop() is None, "`train` alone"
        fine_tuned(person([(1, 0), (2, 0)], goal=[(1, 0), (2, 0)]))
        assert trained_on.pop() is None, "a newcomer has one set for all: no point twice"


class TestLabelPrior:
    def test_what_fine_tuning_left_is_added_to_the_biases(self):
        # 18 labels of one class and 2 of the other: r = exp(H)/2 with H = 0.325 + 1/40 = 0.350 is 0.7096, and
        # 1.25·0.2904 = 0.363 of the way is fine-tuned; 0.637 of log 2p = (0.5640, −1.417) is left.
        me = self.with_biases(person([(1, 0)] * 18, goal=[(1, 1)] * 2))
        found = with_label_prior(np.zeros(4, np.float32), OwnPoints.of(me, 128), me)
        np.testing.assert_allclose(found, [0, 0, 0.359, -0.903], atol=2e-3)

    def test_nothing_without_biases_or_where_the_goal_is_something_else(self):
        me = person([(1, 0)] * 18, goal=[(1, 1)] * 2)
        assert with_label_prior(RIGHT, OwnPoints.of(me, 128), me) is RIGHT
        other = self.with_biases(person([(1, 0)] * 18, goal=[(1, 1)] * 2, probe=[(1, 0)]))
        start = np.zeros(4, np.float32)
        assert with_label_prior(start, OwnPoints.of(other, 128), other) is start

    @pytest.mark.parametrize("label_prior", [True, False])
    def test_the_setting(self, label_prior, monkeypatch):
        monkeypatch.setattr(
            "ipfl.methods.ipfl_plus.client_side.with_label_prior", lambda model, points, me: model + 100
        )
        method, me = IPFL(label_prior=label_prior), person([(1, 0)] * 4, goal=[(1, 1)])
        offer = method.offer(method.init(setup(1)), 0)
        assert (method.personalize(offer, Record(), me).min() > 50) is np.bool_(label_prior)

    @staticmethod
    def with_biases(me: Client) -> Client:
        return replace(me, network=Network(nn.Linear(1, 2), (1,)))


class TestHowFar:
    """r = exp(H + (m − 1)/2n) / C for m of C classes in n points; max(1/4, 1.25·(1 − r)), from 0.9 on 1."""

    def test_all_classes_alike(self):
        # H = log 4; with the correction r would be above 1, and nothing is missing.
        assert fine_tuned_share(np.arange(40) % 4, 4) == 0.25

    def test_one_class(self):
        assert fine_tuned_share(np.zeros(7, np.int64), 2) == pytest.approx(1.25 / 2)
        assert fine_tuned_share(np.zeros(7, np.int64), 5) == 1
        assert fine_tuned_share(np.zeros(7, np.int64), 52) == 1

    def test_two_of_five_classes_by_hand(self):
        # H = log 2, and 1/20 for ten points: r = 2·e^0.05/5 = 0.42051, 1.25·0.57949 = 0.72436.
        assert fine_tuned_share(np.array([0, 3] * 5), 5) == pytest.approx(0.72436, abs=1e-5)

    def test_nine_tenths_are_all_of_it(self):
        # Two of ten: r = 2·e^0.05/10 = 0.21025, and 1.25·0.78975 = 0.98718. Three of ten, nine points: r =
        # 3·e^(1/9)/10 = 0.33526, 1.25·0.66474 = 0.83093.
        assert fine_tuned_share(np.array([0, 3] * 5), 10) == 1
        assert fine_tuned_share(np.array([0, 3, 7] * 3), 10) == pytest.approx(0.83093, abs=1e-5)

    @given(st.lists(st.integers(0, 9), min_size=1, max_size=80))
    def test_it_is_a_share_and_more_classes_need_less(self, labels):
        share = fine_tuned_share(np.array(labels), 10)
        assert 0.25 <= share <= 1
        assert fine_tuned_share(np.array([*labels, *range(10)] * 10), 10) <= share + 1e-9


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

    def test_auto_trains(self):
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
