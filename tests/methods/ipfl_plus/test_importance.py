"""Importance: weights and bids by hand, who is asked in turn, and on how many points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.federation import first_ask
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    market,
    moved,
    no_answer,
    play,
    prefer_parity,
    queries,
    setup,
    unless,
)

from ipfl.core import Record
from ipfl.data.federated import Samples
from ipfl.methods.ipfl_plus.importance import (
    choose_bids,
    cut_extremes,
    mean_returns,
    relative_importance,
    take_turns,
)
from ipfl.methods.ipfl_plus.state import MarketState

anything = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.integers(1, 6).flatmap(lambda k: st.tuples(*[arrays(np.float64, k, elements=anything)] * 2)))
def test_importance_is_convex_whatever_comes_in(given_: tuple[np.ndarray, np.ndarray]) -> None:
    weights = relative_importance(*given_)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


def test_importance_without_any_hit_is_uniform() -> None:
    assert relative_importance(np.array([0.0, np.nan, -1.0, 0.0]), np.ones(4)).tolist() == [0.25] * 4


def test_importance_does_not_depend_on_factors_common_to_all_clusters() -> None:
    # n_ik/n_k from counts: 30 of 40 points and 10 of 40; all clients together 300 and 200 of 1000.
    # 30/300 = 0.1, 10/200 = 0.05 → 2/3, 1/3; the accuracies 0.75, 0.25 over 0.3, 0.2 must say the same.
    np.testing.assert_allclose(
        relative_importance(np.array([0.75, 0.25]), np.array([0.3, 0.2])), [2 / 3, 1 / 3]
    )


def test_an_unknown_mean_counts_as_the_average_of_the_known() -> None:
    # Known 0.2 and 0.6, so the third is taken as 0.4: ratios 1, 1, 2.
    weights = relative_importance(np.array([0.2, 0.6, 0.8]), np.array([0.2, 0.6, np.nan]))
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.5])


NAN = float("nan")


@pytest.mark.parametrize(
    ("weights", "threshold", "returns", "bids"),
    [
        ([1 / 3] * 3, None, [NAN] * 3, [0, 1, 2]),  # exactly uniform: all are preferred
        ([0.3, 0.4, 0.3], 0.9, [NAN] * 3, [1]),  # the best one, even below the threshold
        ([0.4, 0.35, 0.25], 0.3, [NAN, -0.1, NAN], [0]),  # who loses money there does not bid …
        ([0.4, 0.35, 0.25], 0.3, [-0.1, 0, NAN], [0, 1]),  # … unless it is the best one
        # 0.26 against 0.24 + 0.1·clip(5)/4 = 0.265; with a return of 0.5 only 0.2525.
        ([0.26, 0.24, 0.26, 0.24], 0.2, [NAN, 5, NAN, NAN], [1, 0, 2, 3]),
        ([0.26, 0.24, 0.26, 0.24], 0.2, [NAN, 0.5, NAN, NAN], [0, 2, 1, 3]),
        # However much it earned, it adds 0.1/4 at most: 0.28 against 0.24 + 0.025.
        ([0.28, 0.24, 0.24, 0.24], 0.2, [NAN, 5, NAN, NAN], [0, 1, 2, 3]),
    ],
)
def test_bids(weights: list[float], threshold: float | None, returns: list[float], bids: list[int]) -> None:
    assert choose_bids(np.array(weights), threshold, np.array(returns)) == bids


def test_mean_return_per_seat_in_prices() -> None:
    # 3 seats that brought 45 tokens at a price of 10: 1.5 prices each. No seat: unknown, whatever is said.
    np.testing.assert_allclose(mean_returns([3, 1, 0], [45, -20, 7], 10), [1.5, -2.0, np.nan])


def known(state: MarketState, **values: Any) -> MarketState:
    """The state with these answers of clients."""
    return replace(state, preferences=replace(state.preferences, **values))


class TestQueries:
    def test_its_earlier_bids_stand_and_are_paid_for(self):
        method_ = market()
        state, _, _ = play(method_, 2, HONEST)
        silent = HONEST | {"preference": unless({3}, prefer_parity, no_answer)}
        _, (second,), _ = play(method_, 1, silent, state=state, first=2)
        (bid,) = [bid for bid in second.done.market.bids if bid.client == 3]
        assert (bid.cluster, bid.rank, bid.score, bid.served) == (1, 0, None, True)

    def test_the_same_query_twice_gets_the_same_answer(self):
        class Me:
            predicts_classes = True

            def score(self, model: np.ndarray, part: str, limit: int | None = None) -> Any:
                return type("Score", (), {"soft": float(model[0]), "hits": float(model[0]), "n": 10})

            def data(self, part: str, limit: int | None = None) -> Samples:
                return Samples(np.zeros((10, 1)), np.zeros(10, np.int64))

        models = {"cluster_0": np.array([6.0]), "cluster_1": np.array([3.0])}
        account = {"seats": [2, 0], "net": [-90, 0], "balance": 500, "price": 100, "importance": [0.0, 0.0]}
        asked = {"clusters": [0, 1], "means": [0.5, 0.5], "points": 10}
        ask = Record(models, {**asked, **account})
        method_: Any = market(importance={"threshold": 0.3})
        first, mine = method_.on_preference(ask, Record(), Me())
        again, _ = method_.on_preference(ask, mine, Me())
        assert first.facts == again.facts
        assert first.facts == {"bids": [0, 1], "hits": [6.0, 3.0], "n": 10}
        # Without models it bids by what it last answered: the weights 2/3 and 1/3, and no scores.
        bare = Record({}, {**ask.facts, "importance": [2 / 3, 1 / 3]})
        reply, _ = method_.on_preference(bare, mine, Me())
        assert reply.facts == {"bids": [0, 1], "hits": [], "n": 0}
        # Cluster 1 now has cost it half a price a seat: only the cluster that it likes best is left.
        lossy = Record({}, {**bare.facts, "seats": [2, 2], "net": [-90, -100]})
        assert method_.on_preference(lossy, mine, Me())[0].facts["bids"] == [0]
        # Who never had any models has nothing to bid by.
        assert method_.on_preference(Record({}, ask.facts), Record(), Me())[0].facts["bids"] == []


class TestTurns:
    def test_a_budget_of_queries_goes_round(self):
        # 12 clients, 7 a round: one by one it would be every second round, here it is every third at least.
        _, done, engine = play(market(importance={"budget": 7}), 13, HONEST, clients=12)
        asked = [set(query) for query in queries(engine)]
        assert [len(query) for query in asked] == [7] * 12
        assert all(set().union(*asked[i : i + 3]) == set(range(12)) for i in range(10))
        for query, one in zip(queries(engine), done[1:], strict=True):  # and only they bid, sit and pay
            assert {bid.client for bid in one.done.market.bids} == set(query)
            assert {seat.client for seat in one.done.seats} <= set(query)
            assert {client for client, _ in moved(one, "fee")} == set(query)

    @pytest.mark.parametrize(
        ("samples", "points", "per_seat"),
        [
            # Two epochs of 48 samples, three passes each: 288, of which a fifth is 57.6. A client scores two
            # models on 12 points: 24. Enough for 2 of them.
            (48, 12, 2),
            (75, 12, 3),  # 0.2·450/24 = 3.75
            (500, 12, 4),  # 25 would do; 4 are enough
            (10, 100, 2),  # 0.06 would do; a seat needs two who pay for it
            (2000, 1000, 4),  # only 128 of the points are used: 0.2·12000/256 = 9
            (np.nan, np.nan, 2),  # nothing known yet
        ],
    )
    def test_the_default_budget_keeps_a_query_at_a_fifth_of_the_training(self, samples, points, per_seat):
        method_ = market()
        state = known(method_.init(setup(30)), samples=samples, points=points)
        assert len(first_ask(method_, state, 30, round=1).to) == 6 * per_seat  # per_round = 6

    @pytest.mark.parametrize(
        ("samples", "points"),
        [
            # 0.2·6·400 = 480 for two bidders who score two models: 480/(2·2) = 120 points each.
            (400, 120),
            (1000, 128),  # 300 would do; the setting says 128
            (10, 8),  # 3 would do, and say nothing
            (np.nan, 128),  # nothing known yet
        ],
    )
    def test_clients_score_models_on_as_many_points_as_the_query_may_cost(self, samples, points):
        method_ = market()
        state = known(method_.init(setup(30)), samples=samples)
        ask = first_ask(method_, state, 30, round=1)
        assert {record.facts["points"] for record in ask.to.values()} == {points}

    def test_few_clients_are_all_asked(self):
        method_ = market()
        assert len(first_ask(method_, method_.init(setup(11)), 11, round=1).to) == 11

    def test_every_cluster_has_its_share_of_the_turns(self):
        # 4 of 12: of nine clients of cluster 0 three, of three of cluster 1 one; those that wait longest.
        favourite = np.array([0] * 9 + [1] * 3)
        drawn = np.array([5, 4, 3, 5, 4, 3, 5, 4, 3, 4, 3, 4])
        assert set(take_turns(drawn, favourite, 4, 6).tolist()) == {2, 5, 8, 10}
        # 5 of 12: 3.75 and 1.25 rounded down are the same four. The fifth waits longest of the others.
        assert take_turns(drawn, favourite, 5, 6).tolist() == [2, 5, 8, 10, 1]
        # A client that never had a turn comes before all others.
        drawn[[0, 9]] = -1
        assert take_turns(drawn, favourite, 2, 6).tolist() == [0, 9]

    @given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 30), st.integers(0, 99))
    def test_nobody_waits_for_ever(self, clients, clusters, budget, seed):
        budget = min(budget, clients)
        rng = np.random.default_rng(seed)
        favourite, drawn = rng.integers(clusters, size=clients), np.full(clients, -1)
        for round in range(40):
            chosen = take_turns(drawn, favourite, budget, round)
            assert len(set(chosen.tolist())) == budget
            drawn[chosen] = round
            assert round - drawn.min() <= -(-clients // budget), "one by one it would be a round less"


class TestClaims:
    def test_extremes_are_cut(self):
        # A fifth of five on either side: the largest and the smallest become their neighbours.
        claims = np.array([[1.0], [0.4], [0.3], [0.2], [0.0]])
        assert cut_extremes(claims, 0.2).ravel().tolist() == [0.4, 0.4, 0.3, 0.2, 0.2]

    def test_a_cluster_keeps_half_of_its_own(self):
        # Five clusters of two clients each: at most a tenth is cut, so the second best of each column stays.
        claims = np.kron(np.eye(5), np.array([[0.9], [0.8]])) + 0.05
        np.testing.assert_allclose(cut_extremes(claims, 0.4).max(axis=0), 0.85)
