"""FedFomo by hand: what models are worth, the mixture, the affinity matrix, whose models are sent."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tests.federation import ZERO, answer_round, client, first_ask, points, setup, sigma

from ipfl.client.memory import ClientMemory
from ipfl.core import NEWCOMER, Record
from ipfl.methods.personal.fedfomo import FedFomo, mix_models, weigh_models
from ipfl.methods.shared.client_model_store import ClientModelStore


def model(w: float) -> np.ndarray:
    """w·(1, −1)."""
    return np.array([w, -w], np.float32)


def loss(w: float) -> float:
    """Of w·(1, −1) on the point (2, class 0): −ln σ(4w)."""
    return -math.log(sigma(4 * w))


def validating(*probe, train=((0, 0),)):
    """A client that validates on these points, and trains on points without a gradient by default."""
    me = client(*train)
    return replace(me, parts=replace(me.parts, probe=points(*probe)))


@pytest.fixture
def fresh(tmp_path):
    def make(method, clients=4):
        return method.init(
            setup(clients, make_client_models=lambda: ClientModelStore(ClientMemory(tmp_path)))
        )

    return make


def sent(w, *weights, n=1):
    return Record({"model": model(w)}, {"n": n, "weights": list(weights)})


class TestWeights:
    def test_loss_gained_per_distance(self):
        # From 0 (loss ln 2), over the distance |w|·√2.
        found = weigh_models([model(0.5), model(1), model(-1)], ZERO, validating((2, 0)), "probe")
        gains = [(math.log(2) - loss(w)) / (abs(w) * math.sqrt(2)) for w in (0.5, 1, -1)]
        np.testing.assert_allclose(found, gains, rtol=1e-6)
        assert found[0] > found[1] > 0 > found[2]

    def test_the_model_itself_is_worth_nothing(self):
        assert weigh_models([model(1), model(1)], model(1), validating((2, 0)), "probe").tolist() == [0, 0]

    def test_a_model_that_overflows_is_worth_less_than_any(self):
        wild = np.array([3e38, -3e38], np.float32)
        (found,) = weigh_models([wild], ZERO, validating((2e5, 0)), "probe")
        assert np.isfinite(found)
        assert found < -1e-10


class TestMixture:
    def test_positive_weights_alone_count(self):
        # 1/4 and 3/4 of (2, −2) and (6, −6): 5.
        mixed = mix_models([model(2), model(6), model(100)], np.array([1.0, 3.0, -9.0]), model(7))
        assert mixed.tolist() == [5, -5]

    @pytest.mark.parametrize("weights", [[-1.0, 0.0], []])
    def test_the_model_before_stays_if_none_is(self, weights):
        before = model(7)
        assert mix_models([model(2), model(6)][: len(weights)], np.array(weights), before) is before


class TestClient:
    def test_the_own_model_is_weighed_like_the_others(self):
        # Since its last start at 0 the client came to 1; another's model is at 0.5. It goes to their mixture.
        mine = Record({"own": model(1), "start": ZERO})
        ask = Record({"model_3": model(0.5)}, {"of": [3]})
        reply, kept = FedFomo().on_train(ask, mine, validating((2, 0)))
        other, own = ((math.log(2) - loss(w)) / (w * math.sqrt(2)) for w in (0.5, 1))
        start = (other * 0.5 + own * 1) / (other + own)
        np.testing.assert_allclose(reply.params["model"], [start, -start], rtol=1e-6)
        np.testing.assert_allclose(kept.params["start"], [start, -start], rtol=1e-6)
        assert set(reply.facts) == {"n", "weights"}
        np.testing.assert_allclose(reply.facts["weights"], [other], rtol=1e-6)

    def test_training_follows(self):
        # No models to weigh: from the initial 0 to 0.1·(1, −1), as one step on (2, class 0) goes.
        reply, kept = FedFomo().on_train(
            Record({}, {"of": []}), Record(), validating((2, 0), train=((2, 0),))
        )
        np.testing.assert_allclose(reply.params["model"], [0.1, -0.1], rtol=1e-6)
        assert kept.params["own"].tobytes() == reply.params["model"].tobytes()
        assert kept.params["start"].tolist() == [0, 0]
        assert reply.facts == {"n": 1, "weights": []}

    def test_a_training_that_did_harm_is_taken_back(self):
        mine = Record({"own": model(-1), "start": ZERO})
        _, kept = FedFomo().on_train(Record({}, {"of": []}), mine, validating((2, 0)))
        assert kept.params["start"].tolist() == [0, 0]


class TestServer:
    def test_two_rounds(self, fresh):
        # Round 0: no models yet. Then each gets those of the other three, and what it says of them is added
        # to its row; the model of client 1, which sends NaN, stays the old one.
        method = FedFomo(models_each=4)
        first = answer_round(method, fresh(method), {i: sent(i) for i in range(4)})
        (ask,) = first.engine.asks
        assert all(record.facts == {"of": []} and not record.params for record in ask.to.values())
        state = first.state
        assert not any(state.affinity.values())
        ask = first_ask(method, state, 4, round=1)
        for i, record in ask.to.items():
            assert sorted(record.facts["of"]) == [j for j in range(4) if j != i]
            assert {name: v.tolist() for name, v in record.params.items()} == {
                f"model_{j}": [j, -j] for j in record.facts["of"]
            }
        others = ask.to[2].facts["of"]
        replies = {i: sent(10 + i, 0.5, -1.0, 2.0) for i in (0, 2, 3)} | {1: sent(np.nan, 9.0, 9.0, 9.0)}
        done = answer_round(method, state, replies, round=1)
        assert done.state.affinity[2] == dict(zip(others, [0.5, -1, 2], strict=True))
        assert not done.state.affinity[1]
        assert [done.state.models[i][0] for i in range(4)] == [10, 1, 12, 13]
        assert done.seats == [(i, -1, "random", i != 1) for i in range(4)]
        assert done.kinds == [("invalid_reply", 1)]
        assert not any(state.affinity.values()), "the state before is as it was"
        greedy = FedFomo(models_each=4, epsilon=0)
        done = answer_round(greedy, done.state, {2: sent(20, 1.0, 1.0, 1.0)}, clients=4, round=2)
        sent_to_2 = done.engine.asks[0].to[2]
        assert sent_to_2.facts["of"] == [others[2], others[0], others[1]], "the most useful first"
        assert done.state.affinity[2] == dict(zip(others, [1.5, 0, 3], strict=True)), "weights add up"

    @pytest.mark.parametrize("weights", [[1.0, 2.0], [1.0, 2.0, math.nan]])
    def test_replies_with_invalid_weights_are_left_out(self, fresh, weights):
        method = FedFomo(models_each=4)
        state = answer_round(method, fresh(method), {i: sent(i) for i in range(4)}).state
        replies = {0: Record({"model": model(5)}, {"n": 1, "weights": weights})}
        done = answer_round(method, state, replies, clients=4, round=1)
        assert ("invalid_reply", 0) in done.kinds
        assert not any(done.state.affinity[0].values())
        assert done.state.models[0].tolist() == [0, 0], "its model of the round before stays"


class TestWhoseModels:
    def state(self, fresh, method, row, clients=8):
        """Everyone has a model, and client 0 has this row of P."""
        state = answer_round(method, fresh(method, clients), {i: sent(i) for i in range(clients)}).state
        return replace(state, affinity={0: dict(enumerate(row))})

    def picked(self, method, state, round):
        return first_ask(method, state, state.per_round, round).to[0].facts["of"]

    def test_greedy(self, fresh):
        method = FedFomo(models_each=4, epsilon=0)
        state = self.state(fresh, method, [99, 1, 7, -2, 5, 0, 6, -1])
        assert self.picked(method, state, 1) == [2, 6, 4], "the three most useful; its own is at home"

    def test_unknown_models_come_before_bad_ones(self, fresh):
        method = FedFomo(models_each=5, epsilon=0)
        state = self.state(fresh, method, [0, -1, -1, -1, 0, 0, 3, 0])
        picks = [self.picked(method, state, round) for round in range(1, 40)]
        assert {pick[0] for pick in picks} == {6}
        assert {frozenset(pick[1:]) for pick in picks} == {frozenset({4, 5, 7})}
        assert len({tuple(pick) for pick in picks}) > 1, "ties are broken at random"

    def test_exploring(self, fresh):
        # ε = 1 without decay: any 2 of 7, so each has a chance of 2/7; in 200 rounds 57 ± 6.4.
        method = FedFomo(models_each=3, epsilon=1, epsilon_decay=0)
        state = self.state(fresh, method, [0, 9, 8, 0, 0, 0, 0, 0])
        picks = [self.picked(method, state, round) for round in range(1, 201)]
        assert all(len(set(pick)) == 2 and 0 not in pick for pick in picks)
        counts = np.bincount([j for pick in picks for j in pick], minlength=8)[1:]
        assert (abs(counts - 57) < 26).all()


def test_memory_does_not_grow_with_the_number_of_clients(fresh):
    """All 30 train and get 4 models each; an ask as a whole would hold 120, 30 of them different."""
    size, method = 100_000, FedFomo(models_each=5)
    state = replace(fresh(method, clients=30), size=size)
    for i in range(30):
        state = replace(state, models=state.models.put({i: np.full(size, i, np.float32)}, i))
    tracemalloc.start()
    ask = first_ask(method, state, 30, round=1)
    assert sum(len(record.params) for record in ask.to.values()) == 120
    assert len(ask.to) == 30
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 4 * size


class TestDeployment:
    def test_a_client_with_a_model_predicts_with_it(self, fresh):
        method = FedFomo()
        state = answer_round(method, fresh(method), {0: sent(3)}, clients=4).state
        offer = method.offer(state, 0)
        assert not offer.params
        own = model(3)
        assert method.personalize(offer, Record({"own": own, "start": ZERO}), validating((2, 0))) is own

    @pytest.mark.parametrize("stranger", [3, 77, NEWCOMER])
    def test_others_weigh_what_there_is(self, fresh, stranger):
        # Against 0: the model at 1 helps, that at −1 does not.
        method = FedFomo()
        state = answer_round(method, fresh(method), {0: sent(1), 1: sent(-1)}, clients=4).state
        offer = method.offer(state, stranger)
        assert offer.facts == {"of": [0, 1]}
        # By `goal`, where class 0 is at x > 0; by `probe`, where it is at x < 0, it would be the other one.
        me = validating((-2, 0))
        me = replace(me, parts=replace(me.parts, goal=points((2, 0))))
        assert method.personalize(offer, Record(), me).tolist() == [1, -1]

    def test_all_others_get_the_same_m_models(self, fresh):
        """So that an evaluation of many costs the memory of M."""
        method = FedFomo(models_each=3)
        state = answer_round(
            method, fresh(method, clients=9), {i: sent(i) for i in range(6)}, clients=9
        ).state
        offers = [method.offer(state, stranger) for stranger in (7, 8, 100)]
        assert len(offers[0].facts["of"]) == 3
        for name, vector in offers[0].params.items():
            assert all(offer.params[name] is vector for offer in offers)

    def test_nobody_has_a_model(self, fresh):
        method = FedFomo()
        me = validating((2, 0))
        assert method.personalize(method.offer(fresh(method), 5), Record(), me) is me.initial
