"""Ditto by hand: the personal model's steps, what stays with the client, and both accuracies."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation import ZERO, client, setup, sigma, train_round

from ipfl.client.runner import EVALUATE
from ipfl.core import Record
from ipfl.methods.personal.ditto import Ditto


def test_two_rounds():
    # Round 0: both of client 0's models go from 0 to 0.1·(1, −1); the pull is 0 at the anchor. Client 1 never
    # moves and has as many points, so w = 0.05·(1, −1).
    # Round 1: v = 0.1 + 0.1·(2σ(−0.4) − λ·(0.1 − 0.05)): from where v was, anchored at w as received. The
    # copy of w goes to 0.05 + 0.1·2σ(−0.2), unpulled, and w to the mean of that and 0.05.
    method = Ditto(lam=2)
    clients = [client((2, 0)), client((0, 0), id=1)]
    done, memories = train_round(method, method.init(setup(2)), clients)
    np.testing.assert_allclose(memories[0].params["personal"], [0.1, -0.1], rtol=1e-6)
    np.testing.assert_allclose(done.state.params, [0.05, -0.05], rtol=1e-6)
    done, memories = train_round(method, done.state, clients, memories)
    personal, copy = 0.1 + 0.1 * (2 * sigma(-0.4) - 2 * 0.05), 0.05 + 0.1 * 2 * sigma(-0.2)
    np.testing.assert_allclose(memories[0].params["personal"], [personal, -personal], rtol=1e-6)
    np.testing.assert_allclose(done.replies[0].params["global"], [copy, -copy], rtol=1e-6)
    mean = (copy + 0.05) / 2
    np.testing.assert_allclose(done.state.params, [mean, -mean], rtol=1e-6)
    # Client 1 has no gradient, only the pull: its v was 0 and goes 0.1·λ = 0.2 of the way to 0.05.
    np.testing.assert_allclose(memories[1].params["personal"], [0.01, -0.01], rtol=1e-6)
    assert set(done.replies[0].params) == {"global"}, "the server sees nothing of v"
    assert done.replies[0].facts == {"n": 1}


@pytest.mark.parametrize("epochs", [None, 2, 3])
def test_epochs_of_its_own(epochs):
    """`epochs` is for the personal model alone; the client's two epochs stay those of the global one."""
    reply, mine = Ditto(lam=0, epochs=epochs).on_train(
        Record({"global": ZERO}), Record(), client((2, 0), epochs=2)
    )
    two = 0.1 + 0.1 * 2 * sigma(-0.4)
    three = two + 0.1 * 2 * sigma(-4 * two)
    np.testing.assert_allclose(reply.params["global"][0], two, rtol=1e-5)
    np.testing.assert_allclose(mine.params["personal"][0], three if epochs == 3 else two, rtol=1e-5)


def test_a_client_never_chosen_solves_its_problem_from_the_global_model():
    # From w = 0.1·(1, −1), two epochs with λ = 1: v = 0.1 + 0.1·2σ(−0.4), and again with the pull v − 0.1.
    shared = np.array([0.1, -0.1], np.float32)
    me = client((2, 0), epochs=2, action=EVALUATE)
    v = 0.1 + 0.1 * 2 * sigma(-0.4)
    v += 0.1 * (2 * sigma(-4 * v) - (v - 0.1))
    np.testing.assert_allclose(
        Ditto(lam=1).personalize(Record({"global": shared}), Record(), me), [v, -v], rtol=1e-5
    )


def test_a_client_that_was_chosen_deploys_its_own_as_it_is():
    own = np.array([3, 4], np.float32)
    mine = Record({"personal": own})
    assert Ditto().personalize(Record({"global": ZERO}), mine, client((2, 0))) is own
