"""FedAMP by hand: attention, cloud models, the pull towards them, and what it costs."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tests.federation import answer_round, client, first_ask, setup, sigma, train_round

from ipfl.client.memory import ClientMemory
from ipfl.core import NEWCOMER, Record
from ipfl.errors import NotSupportedError
from ipfl.methods.personal.fedamp import FedAMP
from ipfl.methods.shared.client_model_store import ClientModelStore

HALF = 1 / math.log(2)
"""σ for which exp(−x/σ) = 2^(−x)."""


def attentive(alpha: float = 1.0, **settings: float) -> FedAMP:
    """A method with 2^(−x) for attention, and α in units of σ."""
    return FedAMP(alpha=alpha * HALF, sigma=HALF, **settings)


@pytest.fixture
def fresh(tmp_path):
    def make(method, clients=3, start=(0, 0)):
        store = ClientModelStore(ClientMemory(tmp_path))
        return method.init(
            setup(clients, params=np.array(start, np.float32), make_client_models=lambda: store)
        )

    return make


def update(*values: float) -> Record:
    return Record({"model": np.array(values, np.float32)}, {"n": 1})


def clouds(method, state, roster=None):
    ask = first_ask(method, state, roster or state.clients, 1)
    return {i: record.params["cloud"].tolist() for i, record in ask.to.items()}


class TestCloud:
    def stored(self, fresh, method):
        """Models (0, 0), (1, 0) and (0, 2): squared distances 1, 4 and 5, attention 1/2, 1/16 and 1/32."""
        return answer_round(method, fresh(method), {0: update(0, 0), 1: update(1, 0), 2: update(0, 2)}).state

    def test_attention(self, fresh):
        # α/σ = 1/4. u_0 = ((1, 0)/2 + (0, 2)/16)/4, u_1 = (1, 0) + ((−1, 0)/2 + (−1, 2)/32)/4,
        # u_2 = (0, 2) + ((0, −2)/16 + (1, −2)/32)/4.
        method = attentive(alpha=0.25)
        u = clouds(method, self.stored(fresh, method))
        np.testing.assert_allclose(u[0], [1 / 8, 1 / 32], rtol=1e-6)
        np.testing.assert_allclose(u[1], [1 - 1 / 8 - 1 / 128, 1 / 64], rtol=1e-6)
        np.testing.assert_allclose(u[2], [1 / 128, 2 - 1 / 32 - 1 / 64], rtol=1e-6)

    def test_a_client_keeps_its_own_share(self, fresh):
        # α/σ = 9 would leave ξ_00 = 1 − 9·(1/2 + 1/16) < 0. It becomes 1/(1 + 1/2 + 1/16) = 16/25 at most:
        # ξ_00 = 16/25, ξ_01 = 8/25 and ξ_02 = 1/25.
        method = attentive(alpha=9)
        u = clouds(method, self.stored(fresh, method))
        np.testing.assert_allclose(u[0], [8 / 25, 2 / 25], rtol=1e-6)

    def test_far_models_draw_nobody(self, fresh):
        method = attentive(alpha=9)
        replies = {0: update(0, 0), 1: update(0, 0), 2: update(900, 0)}
        state = answer_round(method, fresh(method), replies).state
        assert clouds(method, state) == {0: [0, 0], 1: [0, 0], 2: [900, 0]}

    def test_clients_without_a_model_are_at_the_start(self, fresh):
        # Start (1, 1), others at (2, 1): attention 1/2, α/σ = 1/2, so a quarter of the way.
        method = attentive(alpha=0.5)
        state = fresh(method, start=(1, 1))
        assert clouds(method, state) == {i: [1, 1] for i in range(3)}, "before the first round all are"
        state = answer_round(method, state, {1: update(2, 1)}, clients=3).state
        u = clouds(method, state)
        np.testing.assert_allclose(u[0], [1.25, 1], rtol=1e-6)
        assert u[1] == [2, 1], "nobody else has a model: the start is no client's"

    def test_clients_that_are_away_draw_all_the_same(self, fresh):
        method = attentive(alpha=0.25)
        state = self.stored(fresh, method)
        assert clouds(method, state, roster=(0,)) == {0: clouds(method, state)[0]}

    def test_memory_does_not_grow_with_the_number_of_clients(self, fresh):
        """Two clients train, 40 have models: what is held are a few vectors for each of the two."""
        size, method = 100_000, FedAMP()
        state = replace(fresh(method, clients=40), start=np.zeros(size, np.float32))
        for i in range(40):
            state = replace(state, models=state.models.put({i: np.full(size, i / 1e4, np.float32)}, i))
        tracemalloc.start()
        first_ask(method, state, (3, 7), 1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20 * 4 * size


class TestTraining:
    def test_from_the_cloud_model_with_a_pull_back(self, fresh):
        # Two epochs on (2, class 0) from u = 0: first w = 0.1·(1, −1), the pull being 0 there; then
        # w = 0.1 + 0.1·(2σ(−0.4) − λ/α·0.1) with λ/α = 3/2.
        method = FedAMP(alpha=2, sigma=100, lam=3)
        clients = [client((2, 0), epochs=2), client((0, 0), id=1, epochs=2)]
        done, memories = train_round(method, fresh(method, clients=2), clients)
        w = 0.1 + 0.1 * (2 * sigma(-0.4) - 1.5 * 0.1)
        np.testing.assert_allclose(done.replies[0].params["model"], [w, -w], rtol=1e-6)
        assert memories[0].params["own"].tobytes() == done.replies[0].params["model"].tobytes()
        assert done.state.models[0].tobytes() == done.replies[0].params["model"].tobytes()
        assert done.replies[0].facts == {"n": 1}


class TestDeployment:
    def test_the_own_model(self, fresh):
        method, own, me = FedAMP(), np.array([3, 4], np.float32), client((2, 0))
        offer = method.offer(fresh(method), 1)
        assert not offer.params
        assert method.personalize(offer, Record({"own": own}), me) is own
        assert method.personalize(offer, Record(), me) is me.initial

    def test_strangers_cannot_be_served(self, fresh):
        method = FedAMP()
        for stranger in (3, NEWCOMER):
            with pytest.raises(NotSupportedError, match="not supported by this method"):
                method.offer(fresh(method), stranger)
