"""FedALA by hand: steps on the weights, the initial stage, what is blended and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation import ZERO, client, setup, sigma, train_round

from ipfl.core import Record
from ipfl.methods.personal import fedala
from ipfl.methods.personal.fedala import Blend, FedALA

OWN = np.array([0.5, -0.5], np.float32)
ASK = Record({"global": ZERO})
ONES = np.ones(2, np.float32)


def weight(steps: int, eta: float = 1.0) -> float:
    """W after so many steps of a client with the point (2, class 0), its own model at 0.5·(1, −1), Θ = 0.

    Both elements alike: Θ̂ = 0.5·(1 − W)·(1, −1), gap ∓0.5, gradient ∓2σ(−4·0.5·(1 − W)), so that a step is
    W ← W − η·σ(−2·(1 − W)). The first goes from 1 to 1/2.
    """
    w = 1.0
    for _ in range(steps):
        w = min(max(w - eta * sigma(-2 * (1 - w)), 0), 1)
    return w


def trained(start: float) -> float:
    """One step of 0.1 from start·(1, −1) on the point (2, class 0)."""
    return start + 0.1 * 2 * sigma(-4 * start)


class TestTwoRounds:
    def test_the_first_starts_from_the_global_model(self):
        # 0 goes to 0.1·(1, −1); the other client has no gradient. The mean is 0.05·(1, −1).
        method = FedALA()
        clients = [client((2, 0)), client((0, 0), id=1)]
        done, memories = train_round(method, method.init(setup(2)), clients)
        np.testing.assert_allclose(done.state.params, [0.05, -0.05], rtol=1e-6)
        np.testing.assert_allclose(memories[0].params["own"], [0.1, -0.1], rtol=1e-6)
        assert "weights" not in memories[0].params, "there was nothing to blend"

    def test_the_second_blends(self):
        # Own 0.5, global 0, one epoch of one step on W (it has been learned before): 1 becomes 1/2, so that
        # training starts at 0.25·(1, −1) and not at 0, and the reply is what came of it.
        mine = Record({"own": OWN, "weights": ONES})
        reply, mine = FedALA().on_train(ASK, mine, client((2, 0)))
        assert mine.params["weights"].tolist() == [0.5, 0.5]
        expected = trained(0.25)
        np.testing.assert_allclose(reply.params["global"], [expected, -expected], rtol=1e-6)
        assert mine.params["own"].tobytes() == reply.params["global"].tobytes()
        assert reply.facts == {"n": 1}


class TestWeights:
    @pytest.mark.parametrize(("eta", "expected"), [(0.5, 0.75), (1, 0.5), (3, 0)])
    def test_eta_and_the_lower_limit(self, eta, expected):
        # A step of η/2 from 1; with η = 3 it would be −1/2.
        _, mine = FedALA(eta=eta).on_train(ASK, Record({"own": OWN, "weights": ONES}), client((2, 0)))
        assert mine.params["weights"].tolist() == [expected, expected]

    def test_the_upper_limit(self):
        # For class 1 the own model is the wrong way: W would grow from 1 to 3/2, and stays.
        _, mine = FedALA().on_train(ASK, Record({"own": OWN, "weights": ONES}), client((2, 1)))
        assert mine.params["weights"].tolist() == [1, 1]

    def test_each_element_has_its_own(self):
        # Own (0.5, 0): the gap is −0.5 for the first element alone; the second has none, and no slope.
        own = np.array([0.5, 0], np.float32)
        _, mine = FedALA().on_train(ASK, Record({"own": own, "weights": ONES}), client((2, 0)))
        assert mine.params["weights"].tolist() == [0.5, 1]

    @pytest.mark.parametrize(("share", "steps"), [(1, 10), (0.4, 4), (0.01, 1)])
    def test_share_of_the_data(self, share, steps):
        # Ten equal points in batches of one: as many steps as points are sampled, and one at least.
        me = client(*[(2, 0)] * 10, batch_size=1)
        _, mine = FedALA(share=share, eta=0.1).on_train(ASK, Record({"own": OWN, "weights": ONES}), me)
        np.testing.assert_allclose(mine.params["weights"], weight(steps, eta=0.1), rtol=1e-5)

    def test_momentum_and_weight_decay_are_for_the_model_alone(self):
        me = client((2, 0), (2, 0), batch_size=1, momentum=0.9, weight_decay=0.5)
        _, mine = FedALA(share=1, eta=0.1).on_train(ASK, Record({"own": OWN, "weights": ONES}), me)
        np.testing.assert_allclose(mine.params["weights"], weight(2, eta=0.1), rtol=1e-5)


class TestInitialStage:
    def test_until_the_losses_settle(self):
        # 11 epochs at least, of steps no shorter than σ(−2) = 0.12 while W > 0: from 1 to 0, where it stays.
        _, mine = FedALA().on_train(ASK, Record({"own": OWN}), client((2, 0)))
        assert mine.params["weights"].tolist() == [0, 0]
        np.testing.assert_allclose(mine.params["own"][0], trained(0.5), rtol=1e-6)

    def test_recent_losses(self):
        # The deviation of one loss is 0, so that it ends with the second epoch, the first with one before it.
        _, mine = FedALA(recent=1).on_train(ASK, Record({"own": OWN}), client((2, 0)))
        np.testing.assert_allclose(mine.params["weights"], weight(2), rtol=1e-5)

    def test_threshold(self):
        # Losses at W are ln(1 + e^(−2(1−W))): 0.313, 0.194, 0.155, 0.144, … after W = 0.5, 0.231, 0.054 and
        # then 0 (0.127). Two in a row deviate by half their difference: 0.06, 0.02, 0.01, …
        # Below 0.04 they do first after the third epoch.
        _, mine = FedALA(recent=2, threshold=0.04).on_train(ASK, Record({"own": OWN}), client((2, 0)))
        np.testing.assert_allclose(mine.params["weights"], weight(3), rtol=1e-4)

    def test_it_ends_even_if_they_never_do(self, monkeypatch):
        monkeypatch.setattr(fedala, "MAX_INITIAL_EPOCHS", 2)
        _, mine = FedALA(recent=50).on_train(ASK, Record({"own": OWN}), client((2, 0)))
        np.testing.assert_allclose(mine.params["weights"], weight(2), rtol=1e-5)

    def test_it_comes_once(self):
        method, me = FedALA(recent=1, eta=0.1), client((2, 0))
        _, mine = method.on_train(ASK, Record({"own": OWN}), me)
        kept = Record({"own": OWN, "weights": mine.params["weights"]})
        _, mine = method.on_train(ASK, kept, me)
        np.testing.assert_allclose(mine.params["weights"], weight(3, eta=0.1), rtol=1e-5)


def test_lower_layers_are_those_of_the_global_model():
    # Of four parameters the last two are blended: 1 + (5 − 1)·1/4 = 2 and 2 + (6 − 2)·1/2 = 4.
    own, shared = np.array([8, 9, 1, 2], np.float32), np.array([3, 4, 5, 6], np.float32)
    blend = Blend(own, shared, slice(2, 4), np.array([0.25, 0.5], np.float32), eta=1)
    assert blend.model.tolist() == [3, 4, 2, 4]
    assert shared.tolist() == [3, 4, 5, 6]


def test_what_clients_deploy():
    method = FedALA()
    state = method.init(setup(2))
    offer = method.offer(state, 99)
    assert method.personalize(offer, Record({"own": OWN, "weights": ONES}), client((2, 0))) is OWN
    assert method.personalize(offer, Record(), client((2, 0))) is state.params
    assert method.models(state) == {"global": state.params}
