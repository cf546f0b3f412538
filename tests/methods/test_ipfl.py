"""The paper's three algorithms, the readings of its equations, its tokens, and whole runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from tests.federation import Played, ScriptedEngine, client, play_round, run_here, setup

import ipfl
from ipfl.core import Record, TaskFacts
from ipfl.errors import InputError
from ipfl.market.market_stats import rank_correlation
from ipfl.methods.ipfl import IPFL, IPFLState, estimate_shapley, importance_weights, row_normalised
from ipfl.training.task import Task


def state_of(method: IPFL, clients: int = 8, per_round: int = 6, **known: Any) -> IPFLState:
    """A state before the first round, with some of its fields as given."""
    return dataclasses.replace(method.init(setup(clients, per_round)), **known)


def echo(i: int, ask: Record) -> Record:
    """A training that changes nothing."""
    return Record(ask.params, {"n": 10})


def appraise(i: int, ask: Record) -> Record:
    """Half of 10 points right, gradient 1."""
    gradients = {name: np.ones_like(model) for name, model in ask.params.items()}
    return Record(gradients if ask.facts["gradient"] else {}, {name: [5.0, 10.0] for name in ask.params})


def bid(*clusters: int) -> Any:
    """Everyone bids for these clusters."""
    return lambda i, ask: Record({}, {"bids": [*clusters], "hits": [], "n": 10})


def play(method: IPFL, state: IPFLState, round: int, prefer: Any = None, clients: Any = 8) -> Played:
    script = {"preference": prefer or bid(0), "train": echo, "appraise": appraise}
    return play_round(method, state, ScriptedEngine(script), clients, round)


def seats(played: Played, how: str, cluster: int = 0) -> list[int]:
    return [row.client for row in played.done.seats if (row.how, row.cluster) == (how, cluster)]


class TestAlgorithm1:
    def test_the_first_round_is_random_and_asks_for_no_bids(self):
        played = play(IPFL(clusters=4), state_of(IPFL(clusters=4), per_round=6), 0)
        assert played.engine.actions == ["train", "appraise"]
        assert [len(seats(played, "random", k)) for k in range(4)] == [2, 2, 1, 1]
        assert len({row.client for row in played.done.seats}) == 6
        assert played.done.market.bids == ()

    def test_bidders_by_contribution_alone(self):
        # One cluster, N_r = ⌈8·0.2·2/8⌉ = 1 of 5 seats, as two have not trained: N_p = 4. ψ of these, 6 and
        # 7, counts as 0: behind 3 (0.3), 5 (0.2), 0 (0.1), before 1 (−0.1), 2 and 4.
        method = IPFL(clusters=1)
        psi = np.array([[0.1], [-0.1], [-0.2], [0.3], [-0.3], [0.2], [np.nan], [np.nan]])
        last = set()
        for seed in range(10):
            omega = np.isfinite(psi).astype(np.int64)
            state = state_of(method, per_round=5, psi=psi, omega=omega, seed=seed)
            chosen = seats(play(method, state, 1), "performance")
            assert {3, 5, 0} < {*chosen}
            last |= {*chosen} - {3, 5, 0}
        assert last == {6, 7}, "equal ones in the order in which bids arrive, which is random"

    @pytest.mark.parametrize(("trained", "explorers"), [(0, 16), (20, 8), (40, 4)])
    def test_explorers_fall_with_the_unexplored(self, trained, explorers):
        # N = 40: two fifths of all are 16; with half of them explored 8; never under 40·0.1 = 4.
        method, omega = IPFL(clusters=2, explore=0.4, explore_floor=0.1), np.zeros((40, 2), np.int64)
        omega[:trained, 1] = 1
        played = play(method, state_of(method, 40, 20, omega=omega), 1, bid(0, 1), 40)
        assert [len(seats(played, "random", k)) for k in range(2)] == [explorers // 2] * 2
        assert [len(seats(played, "performance", k)) for k in range(2)] == [10 - explorers // 2] * 2

    def test_what_the_clusters_do_not_divide_goes_to_each_in_turn(self):
        # 5 seats: 2 and 3; one of them is for an explorer, so that each cluster keeps a seat by performance.
        method = IPFL(explore=1, explore_floor=1)
        for round, (first, second) in {1: (3, 2), 2: (2, 3)}.items():
            played = play(method, state_of(method, per_round=5), round, bid(0, 1))
            counts = [len([row for row in played.done.seats if row.cluster == k]) for k in range(2)]
            assert counts == [first, second]
            assert min(len(seats(played, "performance", k)) for k in range(2)) >= 1

    def test_seats_nobody_bids_for_stay_empty(self):
        # 6 seats, N_r = ⌈8·0.2⌉ = 2: one explorer and 2 seats by performance for each; nobody wants 1.
        played = play(IPFL(), state_of(IPFL()), 1, bid(0))
        assert (len(seats(played, "performance", 1)), len(seats(played, "random", 1))) == (0, 1)
        assert played.done.market.economy["empty_seats"] == 2
        assert {event.kind for event in played.done.events} == {"empty_seats", "collapse"}
        again = play(IPFL(), played.state, 2, bid(0))
        assert {event.kind for event in again.done.events} == {"empty_seats"}, "a collapse is told once"
        assert IPFL().report(again.state)["collapsed"]

    def test_who_does_not_answer_does_not_bid(self):
        state = play(IPFL(), state_of(IPFL()), 1, bid(1)).state
        silent = play(IPFL(), state, 2, lambda i, ask: bid(0)(i, ask) if i < 3 else None)
        assert {row.client for row in silent.done.market.bids} == {0, 1, 2}
        assert {*seats(silent, "performance")} <= {0, 1, 2}
        assert IPFL().preferences(silent.state) == {i: int(i > 2) for i in range(8)}, "what was said last"

    def test_who_cannot_pay_has_no_seat(self):
        method = IPFL(price=100, opening=100, explore=1, explore_floor=1)
        state = method.init(setup(8, 8, balances=dict.fromkeys(range(4), 99)))
        for round in (0, 1):
            played = play(method, state, round, bid(0, 1))
            assert {row.client for row in played.done.seats} == {4, 5, 6, 7}
            assert {row.client for row in played.done.market.bids} == ({*range(8)} if round else set())


class TestAlgorithm2:
    # Model (a, 0) says class 0 where a·x > 0. Of four points of class 0, three at x = 1, one at x = −1.
    POINTS = ((1, 0), (1, 0), (1, 0), (-1, 0))
    PLUS, MINUS, STEEP = (np.array(model, np.float32) for model in ([1, 0], [-1, 0], [2, 0]))

    def bids(self, models: Any, net: Any = (0, 0), totals: Any = (1, 1), **chosen: Any) -> Any:
        method, me = IPFL(**chosen), client(*self.POINTS)
        return method.client_preferences(models, me, np.array(totals, float), net)

    @pytest.mark.parametrize(
        ("threshold", "net", "expected"),
        [
            # υ = 3/4, 1/4.
            (None, (0, 0), [0]),
            (0.25, (0, 0), [0, 1]),
            (0.26, (0, 0), [0]),
            (0.25, (0, -1), [0]),  # a preferred cluster that has cost more than it brought
            (0.25, (-1, 0), [0, 1]),  # the best one in any case
            (0.9, (0, 0), [0]),
        ],
    )
    def test_clusters_over_the_threshold(self, threshold, net, expected):
        p_b, n_ik = self.bids([self.PLUS, self.MINUS], net, threshold=threshold)
        assert p_b == expected
        assert n_ik.tolist() == [3, 1]

    def test_most_wanted_first(self):
        assert self.bids([self.MINUS, self.PLUS], threshold=0)[0] == [1, 0]

    @pytest.mark.parametrize("clusters", [2, 3, 4, 7])
    def test_equal_models_are_all_preferred(self, clusters):
        models, net = [self.PLUS] * clusters, [0] * clusters
        assert self.bids(models, net, clusters=clusters)[0] == [*range(clusters)]

    def test_points_of_least_loss(self):
        # Both are right on three points; there the steeper one has less loss, and more where both are wrong.
        assert self.bids([self.PLUS, self.STEEP])[1].tolist() == [3, 3]
        p_b, n_ik = self.bids([self.PLUS, self.STEEP], importance="fedsoft")
        assert (p_b, n_ik.tolist()) == ([1], [1, 3])

    def test_relative_to_all_clients(self):
        # 3/12 and 1/3: the first model is right on more points here, but on even more elsewhere.
        assert self.bids([self.PLUS, self.MINUS], totals=(12, 3), importance="relative")[0] == [1]
        # In the first query nothing is known of the others: 3/4 and 1/4.
        assert self.bids([self.PLUS, self.MINUS], totals=(0, 0), importance="relative")[0] == [0]

    def test_hits_are_told_only_where_others_depend_on_them(self):
        ask = Record({"cluster_0": self.PLUS, "cluster_1": self.MINUS}, {"totals": [0.0, 0.0], "net": [0, 0]})
        for importance, told in (("own", []), ("fedsoft", []), ("relative", [3, 1])):
            reply, _ = IPFL(importance=importance).on_preference(ask, Record(), client(*self.POINTS))
            assert reply.facts == {"bids": [0], "hits": told, "n": 4}

    def test_the_server_sums_what_it_is_told(self):
        method = IPFL(importance="relative")
        hits = lambda i, ask: Record({}, {"bids": [0], "hits": [float(i), 1.0], "n": 10})  # noqa: E731
        played = play(method, state_of(method), 1, hits)
        assert method.offer(played.state, 0).facts == {"totals": [28.0, 8.0]}  # 0 + 1 + … + 7


def exact_shapley(value: Callable[[frozenset[int]], float], players: int) -> NDArray[np.float64]:
    """Exact Shapley values by definition: each player's mean gain over all n! orders in which they may come.

    `value` is v(C) of a coalition; Eq. eq_value2: L(θ_{t−1}) − L(θ_C).
    """
    orders, gains = list(permutations(range(players))), np.zeros(players)
    for order in orders:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            gains[player] += value(before | {player}) - value(before)
    return gains / len(orders)


class TestAlgorithm3:
    # A quadratic loss L(w) = ½‖w − c‖² with c = (1, 1), whose gradient is w − c. Two clients with the same
    # number of samples, W_1 = (1, 0) and W_2 = (2, 0): W_M = (1.5, 0), g = (0.5, −1).
    MODELS = (np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    MEAN, GRADIENT = np.array([1.5, 0.0]), np.array([0.5, -1.0])

    @pytest.mark.parametrize(
        ("normalised", "expected"),
        # −½·0.5·(1 − 1.5) = 0.125 and its mirror; −½·0.5·1 and −½·0.5·2.
        [(True, [0.125, -0.125]), (False, [-0.25, -0.5])],
    )
    def test_by_hand(self, normalised, expected):
        psi = estimate_shapley([(self.GRADIENT, 7)], self.MODELS, [20, 20], self.MEAN, normalised)
        assert psi.tolist() == expected

    def test_unknown_without_test_points_or_numbers(self):
        assert np.isnan(estimate_shapley([], self.MODELS, [1, 1], self.MEAN, True)).all()
        broken = [self.MODELS[0], np.array([np.inf, 0.0])]
        assert np.isnan(estimate_shapley([(self.GRADIENT, 1)], broken, [1, 1], self.MEAN, True)[1])

    @given(
        arrays(np.float64, (4, 3), elements=st.floats(-10, 10)),
        arrays(np.float64, 3, elements=st.floats(-10, 10)),
        st.lists(st.integers(1, 50), min_size=4, max_size=4),
    )
    def test_exact_where_the_loss_is_linear(self, models, slope, samples):
        """Unnormalised, θ_C = Σ_C λ_i θ_i: every player adds −slopeᵀ λ_i θ_i, whoever came before it."""
        shares = np.array(samples) / sum(samples)

        def value(members: frozenset[int]) -> float:
            return -sum((float(slope @ (shares[i] * models[i])) for i in members), 0.0)

        psi = estimate_shapley([(slope, 5)], list(models), samples, shares @ models, False)
        np.testing.assert_allclose(psi, exact_shapley(value, 4), atol=1e-9)

    def test_ranks_clients_as_the_exact_values_do(self):
        # Six clients at 0, 1, …, 5; the loss wants 5, the model before was at −1: the nearer to 5 the better.
        models = np.arange(6.0)[:, None]

        def value(members: frozenset[int]) -> float:
            mean = float(np.mean([models[i] for i in members])) if members else -1.0
            return 0.5 * 6**2 - 0.5 * (mean - 5) ** 2

        exact, mean = exact_shapley(value, 6), models.mean(axis=0)
        psi = estimate_shapley([(mean - 5, 1)], list(models), [1] * 6, mean, True)
        assert rank_correlation(psi, exact) == pytest.approx(1)
        assert exact.sum() == pytest.approx(0.5 * 6**2 - 0.5 * 2.5**2)

    def test_on_the_servers_holdout_that_the_model_suits_best(self):
        # Holdout −2 is the one with more hits per point: its gradient counts, −1. Clients say Acc_k.
        def judge(i: int, ask: Record) -> Record:
            assert ask.facts["gradient"] == (i < 0)
            gradient = np.full(2, i + 1.0, np.float32)
            hits = 8.0 if i == -2 else 5.0
            return Record({"cluster_0": gradient} if i < 0 else {}, {"cluster_0": [hits, 10.0]})

        def train(i: int, ask: Record) -> Record:
            return Record({"cluster_0": np.full(2, i, np.float32)}, {"n": 10})

        method = IPFL(clusters=1, holdout="server")
        state = method.init(setup(2, task=TaskFacts(2, holdouts=(-1, -2))))
        script = {"train": train, "appraise": judge}
        played = play_round(method, state, ScriptedEngine(script), 2)
        assert played.engine.actions == ["train", "appraise", "appraise"]
        # W = (0, 0), (1, 1), mean (½, ½): ψ_1 = ½·(1·½ + 1·½) = ½ = −ψ_0. Acc = 10/20.
        assert [row.psi for row in played.done.market.contributions] == [-0.5, 0.5]
        assert played.done.market.cluster_probe_accuracy == ((0, 0.5),)


class TestEquations:
    def test_importance_weights(self):
        assert importance_weights(np.array([3.0, 1.0]), np.array([4.0, 4.0])).tolist() == [0.75, 0.25]
        assert importance_weights(np.zeros(2), np.zeros(2)).tolist() == [0, 0]

    @given(
        arrays(np.float64, 4, elements=st.floats(0, 1e6)),
        arrays(np.float64, 4, elements=st.floats(0, 1e6)),
    )
    def test_shares_from_0_to_1_and_rows_that_sum_to_1(self, n_ik, n_k):
        upsilon = importance_weights(n_ik, n_k)
        assert ((upsilon >= 0) & (upsilon <= 1)).all()
        row = row_normalised(upsilon)
        assert row.sum() == pytest.approx(1)
        assert (row >= 0).all()

    def test_personalized_model(self):
        # Of four points three suit the first model: P = ¾·(1, 0) + ¼·(−1, 0). Nothing is trained.
        me = client(*TestAlgorithm2.POINTS)
        me = dataclasses.replace(me, parts=dataclasses.replace(me.parts, goal=me.parts.train))
        models = {"cluster_0": TestAlgorithm2.PLUS, "cluster_1": TestAlgorithm2.MINUS}
        offer = Record(models, {"totals": [1.0, 1.0]})
        assert IPFL().personalize(offer, Record(), me).tolist() == [0.5, 0]

    def test_all_models_start_alike(self):
        state = state_of(IPFL(clusters=3))
        assert {model.tobytes() for model in state.models} == {setup(8).params.tobytes()}


class TestSettings:
    @pytest.mark.parametrize(
        ("chosen", "complaint"),
        [
            ({"initial_clustering": True}, "need task.server_samples > 0"),
            ({"holdout": "server"}, "need task.server_samples > 0"),
            ({"price": 10, "opening": 9}, "opening balance 9 is below the price 10"),
        ],
    )
    def test_refused(self, chosen, complaint):
        with pytest.raises(InputError, match=complaint):
            IPFL(**chosen).init(setup(4))

    def test_initial_clustering_needs_classes(self):
        with pytest.raises(InputError, match="needs classes to predict"):
            IPFL(initial_clustering=True).init(setup(4, task=TaskFacts(1, "regression", holdouts=(-1,))))

    def test_few_and_in_one_class(self):
        assert len(dataclasses.fields(IPFL)) <= 14
        own = [base for base in IPFL.__mro__ if base.__module__.startswith("ipfl.methods")]
        assert own == [IPFL]


class TestRuns:
    @pytest.fixture(scope="class")
    def task(self) -> Task:
        return Task.load(clients=8, samples=40, model="softmax", test_samples=20)

    def test_clients_find_the_cluster_of_their_kind(self):
        """Labels are permuted between the two kinds, so that no model can serve both."""
        task = Task.load(clients=12, samples=60, model="mlp", test_samples=40)
        result = run_here(task, IPFL(), rounds=16)
        assert result.summary["purity"] > 0.8  # at random 0.6, of twelve
        assert not result.summary["report"]["collapsed"]

    def test_initial_clustering_starts_in_the_right_cluster(self):
        # Class halves: that is what F1 per class can tell apart (it cannot see a permutation of labels).
        task = Task.load(
            clients=12, samples=60, model="mlp", test_samples=20, server_samples=40, distributions="halves"
        )
        method = IPFL(initial_clustering=True, pretrain=5)
        result = run_here(task, method, rounds=6, evaluate=ipfl.EvaluateConfig(every=1))
        assert result.evaluations[5].purity >= 0.9
        assert [line["transfers"] for line in result.history[:5]] == [()] * 5
        assert {
            len({bid.cluster for bid in result.history[5]["bids"] if bid.client == i}) for i in range(12)
        } == {1}

    @pytest.mark.parametrize("kind", ["liar", "colluder", "replay"])
    def test_attackers_are_understood(self, task, kind):
        """What they say has the form of an honest answer: it counts, and nobody is silent."""
        adversary = ipfl.AdversaryConfig(kind=kind, share=0.3)
        result = run_here(task, IPFL(importance="relative"), rounds=3, adversary=adversary)
        assert not [event for line in result.history for event in line["events"] if event.client is not None]
