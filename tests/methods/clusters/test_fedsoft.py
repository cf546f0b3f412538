"""FedSoft by hand: importance, the draw of clients, the pull between the centers, the mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import (
    ZERO,
    MethodClients,
    Played,
    answer_round,
    client,
    first_ask,
    play_round,
    sigma,
)

from ipfl.config.sections import AggregateConfig
from ipfl.core import Record
from ipfl.methods.clusters.fedsoft import FedSoft, SoftClusters, center_importance
from ipfl.methods.shared.cluster_models import draw_per_cluster

A, B = np.array([1, -1], np.float32), np.array([-1, 1], np.float32)
"""A has the smaller loss on points of class 0 at x > 0, B on those of class 1."""


def state(*centers: np.ndarray, per_round: int = 4, **known) -> SoftClusters:
    known = {"importance": {}, "sizes": {}, "random": ()} | known
    return SoftClusters(centers, per_round, seed=0, rule=AggregateConfig(), **known)


def play(before: SoftClusters, engine: MethodClients, round: int = 0) -> Played:
    return play_round(engine.method, before, engine, len(engine.clients), round)


class TestImportance:
    def test_shares_of_the_points_and_the_smoother(self):
        losses = np.array([[1, 5, 1, 1], [2, 4, 3, 4], [9, 9, 9, 9]])
        assert center_importance(losses, 1e-4).tolist() == [0.75, 0.25, 1e-4]

    def test_a_tie_goes_to_the_first(self):
        assert center_importance(np.ones((2, 3)), 0.01).tolist() == [1, 0.01]

    def test_client_counts_its_training_points(self):
        ask = Record({"cluster_0": A, "cluster_1": B})
        reply, _ = FedSoft().on_estimate(ask, Record(), client((2, 0), (1, 0), (2, 1), (3, 0)))
        assert reply.facts == {"importance": [0.75, 0.25], "n": 4}


class TestRound:
    @pytest.mark.parametrize("start", ["centers", "own"])
    def test_two_rounds(self, start):
        # λ = 2. Client 0 has u = (¾, ¼): anchor ¾A + ¼B = (½, −½), strength 2. The centers are random: from
        # w = 0 its gradient is −(3·1 − 1)/4 = −½ and the pull 2·(0 − ½), so a step of 0.1 goes to 0.15.
        # Client 1 has u = (σ, 1), σ = 0.0001: the pulls 2σ(0 − 1) + 2(0 + 1) = 1.9998 and the gradient 1, so
        # it goes to −0.29998. Both clusters draw two clients, hence both; numbers of points do not count.
        method = FedSoft(proximal=2, start=start)
        engine = MethodClients(method, [client((2, 0), (2, 0), (2, 0), (2, 1)), client((2, 1), id=1)])
        done = play(state(A, B, random=(0, 1)), engine)
        assert engine.actions == ["estimate", "train"]
        own = [engine.memories[c].params["own"] for c in (0, 1)]
        np.testing.assert_allclose(own[0], [0.15, -0.15], rtol=1e-6)
        np.testing.assert_allclose(own[1], [-0.29998, 0.29998], rtol=1e-6)
        center = (0.15 - 0.29998) / 2
        for model in done.state.models:
            np.testing.assert_allclose(model, [center, -center], rtol=1e-6)
        assert done.state.importance == {0: (0.75, 0.25), 1: (1e-4, 1.0)}
        assert done.state.sizes == {0: 4, 1: 1}
        assert done.seats == [(c, k, "random", True) for k in (0, 1) for c in (0, 1)]
        # Round 1, no new estimate: from the centers, which are equal, or from its own 0.15. There
        # p_1 = σ(−4w), the gradient is −(3·2p_1 − 2(1 − p_1))/4 = ½ − 2p_1, and the pull 2·(w − center).
        play(done.state, engine, round=1)
        assert engine.actions == ["estimate", "train", "train"]
        w = center if start == "centers" else 0.15
        expected = w - 0.1 * (0.5 - 2 * sigma(-4 * w) + 2 * (w - center))
        np.testing.assert_allclose(engine.memories[0].params["own"][0], expected, rtol=1e-5)

    def test_centers_are_random_until_somebody_trained_for_them(self):
        # One place a round: cluster 0 is trained in round 0, cluster 1 in round 1.
        engine = MethodClients(FedSoft(), [client((2, 0))])
        before = state(A, B, per_round=1, random=(0, 1))
        states = [before]
        for round in range(3):
            states.append(play(states[-1], engine, round).state)
        assert [one.random for one in states] == [(0, 1), (1,), (), ()]
        assert [ask.to[0].facts["random"] for ask in engine.asks if ask.action == "train"] == [
            True,
            True,
            False,
        ]

    def test_estimates_come_every_tau_rounds_from_everyone(self):
        method = FedSoft(estimate_every=3)
        before = state(A, B, per_round=2)
        first = [first_ask(method, before, 3, round) for round in range(7)]
        assert [ask.action == "estimate" for ask in first] == [True, False, False, True, False, False, True]
        assert sorted(first[0].to) == [0, 1, 2]

    @pytest.mark.parametrize(
        "facts",
        [
            {"importance": [0.5], "n": 4},
            {"importance": [0.5, 0.0], "n": 4},
            {"importance": [0.5, 1.5], "n": 4},
        ],
        ids=["too few", "zero", "above one"],
    )
    def test_invalid_estimates_are_left_out(self, facts):
        known = state(A, B, importance={0: (0.25, 0.75)}, sizes={0: 7})
        estimates = {0: Record({}, facts), 1: Record({}, {"importance": [1.0, 0.5], "n": 2})}
        done = answer_round(FedSoft(), known, {}, clients=2, estimate=estimates)
        assert ("invalid_reply", 0) in done.kinds
        assert done.state.importance == {0: (0.25, 0.75), 1: (1.0, 0.5)}
        assert done.state.sizes == {0: 7, 1: 2}


class TestDraw:
    def drawn(self, method: FedSoft, before: SoftClusters, clients: int, round: int) -> list[list[int]]:
        done = answer_round(method, before, {}, clients, round, estimate={})
        seats = done.seats
        assert sorted(done.engine.asks[-1].to) == sorted({client for client, *_ in seats})
        return [[c for c, cluster, *_ in seats if cluster == k] for k in range(method.clusters)]

    def test_in_proportion_to_importance_and_samples(self):
        # Shares u·n: 0.75·4 = 3 against 0.25·1 for cluster 0, 1 against 0.75 for 1. In 600 rounds client 0 is
        # drawn first 600·12/13 ≈ 554 times (± 6.5) and 600·4/7 ≈ 343 times (± 12.1).
        shares = np.array([[0.75, 0.25], [0.25, 0.75]]) * np.array([[4], [1]])
        firsts = [[one[0] for one in draw_per_cluster(shares, 2, 0, round)] for round in range(600)]
        assert abs(sum(first == 0 for first, _ in firsts) - 554) < 4 * 6.5
        assert abs(sum(second == 0 for _, second in firsts) - 343) < 4 * 12.1

    def test_the_next_in_proportion_to_the_shares_of_those_left(self):
        # Shares 6, 3, 1 and one cluster. 0 is drawn first with a chance of 0.6; after 1 (0.3) with 6/7, after
        # 2 (0.1) with 6/9. So it is among two draws with a chance of 0.6 + 0.3·6/7 + 0.1·6/9 = 0.9238: 1848
        # of 2000 (± 12).
        shares = np.array([[6.0], [3.0], [1.0]])
        found = [draw_per_cluster(shares, 2, 0, round)[0] for round in range(2000)]
        assert abs(sum(0 in one for one in found) - 1848) < 4 * 12

    def test_shares_come_from_importance_and_samples(self):
        # Client 0 wants cluster 0 only, client 1 cluster 1 only, and client 2 neither: it is never drawn.
        known = {"importance": {0: (1.0, 1e-9), 1: (1e-9, 1.0), 2: (1e-9, 1e-9)}, "sizes": {0: 1, 1: 1, 2: 1}}
        before, method = state(A, B, per_round=2, **known), FedSoft(estimate_every=10**6)
        assert [self.drawn(method, before, 3, round) for round in range(1, 30)] == [[[0], [1]]] * 29

    @given(
        clusters=st.integers(1, 4),
        per_round=st.integers(1, 9),
        clients=st.integers(1, 9),
        round=st.integers(0, 9),
    )
    def test_as_many_trainings_as_the_budget(self, clusters, per_round, clients, round):
        before = state(*[A] * clusters, per_round=per_round)
        drawn = self.drawn(FedSoft(clusters=clusters), before, clients, round)
        assert len(set().union(*drawn)) == min(per_round, clients)
        assert all(len(set(one)) == len(one) for one in drawn)
        sizes = [len(one) for one in drawn]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) >= min(per_round, clients * clusters)

    def test_shares_too_small_for_a_division(self):
        tiny = (1e-320, 1e-320)
        known = {"importance": dict.fromkeys(range(3), tiny), "sizes": dict.fromkeys(range(3), 1)}
        before = state(A, B, per_round=3, **known)
        drawn = self.drawn(FedSoft(estimate_every=10**6), before, 3, 1)
        assert set().union(*drawn) == {0, 1, 2}


class TestDeployed:
    def test_the_clients_own_model_as_it_is(self):
        own = np.array([3, 4], np.float32)
        offer = FedSoft().offer(state(A, B), 0)
        assert FedSoft().personalize(offer, Record({"own": own}), client((2, 0))) is own

    def test_a_client_that_never_trained_does_so_from_between_the_centers(self):
        # Centers A and 0, points (2, class 0) and (−2, class 0): A has the smaller loss on the first, 0 on
        # the second, so u = (½, ½). It starts at (½, −½), where there is no pull yet. With p_1 = σ(−2) at
        # x = 2 and σ(2) at −2 the gradient in w_0 is (−2σ(−2) + 2σ(2))/2 = tanh(1).
        offer = FedSoft().offer(state(A, ZERO), 99)
        found = FedSoft().personalize(offer, Record(), client((2, 0), (-2, 0)))
        expected = 0.5 - 0.1 * np.tanh(1)
        np.testing.assert_allclose(found, [expected, -expected], rtol=1e-6)


def test_what_the_server_knows_of_preferences():
    known = {"importance": {3: (0.25, 0.75), 5: (1.0, 1e-4)}, "sizes": {3: 1, 5: 1}}
    assert FedSoft().preferences(state(A, B, **known)) == {3: 1, 5: 0}
