"""FedPer by hand: what is averaged, what stays, and what travels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.federation import client, run_here, setup, sigma, train_round
from tests.small_nets import Scaled

import ipfl
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.methods.personal.fedper import FedPer
from ipfl.training.network import Network

START = np.array([1, 0.1, -0.1], np.float32)
"""(b, h_0, h_1), with the margin 2·0.2 = 0.4 at x = 2."""


def person(*points, id=0):
    return replace(client(*points, id=id), network=Network(Scaled(), (1,)), initial=START)


def test_a_round():
    # The gradient of (2, class 0) by h is σ(−0.4)·(−2, 2), by b −0.4·σ(−0.4). Client 1 has three points at 0,
    # where there is none: W_B is the mean of 1 + 0.04·σ(−0.4) and 1 with weights 1/4 and 3/4.
    method, p = FedPer(), sigma(-0.4)
    state = method.init(setup(2, params=START, find_part=lambda name: {"not head": START[:1]}[name]))
    done, memories = train_round(method, state, [person((2, 0)), person((0, 0), (0, 0), (0, 1), id=1)])
    np.testing.assert_allclose(done.state.params, [1 + 0.04 * p / 4], rtol=1e-6)
    h = 0.1 + 0.2 * p
    np.testing.assert_allclose(memories[0].params["own"], [h, -h], rtol=1e-6)
    assert memories[1].params["own"].tolist() == START[1:].tolist()
    assert {name: len(vector) for name, vector in done.replies[0].params.items()} == {"shared": 1}
    assert method.models(done.state) == {}
    # Both parts together; who never trained gets a head that was trained on the body as it is.
    offer = method.offer(done.state, 0)
    b = float(done.state.params[0])
    np.testing.assert_allclose(method.personalize(offer, memories[0], person((2, 0))), [b, h, -h], rtol=1e-6)
    head = 0.1 + 0.1 * 2 * b * sigma(-0.4 * b)
    found = method.personalize(offer, Record(), person((2, 0)))
    np.testing.assert_allclose(found, [b, head, -head], rtol=1e-6)


def test_a_network_that_is_all_head_is_refused():
    task = ipfl.Task.load(clients=4, samples=20, model="softmax")
    says = "method 'fedper' needs another network: model Softmax has nothing but its head"
    with pytest.raises(InputError, match=f"^{says}$"):
        run_here(task, FedPer(), rounds=1)
