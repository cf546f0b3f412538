"""Seats: numbers of explorers and places, the draw and the sort of bidders, where explorers train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.core import stream
from ipfl.market.seating import Seating, count_explorers
from ipfl.methods.ipfl_plus.seats import (
    Bidders,
    SeatRecord,
    Seats,
    count_places,
    draw_bidders,
    first_round,
    sort_bidders,
    z_scores,
)

UNKNOWN = np.full(10, np.nan)


def bidders(
    ranks: np.ndarray | list[list[int]],
    importance: np.ndarray | float | None = 0.5,
    balances: np.ndarray | list[int] | int = 50,
    available: np.ndarray | list[bool] | bool = True,
) -> Bidders:
    """Clients with these bids, all paid; None: they never answered."""
    table = np.asarray(ranks)
    n = len(table)
    return Bidders(
        table >= 0,
        table,
        np.broadcast_to(np.nan if importance is None else importance, table.shape),
        np.full(table.shape, np.nan),
        np.broadcast_to(available, n),
        np.broadcast_to(balances, n),
    )


def seat(
    known: Bidders, places: list[int], n_r: int, rng: np.random.Generator, had: Any = 0, **settings: Any
) -> Seating:
    """Seats by the default rule unless a setting says otherwise; a seat costs 10."""
    rule = Seats(**{"ration": 0.0, **settings})
    table = np.zeros(known.paid.shape, int)
    table[:, 0] = had
    return rule.select(known, SeatRecord(table, table), np.array(places), n_r, 10, rng)


@pytest.mark.parametrize(
    ("n", "unexplored", "expected"),
    [
        (100, 1.0, 20),  # 20 % at first
        (100, 0.5, 10),  # half of them explored: half of that
        (100, 0.25, 5),
        (100, 0.1, 5),  # 2 % would be below the floor of 5 %
        (100, 0.0, 5),
        (100, 0.4, 8),  # although 100·0.2·0.4 is a little more than 8 in binary
        (10, 0.0, 1),  # half a client is one
        (33, 1.0, 7),  # 6.6 rounded up
        (1, 1.0, 1),
    ],
)
def test_number_of_explorers(n: int, unexplored: float, expected: int) -> None:
    trained = np.arange(n)[:, None] >= round(n * unexplored)
    assert count_explorers(trained.astype(int), start=0.2) == expected


def test_the_draw_is_without_replacement_and_all_places_follow_the_weights() -> None:
    # Weights 1, 1 and 2, by Efraimidis and Spirakis: the strong one is first with probability 2/4, and second
    # with 2·(1/4)·(2/3) = 1/3. 4000 draws have a standard deviation of 0.008; five of them are allowed.
    rng, weight = stream(8, "draw"), np.log([1.0, 1, 2])
    orders = np.array([draw_bidders(np.arange(3), weight, rng) for _ in range(4000)])
    assert (np.sort(orders, axis=1) == [0, 1, 2]).all()
    assert (orders[:, 0] == 2).mean() == pytest.approx(1 / 2, abs=0.04)
    assert (orders[:, 1] == 2).mean() == pytest.approx(1 / 3, abs=0.04)


def first_seats(known: Bidders, draws: int, **settings: Any) -> np.ndarray:
    """(N,) how often each client gets the one seat of cluster 0."""
    rng = stream(9, "draw")
    return np.sum([seat(known, [1], 0, rng, **settings).selected[:, 0] for _ in range(draws)], axis=0)


def test_importance_and_contributions_count_and_unknown_ones_as_the_average() -> None:
    # Importance 0.9 and 0.1 have z = 1 and −1: weights e² and e^−2 (β = 2), a share of 0.982. Contributions 1
    # and −1 likewise, e^½ and e^−½ (β_ψ = ½), and z = 0 of the unknown one: a weight of 1. Deviations of the
    # shares of 1000 draws are 0.004 and 0.016 at most.
    by_word = bidders([[0], [0]], np.array([[0.9], [0.1]]))
    np.testing.assert_allclose(first_seats(by_word, 1000) / 1000, [0.982, 0.018], atol=0.02)
    by_work = replace(bidders([[0]] * 3), psi=np.array([[1.0], [np.nan], [-1.0]]))
    weights = np.exp([0.5, 0, -0.5])
    np.testing.assert_allclose(first_seats(by_work, 1000) / 1000, weights / weights.sum(), atol=0.08)


def test_seats_had_count_against_a_client() -> None:
    # Importance 0.9 and 0.1 have z = ±1, seats 4 and 0 as well: log w = 2·1 − ration·1 against its negative.
    # The strong one is first with probability 1/(1 + e^−2(2 − ration)): 1/2 at ration 2, 0.02 at 4.
    known = bidders([[0], [0]], np.array([[0.9], [0.1]]))
    for ration, share in ((2.0, 0.5), (4.0, 0.018)):
        first = first_seats(known, 1000, had=[4, 0], ration=ration)
        assert first[0] / 1000 == pytest.approx(share, abs=0.08)


def test_the_paper_sorts_by_contribution_alone() -> None:
    # ψ = 3 first, then 1; −1 comes after client 0, whose contribution is unknown and counts as 0.
    psi = np.array([np.nan, 1.0, 3.0, -1.0])
    assert sort_bidders(np.array([3, 0, 1, 2]), psi, stream(1, "x")).tolist() == [2, 1, 0, 3]
    known = replace(bidders([[0]] * 4), psi=psi[:, None])
    assert rows(seat(known, [2], 0, stream(1, "x"), rule="paper").selected) == [[1, 2]]
    # Of equal ones each is first as often: 100 of 300, with a deviation of √(300·⅓·⅔) = 8.2; five of them.
    first = [sort_bidders(np.arange(3), UNKNOWN[:3], stream(seed, "x"))[0] for seed in range(300)]
    np.testing.assert_allclose(np.bincount(first), 100, atol=41)


def test_standard_scores_by_hand_and_extreme_ones() -> None:
    # 1 and 3: mean 2, deviation 1. One outlier among a million has z = 1000: e^(2·1000) is beyond a float,
    # its place in the draw is not.
    assert z_scores(np.array([1.0, np.nan, 3.0, np.inf])).tolist() == [-1, 0, 1, 0]
    assert z_scores(np.array([0.1, 0.1, 0.1])).tolist() == z_scores(np.full(3, np.nan)).tolist() == [0] * 3
    outlier = np.zeros(10**6)
    outlier[5] = 1.0
    with np.errstate(all="raise"):
        drawn = draw_bidders(np.arange(20), 2 * z_scores(outlier), stream(2, "x"))
    assert drawn[0] == 5


class TestPlaces:
    def test_what_k_does_not_divide_goes_round(self) -> None:
        # 8 seats for 3 clusters: 2 each, two over. They are those of clusters 0 and 1, then 2 and 0, then 1
        # and 2: after three rounds every cluster had 8.
        turns = [count_places(8, 3, turn).tolist() for turn in range(4)]
        assert turns == [[3, 3, 2], [3, 2, 3], [2, 3, 3], [3, 3, 2]]

    @given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 10**6))
    def test_all_seats_are_dealt_and_evenly(self, seats: int, clusters: int, turn: int) -> None:
        places = count_places(seats, clusters, turn)
        assert places.sum() == seats
        assert places.max() - places.min() <= 1
        rounds = [count_places(seats, clusters, turn + i) for i in range(clusters)]
        assert np.sum(rounds, axis=0).tolist() == [seats] * clusters


def rows(table: np.ndarray) -> list[list[int]]:
    """Who has a seat in each cluster."""
    return [np.flatnonzero(column).tolist() for column in table.T]


@pytest.mark.parametrize(("trained", "round", "by_bid"), [(0, 0, [2, 1]), (10, 0, [3, 2]), (10, 1, [2, 3])])
def test_the_budget_is_shared_among_bidders_and_explorers(
    trained: int, round: int, by_bid: list[int]
) -> None:
    # Six seats in two clusters for which all ten bid. Nobody explored: 10·0.3 = 3 explorers, and 3 places by
    # bid. All explored: 10·0.05, so 1, and 5 places, of which the odd one is cluster 0's in round 0.
    known, table = bidders([[0, 1]] * 10), np.zeros((10, 2), int)
    table[:trained] = 1
    chosen = Seats(explore=0.3).choose(known, SeatRecord(table, table), 6, 10, round, stream(1, "x"))
    assert chosen.selected.sum(axis=0).tolist() == by_bid
    assert chosen.all.sum() == 6
    # Explorers leave one seat for each cluster.
    chosen = Seats(explore=1).choose(known, SeatRecord(0 * table, 0 * table), 6, 10, 0, stream(1, "x"))
    assert chosen.selected.sum(axis=0).tolist() == [1, 1]


class TestExplorersWhereTheyPrefer:
    def test_they_train_in_the_cluster_that_they_want_most(self) -> None:
        # Client 0 gets the seat of cluster 0. Of the others, 1 wants cluster 1 most, 2 cluster 0, 3 only 1.
        known = bidders([[0, -1], [1, 0], [0, 1], [-1, 0]], np.array([[0.9, 0.1], *[[0.5, 0.5]] * 3]))
        chosen = seat(known, [1, 0], 3, stream(1, "x"))
        assert rows(chosen.selected) == [[0], []]
        assert rows(chosen.explorers) == [[2], [1, 3]]

    def test_only_paid_bids_count(self) -> None:
        # The client wants cluster 1 most, but the bid that it could pay is the one for cluster 0.
        known = replace(bidders([[1, 0]]), paid=np.array([[True, False]]))
        assert rows(seat(known, [0, 0], 1, stream(1, "x")).explorers) == [[0], []]

    def test_clients_that_never_answered_train_anywhere_if_they_can_pay(self) -> None:
        # Clients 0 to 9 can pay from their balance, the others cannot.
        known = bidders([[-1, -1]] * 12, importance=None, balances=[10] * 10 + [9] * 2)
        explorers = seat(known, [0, 0], 12, stream(1, "x")).explorers
        assert explorers.sum(axis=1).tolist() == [1] * 10 + [0] * 2
        assert explorers.any(axis=0).all()

    def test_clients_that_answered_without_a_bid_do_not_explore(self) -> None:
        # It was asked, and did not bid: who does not want a model does not have to train.
        known = bidders([[-1, -1], [0, -1]])
        assert rows(seat(known, [0, 0], 2, stream(1, "x")).explorers) == [[1], []]

    def test_a_second_seat_only_when_nobody_is_without_one(self) -> None:
        # All three have seats in cluster 0, and 1 and 2 bid for cluster 1 as well: those two get the seats.
        known = bidders([[0, -1], [0, 1], [0, 1]])
        assert rows(seat(known, [3, 0], 4, stream(1, "x")).explorers) == [[], [1, 2]]
        # With a fourth client that has none, that one comes first.
        known = bidders([[0, -1], [0, 1], [0, 1], [-1, 0]])
        assert rows(seat(known, [3, 0], 1, stream(1, "x")).explorers) == [[], [3]]

    def test_every_client_without_a_seat_is_drawn_alike(self) -> None:
        # One seat for four clients, 2000 times: 500 each, with a deviation of √(2000·¼·¾) = 19; five of them.
        known, rng = bidders([[0, 1]] * 4), stream(5, "x")
        drawn = np.sum([seat(known, [0, 0], 1, rng).explorers[:, 0] for _ in range(2000)], axis=0)
        np.testing.assert_allclose(drawn, 500, atol=97)


class TestExplorersAnywhere:
    """By the paper's rule."""

    def test_explorers_are_spread_evenly_and_who_comes_first_changes(self) -> None:
        nobody, extra = bidders(np.full((30, 3), -1), importance=None), set()
        for seed in range(20):
            sizes = seat(nobody, [0, 0, 0], 7, stream(seed, "x"), rule="paper").explorers.sum(axis=0)
            assert sorted(sizes.tolist()) == [2, 2, 3]
            extra.add(int(np.argmax(sizes)))
        assert extra == {0, 1, 2}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 12),
    st.integers(0, 15),
    st.sampled_from(["draw", "paper"]),
)
def test_selection_properties(seed: int, n: int, k: int, budget: int, n_r: int, rule: str) -> None:
    draw = np.random.default_rng(seed)
    ranks = np.where(draw.random((n, k)) < 0.5, draw.random((n, k)).argsort(axis=1), -1)
    answered = (ranks >= 0).any(axis=1) | (draw.random(n) < 0.5)
    importance = np.where(answered[:, None], draw.random((n, k)), np.nan)
    known = bidders(ranks, importance, draw.integers(0, 40, n), draw.random(n) < 0.8)
    places = count_places(budget, k, seed)
    chosen, again = (seat(known, places.tolist(), n_r, stream(seed, "x"), rule=rule) for _ in range(2))
    performance, random = chosen.selected, chosen.explorers
    assert not (performance & random).any()
    assert not chosen.all[~known.available].any()
    bids = (known.paid & known.available[:, None]).sum(axis=0)
    assert performance.sum(axis=0).tolist() == np.minimum(places, bids).tolist()
    assert (known.paid | ~performance).all()
    assert ((random & ~known.paid).sum(axis=1) * 10 <= known.balances).all()
    empty = budget + n_r - int(chosen.all.sum())
    assert empty >= 0  # never beyond the budget
    if rule == "draw":  # and no seat stays empty while anybody could take it
        able = known.paid | (~answered & (known.balances >= 10))[:, None]
        free = able & known.available[:, None] & ~chosen.all
        free[~answered & chosen.all.any(axis=1)] = False
        assert not (empty and free.any())
    assert again.explorers.tolist() == random.tolist()


def test_first_round_deals_each_client_once_and_evenly() -> None:
    available = np.ones(20, bool)
    available[[3, 7]] = False
    chosen = first_round(available, 11, 3, stream(5, "x"))
    assert chosen.explorers.sum(axis=0).tolist() == [4, 4, 3]
    assert chosen.explorers.sum(axis=1).max() == 1
    assert not chosen.explorers[[3, 7]].any()
    assert not chosen.selected.any()
    scarce = first_round(np.array([True, False, True]), 6, 2, stream(6, "x"))
    assert scarce.explorers.sum(axis=0).tolist() == [1, 1]
