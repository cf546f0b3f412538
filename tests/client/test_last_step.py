"""The last step at a client, with a model of two parameters: which points count, training, class priors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.persons import RIGHT, WRONG, person
from tests.federation import ZERO, client, points, sigma
from torch import nn

from ipfl.client.client import Client
from ipfl.client.last_step import fine_tuned_share, personalized, take_last_step
from ipfl.client.own_points import OwnPoints
from ipfl.config.train_section import AdaptConfig
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.training.network import Network
from ipfl.training.sgd import Mixture


def some_of_the_way(me: Client, start: np.ndarray = ZERO) -> np.ndarray:
    return take_last_step(start, AdaptConfig(epochs="auto"), me)[0]


BOTH = [(2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("parts", "held_back", "trained"),
    [
        # A client that wants to be good at what it has: also where equal parts were made twice.
        ({"train": BOTH, "goal": [(1, 1)]}, [1], [0, 1]),
        ({"train": BOTH, "goal": [(1, 1)], "probe": [(1, 1)]}, [1], [0, 1]),
        # The goal is something else.
        ({"train": BOTH, "goal": [(1, 1)], "probe": [(1, 0)]}, [1], []),
        # No point twice: a newcomer has one set for all. For a method without probe `train.use_probe`
        # puts the goal at the end of train.
        ({"train": BOTH, "goal": BOTH}, [], [0, 1]),
        ({"train": [*BOTH, (4, 1)], "goal": [(3, 1), (4, 1)]}, [], [0, 1, 1]),
        # No more of each than the limit of 3.
        ({"train": [(2, 0)] * 5, "goal": [(1, 1)] * 5}, [1] * 3, [0] * 3),
    ],
)
def test_which_points_count(parts, held_back, trained):
    own = OwnPoints.of(person(**parts), 3)
    assert (own.held_back.y.tolist(), own.trained.y.tolist()) == (held_back, trained)
    assert own.labels.tolist() == held_back + trained


class TestFineTuning:
    def test_a_quarter_of_the_way_and_more_of_it_with_few_classes(self, monkeypatch):
        """From (−1, 1) to (1, −1): a way of 2."""
        monkeypatch.setattr(Client, "train", lambda *_, **__: RIGHT)
        both = person([(2, 0), (2, 1)], goal=[(1, 0), (1, 1)])
        np.testing.assert_allclose(some_of_the_way(both, WRONG), [-0.5, 0.5], rtol=1e-6)
        # One of two classes: r = 1/2, and 1.25·(1 − 1/2) = 0.625 of the way.
        one = person([(2, 0), (2, 0)], goal=[(1, 0)])
        np.testing.assert_allclose(some_of_the_way(one, WRONG), [0.25, -0.25], rtol=1e-6)

    def test_who_goes_most_of_the_way_trains_longer_and_who_goes_all_of_it_in_larger_steps(self, monkeypatch):
        trained = []
        monkeypatch.setattr(
            Client,
            "train",
            lambda me, _, epochs, lr, **__: trained.append((epochs, lr / me.settings.lr)) or RIGHT,
        )
        some_of_the_way(person([(2, 0), (2, 1)], goal=[(1, 0)]))
        some_of_the_way(person([(2, 0), (2, 0)], goal=[(1, 0)]))  # 0.625 of the way
        one_of_five = replace(person([(2, 0)], goal=[(1, 0)]), classes=5)
        np.testing.assert_array_equal(some_of_the_way(one_of_five, WRONG), RIGHT)
        gentle = pytest.approx(0.2)
        assert trained == [(5, gentle), (20, gentle), (20, pytest.approx(0.5))]

    def test_none_of_it_where_the_goal_is_something_else(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        other = person([(2, 0), (2, 1)], goal=[(1, 0)], probe=[(2, 0)])
        assert some_of_the_way(other, WRONG).tolist() == WRONG.tolist()

    def test_a_training_that_diverged_is_not_taken(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: np.full(2, np.nan, np.float32))
        assert some_of_the_way(person([(1, 0)] * 2, goal=[(1, 0)]), WRONG).tolist() == WRONG.tolist()

    def test_a_client_without_points_to_train_on_keeps_its_network(self):
        me = person([(2, 0)], goal=[(2, 0), (1, 0)])
        empty = replace(me, parts=replace(me.parts, train=me.parts.test))
        assert some_of_the_way(empty, RIGHT).tolist() == RIGHT.tolist()

    def test_training_on_some_points_only(self):
        # At w = 0 the gradient of (2, class 0) is (−1, 1), of (2, class 1) the opposite: together nothing.
        me = client((2, 0), (2, 1))
        np.testing.assert_allclose(me.train(ZERO), [0, 0], atol=1e-8)
        np.testing.assert_allclose(me.train(ZERO, on=points((2, 0))), [0.1, -0.1], rtol=1e-6)

    def test_held_back_points_are_trained_on_if_nobody_else_decides_by_them(self, monkeypatch):
        trained_on = []
        monkeypatch.setattr(Client, "train", lambda me, start, on=None, **_: trained_on.append(on) or start)
        some_of_the_way(person([(1, 0), (2, 0)], goal=[(5, 0), (6, 0)]))
        assert trained_on.pop().x[:, 0].tolist() == [1, 2, 5, 6]
        some_of_the_way(person([(1, 0), (2, 0)], goal=[(5, 0), (6, 0)], use_probe=False))
        assert trained_on.pop() is None, "`train` alone"
        some_of_the_way(person([(1, 0), (2, 0)], goal=[(1, 0), (2, 0)]))
        assert trained_on.pop() is None, "a newcomer has one set for all: no point twice"


class TestLabelPrior:
    def test_what_fine_tuning_left_is_added_to_the_biases(self, monkeypatch):
        # 18 labels of one class and 2 of the other: r = exp(H)/2 with H = 0.325 + 1/40 = 0.350 is 0.7096, and
        # 1.25·0.2904 = 0.363 of the way is fine-tuned; 0.637 of log 2p = (0.5640, −1.417) is left.
        monkeypatch.setattr(Client, "train", lambda me, start, **_: start)
        me, start = self.with_biases(person([(1, 0)] * 18, goal=[(1, 1)] * 2)), np.zeros(4, np.float32)
        found, _ = take_last_step(start, AdaptConfig(epochs="auto", label_prior=True), me)
        np.testing.assert_allclose(found, [0, 0, 0.359, -0.903], atol=2e-3)
        assert take_last_step(start, AdaptConfig(epochs="auto"), me)[0].tolist() == [0] * 4

    def test_without_training_all_of_it_is_added(self):
        me = self.with_biases(person([(1, 0)] * 18, goal=[(1, 1)] * 2))
        found, passes = take_last_step(np.zeros(4, np.float32), AdaptConfig(label_prior=True), me)
        np.testing.assert_allclose(found, [0, 0, 0.5640, -1.417], atol=1e-3)
        assert passes == 0

    def test_nothing_without_biases_or_where_the_goal_is_something_else(self):
        me = person([(1, 0)] * 18, goal=[(1, 1)] * 2)
        assert take_last_step(RIGHT, AdaptConfig(label_prior=True), me)[0] is RIGHT
        other = self.with_biases(person([(1, 0)] * 18, goal=[(1, 1)] * 2, probe=[(1, 0)]))
        start = np.zeros(4, np.float32)
        assert take_last_step(start, AdaptConfig(label_prior=True), other)[0] is start

    @staticmethod
    def with_biases(me: Client) -> Client:
        return replace(me, network=Network(nn.Linear(1, 2), (1,)))


class TestHowFar:
    """r = exp(H + (m − 1)/2n) / C for m of C classes in n points; max(1/4, 1.25·(1 − r)), from 0.9 on 1."""

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


class TestFixedEpochs:
    def test_by_hand(self):
        # At w = 0 the gradient of (2, class 0) is (−1, 1): w = 0.1·(1, −1). There it is 2σ(−4·0.1) long, so
        # that the second epoch adds 0.1·2σ(−0.4).
        me = person([(2, 0)], goal=[(2, 1)])
        tuned, passes = take_last_step(ZERO, AdaptConfig(epochs=2), me)
        expected = 0.1 + 0.1 * 2 * sigma(-0.4)
        np.testing.assert_allclose(tuned, [expected, -expected], rtol=1e-5)
        assert passes == 2 * 3
        np.testing.assert_allclose(take_last_step(ZERO, AdaptConfig(epochs=1, lr=0.3), me)[0], [0.3, -0.3])

    def test_go_all_of_the_way_so_that_nothing_of_the_prior_is_left(self):
        with pytest.raises(InputError, match=r"adapt\.label_prior adds what training leaves out"):
            AdaptConfig(epochs=3, label_prior=True)


class TestWho:
    OFFER = Record({"global": ZERO})

    def test_newcomers_only_if_asked_for(self):
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        for newcomers in (False, True):
            adapt = AdaptConfig(epochs=1, newcomers=newcomers)
            found = personalized(FedAvg(), adapt, self.OFFER, Record(), me, is_member=False)
            assert found.predictor.any() is np.bool_(newcomers)
            assert personalized(FedAvg(), adapt, self.OFFER, Record(), me).predictor.any()

    def test_off_by_default(self, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        found = personalized(FedAvg(), AdaptConfig(), self.OFFER, Record(), person([(2, 0)], goal=[(1, 0)]))
        assert found.predictor is ZERO
        assert found.passes == found.seconds == 0

    def test_not_with_more_than_one_network(self, monkeypatch):
        monkeypatch.setattr(FedAvg, "personalize", lambda *_: Mixture((ZERO, ZERO), (0.5, 0.5)))
        me = person([(2, 0)], goal=[(1, 0)])
        with pytest.raises(InputError, match="needs one network, and fedavg gives a Mixture"):
            personalized(FedAvg(), AdaptConfig(epochs=1), self.OFFER, Record(), me)
