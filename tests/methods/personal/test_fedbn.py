"""FedBN by hand: what is averaged, and what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.federation import client, run_here, setup, train_round
from tests.small_nets import Standardised

import ipfl
from ipfl.errors import InputError
from ipfl.methods.personal.fedbn import FedBN
from ipfl.training.network import Network

START = np.array([1, 0, 0, 0, 0, 1], np.float32)
"""(γ, β, h_0, h_1, running mean, running variance)."""


def test_a_round():
    # Client 0 has the points 1 and 3: standardised −1 and 1. The gradient by h at h = 0 is the mean of
    # (−½, ½)·(−1) and (½, −½)·1, so h = −0.1·(½, −½); γ and β have none yet. Client 1 has 10 and 14, also −1
    # and 1 (but for ε = 10⁻⁵): the same h. The statistics go a tenth of the way to mean 2 and variance 2, and
    # to 12 and 8.
    method = FedBN()
    state = method.init(setup(2, params=START, find_part=lambda name: {"not norms": START[2:4]}[name]))
    people = [
        replace(client(*points, id=id), network=Network(Standardised(), (1,)), initial=START)
        for id, points in enumerate([[(1, 0), (3, 1)], [(10, 0), (14, 1)]])
    ]
    done, memories = train_round(method, state, people)
    np.testing.assert_allclose(done.state.params, [-0.05, 0.05], rtol=1e-4)
    np.testing.assert_allclose(memories[0].params["own"], [1, 0, 0.2, 1.1], rtol=1e-4)
    np.testing.assert_allclose(memories[1].params["own"], [1, 0, 1.2, 1.7], rtol=1e-4)
    found = method.personalize(method.offer(done.state, 1), memories[1], people[1])
    np.testing.assert_allclose(found, [1, 0, -0.05, 0.05, 1.2, 1.7], rtol=1e-4)


def test_a_network_without_norms_is_refused():
    task = ipfl.Task.load(clients=4, samples=20, model="cnn")
    says = "method 'fedbn' needs another network: model CNN has no norms"
    with pytest.raises(InputError, match=f"^{says}$"):
        run_here(task, FedBN(), rounds=1)
