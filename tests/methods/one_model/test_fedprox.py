"""FedProx by hand: the pull, the work of stragglers, and that partial work is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import ZERO, client, first_ask, setup, sigma, train_round

from ipfl.core import Record
from ipfl.methods.one_model.fedprox import FedProx


def asked(method: FedProx, round: int = 0, clients: int = 4, per_round: int = 4, seed: int = 0):
    """The records that a round sends out."""
    state = method.init(setup(clients, per_round, seed=seed))
    return first_ask(method, state, clients, round).to


def test_one_round():
    # Client 0, two epochs on (2, class 0): the first step starts at the anchor, where the pull is 0, and goes
    # to 0.1·(1, −1). The second has the loss's −2σ(−0.4) and the pull's μ·0.1 in the first coordinate:
    # 0.1 + 0.1·(2σ(−0.4) − 0.05) for μ = ½. (A pull by μ·‖w − w_t‖, not squared, would have ½·√½ there.)
    # Client 1 never moves and has three points: the mean is a quarter of client 0's model.
    method = FedProx(mu=0.5)
    clients = [client((2, 0), epochs=2), client((0, 0), (0, 0), (0, 1), id=1, epochs=2)]
    done, memories = train_round(method, method.init(setup(2)), clients)
    one = 0.1 + 0.1 * (2 * sigma(-0.4) - 0.05)
    np.testing.assert_allclose(done.replies[0].params["global"], [one, -one], rtol=1e-5)
    np.testing.assert_allclose(done.state.params, [one / 4, -one / 4], rtol=1e-5)
    assert done.seats == [(0, -1, "random", True), (1, -1, "random", True)]
    assert memories == {0: Record(), 1: Record()}, "clients remember nothing"


@pytest.mark.parametrize(("work", "epochs"), [(0.0, 1), (0.24, 1), (0.25, 2), (0.5, 3), (0.999, 4)])
def test_a_straggler_does_its_share_of_the_epochs(work, epochs):
    """Of E = 4: each quarter of [0, 1) is one more epoch, so that all of 1 … 4 are as likely."""
    ask = Record({"global": ZERO}, {"work": work})
    reply, _ = FedProx(mu=0).on_train(ask, Record(), client((2, 0), epochs=4))
    whole, _ = FedProx(mu=0).on_train(Record({"global": ZERO}), Record(), client((2, 0), epochs=epochs))
    assert reply.params["global"].tobytes() == whole.params["global"].tobytes()
    assert reply.facts == {"n": 1}, "its weight is that of its samples"


def test_partial_work_is_kept():
    # Everyone is a straggler with E = 2; whether one or two epochs, each moves its model, and so the mean.
    method = FedProx(mu=0, stragglers=1)
    clients = [client((2, 0), id=i, epochs=2) for i in (0, 1)]
    done, _ = train_round(method, method.init(setup(2)), clients)
    moved = [reply.params["global"][0] for reply in done.replies.values()]
    two = 0.1 + 0.1 * 2 * sigma(-0.4)
    assert all(np.isclose(m, 0.1) or np.isclose(m, two) for m in moved)
    np.testing.assert_allclose(done.state.params[0], np.mean(moved), rtol=1e-6)
    assert all(delivered for *_, delivered in done.seats)


@given(
    share=st.floats(0, 1), clients=st.integers(1, 12), per_round=st.integers(1, 12), round=st.integers(0, 99)
)
def test_the_share_of_stragglers_is_kept(share, clients, per_round, round):
    sent = asked(FedProx(stragglers=share), round, clients, per_round)
    slow = [record.facts["work"] for record in sent.values() if record.facts]
    assert abs(len(slow) - share * len(sent)) <= 0.5
    assert all(0 <= work < 1 for work in slow)
    again = asked(FedProx(stragglers=share), round, clients, per_round)
    assert {c: r.facts for c, r in sent.items()} == {c: r.facts for c, r in again.items()}
    assert set(sent) == set(asked(FedProx(), round, clients, per_round)), "stragglers change no choice"
