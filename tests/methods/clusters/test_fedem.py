"""FedEM by hand: responsibilities, weighted training of every learner, mixture weights."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.federation import ZERO, client, points, setup, train_round

from ipfl.config.sections import AggregateConfig
from ipfl.core import Record
from ipfl.methods.clusters.fedem import MIXTURE_STEPS, FedEM, mixture_weights, responsibilities
from ipfl.methods.shared.cluster_models import ClusterModels
from ipfl.methods.shared.steps import WORST_LOSS

T = math.log(3) / 4
SURE = np.array([T, -T], np.float32)
"""On x = 2 its scores differ by 4T = ln 3: it gives class 0 the probability 0.75."""


def learners(*vectors: np.ndarray, per_round: int = 2) -> ClusterModels:
    return ClusterModels(tuple(vectors), per_round, seed=0, rule=AggregateConfig())


class TestResponsibilities:
    def test_equal_weights(self):
        # ½·e^0 : ½·e^(−ln 3) = 3 : 1, and the other way round.
        found = responsibilities(np.array([0.5, 0.5]), np.array([[0, math.log(3)], [math.log(3), 0]]))
        np.testing.assert_allclose(found, [[0.75, 0.25], [0.25, 0.75]])

    def test_weights_count(self):
        # ¼·1 : ¾·⅓ = 1 : 1.
        found = responsibilities(np.array([0.25, 0.75]), np.array([[0], [math.log(3)]]))
        np.testing.assert_allclose(found, [[0.5], [0.5]])

    def test_losses_beyond_all_floats(self):
        # Where no learner is any good, weights are too small to matter beside 1e30: equal shares.
        found = responsibilities(np.array([1.0, 0.0]), np.array([[WORST_LOSS, WORST_LOSS], [WORST_LOSS, 0]]))
        np.testing.assert_allclose(found, [[0.5, 0], [0.5, 1]])


class TestRound:
    def test_one_round(self):
        # Client 0 has a point (2, class 0). Learner 0 at w = 0 gives it ½, learner 1 gives it ¾, so
        # q = (½, ¾)/(5/4) = (0.4, 0.6). Gradients there: 2·p_1 = 1 and 2·¼ = ½, so steps of 0.1·q are 0.04
        # and 0.03. Client 1 has three points at x = 0 that teach nothing: its copies stay, at three quarters
        # of the weight; both learners explain them as well, q = ½.
        clients = [client((2, 0)), client((0, 0), (0, 0), (0, 0), id=1)]
        done, memories = train_round(FedEM(lr_factor=1), learners(ZERO, SURE), clients)
        np.testing.assert_allclose(done.replies[0].params["cluster_0"], [0.04, -0.04], rtol=1e-6)
        np.testing.assert_allclose(done.replies[0].params["cluster_1"], [T + 0.03, -T - 0.03], rtol=1e-6)
        np.testing.assert_allclose(done.state.models[0], [0.01, -0.01], rtol=1e-6)
        np.testing.assert_allclose(done.state.models[1], [T + 0.0075, -T - 0.0075], rtol=1e-6)
        assert memories[0].facts["weights"] == pytest.approx([0.4, 0.6], rel=1e-6)
        assert memories[1].facts["weights"] == pytest.approx([0.5, 0.5], rel=1e-6)
        assert [dict(reply.facts) for reply in done.replies.values()] == [{"n": 1}, {"n": 3}]
        assert done.seats == [(0, -1, "random", True), (1, -1, "random", True)]

    def test_remembered_weights_go_into_the_next(self):
        # q = (0.4·½, 0.6·¾)/(0.2 + 0.45) = (4/13, 9/13).
        ask, mine = Record(learners(ZERO, SURE).named), Record({}, {"weights": [0.4, 0.6]})
        _, mine = FedEM().on_train(ask, mine, client((2, 0)))
        assert mine.facts["weights"] == pytest.approx([4 / 13, 9 / 13], rel=1e-6)

    def test_every_point_has_its_own_share(self):
        # A second point (2, class 1): ½ and ¼, so q = (⅔, ⅓). Learner 0: a batch of two has the gradient
        # (0.4·(−1) + ⅔·1)/2 in w_0, so a step of 0.1 goes to −0.1·(⅔ − 0.4)/2 = −1/75.
        reply, mine = FedEM(lr_factor=1).on_train(
            Record(learners(ZERO, SURE).named), Record(), client((2, 0), (2, 1))
        )
        np.testing.assert_allclose(reply.params["cluster_0"], [-1 / 75, 1 / 75], rtol=1e-5)
        assert mine.facts["weights"] == pytest.approx([8 / 15, 7 / 15], rel=1e-6)

    def test_longer_steps(self):
        ask = Record(learners(ZERO, SURE).named)
        reply, _ = FedEM(lr_factor=2.5).on_train(ask, Record(), client((2, 0)))
        np.testing.assert_allclose(reply.params["cluster_0"], [0.1, -0.1], rtol=1e-6)


class TestMixtureWeights:
    def test_points_that_only_one_learner_explains(self):
        # Three points of learner 0, one of learner 1: the shares, after any number of steps.
        losses = np.array([[0, 0, 0, WORST_LOSS], [WORST_LOSS, WORST_LOSS, WORST_LOSS, 0]])
        np.testing.assert_allclose(mixture_weights(losses), [0.75, 0.25])

    def test_points_that_all_explain_alike_say_nothing(self):
        np.testing.assert_allclose(mixture_weights(np.ones((3, 5))), [1 / 3] * 3)

    @given(
        losses=arrays.arrays(np.float64, (3, 7), elements=st.floats(0, 50)),
        other=arrays.arrays(np.float64, 3, elements=st.floats(0.001, 1)),
    )
    def test_no_other_weights_are_likelier(self, losses, other):
        # EM for weights alone is mirror descent: from equal weights the mean log-likelihood is within
        # KL(best, equal)/steps ≤ ln(M)/steps of the best.
        def likelihood(weights):
            return np.logaddexp.reduce(np.log(weights + 1e-300)[:, None] - losses, axis=0).mean()

        assert (
            likelihood(mixture_weights(losses))
            >= likelihood(other / other.sum()) - math.log(3) / MIXTURE_STEPS
        )


def test_a_client_deploys_a_mixture_that_fits_its_goal():
    method, me = FedEM(), client((2, 0))
    # Learner 0 gives a point (2, class 0) almost 1 and class 1 almost 0; learner 1 the reverse.
    sides = [np.array([sign * 9, -sign * 9], np.float32) for sign in (1, -1)]
    goal = points((2, 1), (2, 1), (2, 1), (2, 0))
    me = dataclasses.replace(me, parts=dataclasses.replace(me.parts, goal=goal))
    deployed = method.personalize(method.offer(learners(*sides), 99), Record({}, {"weights": [1, 0]}), me)
    assert [model.tolist() for model in deployed.models] == [[9, -9], [-9, 9]]
    assert deployed.weights == pytest.approx((0.25, 0.75))


def test_learners_start_differently_and_their_cost_is_reported():
    method = FedEM(clusters=3)
    state = method.init(setup(2, make_params=lambda k: np.full(2, k, np.float32)))
    assert [model[0] for model in state.models] == [0, 1, 2]
    assert method.report(state) == {"trainings_per_seat": 3}
    assert list(method.models(state)) == ["cluster_0", "cluster_1", "cluster_2"]
