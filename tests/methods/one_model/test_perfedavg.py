"""Per-FedAvg by hand: both variants' steps, disjoint batches, the Hessian's product, the adaptation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import ZERO, client, points, setup, sigma, train_round
from torch import nn
from torch.nn.functional import cross_entropy

from ipfl.core import Record
from ipfl.data.federated import Samples
from ipfl.methods.one_model.perfedavg import PerFedAvg, hessian_product, meta_gradient, split
from ipfl.training.network import Network
from ipfl.training.sgd import Batch

FIRST_ORDER = 2 * sigma(-1)
"""Size of a coordinate of ∇f(w') for the point (2, class 0), w = 0 and α = ¼: the inner gradient is (−1, 1),
so w' = ¼·(1, −1), where the logits differ by 1."""


@pytest.mark.parametrize(
    ("variant", "gradient"),
    [
        ("fo", FIRST_ORDER),
        # The Hessian at 0 is 2²·½·½·[[1, −1], [−1, 1]], which doubles (−g, g): I − ¼·∇²f halves it.
        ("hf", FIRST_ORDER / 2),
    ],
)
def test_one_round(variant, gradient):
    # Client 0 steps by β = 0.1 on points that are all alike, so that any split gives the same parts.
    # Client 1 never moves. It has one point against six, but clients weigh alike: w is half of client 0's.
    method = PerFedAvg(variant=variant, alpha=0.25)
    clients = [client(*[(2, 0)] * 6), client((0, 0), id=1)]
    done, memories = train_round(method, method.init(setup(2)), clients)
    step = 0.1 * gradient
    np.testing.assert_allclose(done.replies[0].params["global"], [step, -step], rtol=1e-4)
    np.testing.assert_allclose(done.state.params, [step / 2, -step / 2], rtol=1e-4)
    assert done.seats == [(0, -1, "random", True), (1, -1, "random", True)]
    assert memories == {0: Record(), 1: Record()}, "clients remember nothing"


def batch_of(samples: Samples, first: int = 0) -> Batch:
    """All of them, at the positions from `first` on."""
    positions = torch.arange(first, first + len(samples))
    return Batch(torch.from_numpy(samples.x), torch.from_numpy(samples.y), positions)


def test_beta_is_the_step_of_training():
    reply, _ = PerFedAvg(variant="fo", alpha=0.25, beta=0.3).on_train(
        Record({"global": ZERO}), Record(), client(*[(2, 0)] * 2)
    )
    np.testing.assert_allclose(reply.params["global"][0], 0.3 * FIRST_ORDER, rtol=1e-5)


def test_inner_outer_and_hessian_gradients_are_of_different_points():
    # D = (2, 0): gradient (−1, 1) at 0, so w' = ¼·(1, −1). D' = (4, 1): there its logits differ by 2, and its
    # gradient is u = 4σ(2)·(1, −1). D'' = (1, 0): its Hessian at 0 is ¼·[[1, −1], [−1, 1]], ∇²f·u = u/2, and
    # u − ¼·u/2 = ⅞·u.
    network, batch = client((2, 0)).network, batch_of(points((2, 0), (4, 1), (1, 0)))
    network.load(ZERO)
    u = 4 * sigma(2)
    for hessian, samples, expected in [(False, batch[:2], u), (True, batch, u * 7 / 8)]:
        network.grad.zero_()
        meta_gradient(network, samples, alpha=0.25, hessian=hessian)
        np.testing.assert_allclose(network.grad.numpy(), [expected, -expected], rtol=1e-3)
        assert network.read().tolist() == [0, 0], "the weights are where they were"


@given(n=st.integers(1, 40), parts=st.integers(2, 3))
def test_a_batch_is_split_into_disjoint_parts(n, parts):
    found = split(batch_of(points(*((x, 0) for x in range(n))), first=100), parts)
    assert len(found) == parts
    for part in found:
        assert part.inputs[:, 0].tolist() == (part.positions - 100).tolist(), "positions go with points"
    if n < parts:
        assert all(len(part) == n for part in found), "too few points stand for all parts"
    else:
        assert sorted(x for part in found for x in part.inputs[:, 0].tolist()) == list(range(n))
        assert {len(part) for part in found} <= {n // parts, -(-n // parts)}


@pytest.mark.parametrize("scale", [1e-4, 1, 1e4], ids=["short", "middling", "long"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_hessian_product(scale, dropout):
    """Against the exact one by automatic differentiation, under the same dropout, for any length of u."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4))
        network = Network(module, (3,))
        x, y, u = torch.randn(10, 3), torch.randint(4, (10,)), scale * torch.randn(network.trained)
        here = network.flat.clone()
        torch.manual_seed(1)
        found = hessian_product(network, here, u, Batch(x, y, torch.arange(10)))
        network.flat.copy_(here)
        torch.manual_seed(1)
        loss = cross_entropy(module(x), y)
        parameters = list(module.parameters())
        gradient = torch.cat(
            [part.flatten() for part in torch.autograd.grad(loss, parameters, create_graph=True)]
        )
        exact = torch.cat([part.flatten() for part in torch.autograd.grad(gradient @ u, parameters)])
    assert float((found - exact).norm() / exact.norm()) < 0.01


def test_no_direction_no_product():
    me = client((2, 0))
    product = hessian_product(me.network, torch.zeros(2), torch.zeros(2), batch_of(points((2, 0))))
    assert product.tolist() == [0, 0]


def test_a_client_deploys_the_model_after_one_step_on_all_it_has():
    # (2, 0) has the gradient (−1, 1), (4, 1) has (2, −2): mean (½, −½), times α = 0.2.
    method = PerFedAvg(alpha=0.2)
    state = method.init(setup(2))
    offer = method.offer(state, 99)
    adapted = method.personalize(offer, Record(), client((2, 0), (4, 1), batch_size=1, epochs=3))
    np.testing.assert_allclose(adapted, [-0.1, 0.1], rtol=1e-6)
    assert method.models(state) == {"global": state.params}
