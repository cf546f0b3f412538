from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.core import stream
from ipfl.errors import InputError
from ipfl.methods.ipfl.scheduler import Selection, count_explorers, first_round, order_bidders, select

UNKNOWN = np.full(10, np.nan)


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
        (0, 1.0, 0),
    ],
)
def test_number_of_explorers(n: int, unexplored: float, expected: int) -> None:
    assert count_explorers(n, unexplored) == expected


def test_a_weighted_draw_takes_the_stronger_of_two_with_the_share_of_its_weight() -> None:
    # Two clients in all: mean in the middle, so z = +1 and −1 whatever the importances; w = e^β, e^−β.
    # Efraimidis and Spirakis: the first drawn is 1 with probability w_1/(w_0 + w_1) = 1/(1 + e^−2β).
    # β = 0.5: 0.731. 4000 draws have a standard deviation of 0.007; five of them are allowed.
    rng = stream(7, "draw")
    importance, unknown = np.array([0.2, 0.9]), np.full(2, np.nan)
    first = [order_bidders(np.array([0, 1]), importance, unknown, rng, beta=0.5)[0] for _ in range(4000)]
    assert np.mean(first) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.035)


def test_the_draw_is_without_replacement_and_later_places_follow_the_weights_too() -> None:
    # Importance 0, 0, 1 have z = −1/√2, −1/√2, √2 (mean 1/3, deviation √2/3). With β = √2/3·ln 2 the strong
    # one weighs e^(β·3/√2) = 2 times as much as each other: first with probability 2/4, and second with
    # 2·(1/4)·(2/3) = 1/3.
    rng = stream(8, "draw")
    beta = math.sqrt(2) / 3 * math.log(2)
    orders = np.array(
        [order_bidders(np.arange(3), np.array([0.0, 0, 1]), UNKNOWN[:3], rng, beta=beta) for _ in range(4000)]
    )
    assert (np.sort(orders, axis=1) == [0, 1, 2]).all()
    assert (orders[:, 0] == 2).mean() == pytest.approx(1 / 2, abs=0.04)
    assert (orders[:, 1] == 2).mean() == pytest.approx(1 / 3, abs=0.04)


def test_top_order_by_bid_then_contribution_ties_by_id() -> None:
    importance = np.array([0.1, 0.5, 0.5, 0.5, 0.9])
    psi = np.array([np.nan, 1.0, 3.0, 1.0, np.nan])
    rng = np.random.default_rng(0)
    # ψ: known 1, 3, 1 → z = −0.71, 1.41, −0.71; unknown 0. Client 4 leads by its bid, 2 by its ψ.
    assert order_bidders(np.array([3, 0, 1, 2, 4]), importance, psi, rng, "top").tolist() == [4, 2, 1, 3, 0]
    assert order_bidders(np.array([3, 1, 2]), importance, UNKNOWN[:5], rng, "top").tolist() == [1, 2, 3]
    # Unknown is the average, between a good and a bad contribution.
    assert order_bidders(np.arange(3), np.ones(3), np.array([-1, np.nan, 1]), rng, "top").tolist() == [
        2,
        1,
        0,
    ]
    assert order_bidders(np.arange(5), importance, psi, rng, "top", first=3).tolist() == [4, 2, 1]
    assert order_bidders(np.arange(5), importance, psi, rng, "top", first=0).tolist() == []


def test_the_first_places_are_those_of_the_whole_order() -> None:
    importance, psi, bidders = np.linspace(0, 1, 50), np.sin(np.arange(50)), np.arange(0, 50, 2)
    whole = order_bidders(bidders, importance, psi, stream(1, "x"))
    assert order_bidders(bidders, importance, psi, stream(1, "x"), first=4).tolist() == whole[:4].tolist()


def test_extreme_weights_do_not_overflow() -> None:
    # One outlier among a million has z = 1000: e^(2·1000) is beyond a float, its place is not.
    importance = np.zeros(10**6)
    importance[5] = 1.0
    with np.errstate(all="raise"):
        assert order_bidders(
            np.arange(20), importance, np.full(10**6, np.nan), stream(2, "x"), first=1
        ).tolist() == [5]


def test_unknown_order() -> None:
    with pytest.raises(InputError, match="unknown order 'best'"):
        order_bidders(np.arange(2), UNKNOWN[:2], UNKNOWN[:2], stream(1, "x"), "best")  # type: ignore[arg-type]


def test_performance_seats_come_from_the_bidders_and_random_ones_from_the_rest() -> None:
    # Cluster 0: bidders 0, 1, 2 by importance 1 > 0 > 2, two seats. Cluster 1: nobody bid. One explorer.
    paid = np.zeros((4, 2), bool)
    paid[:3, 0] = True
    importance = np.array([[0.6, 0.4], [0.9, 0.1], [0.55, 0.45], [0.1, 0.9]])
    chosen = select(
        paid, importance, np.full((4, 2), np.nan), np.ones(4, bool), np.full(4, 50),
        price=10, n_p=2, n_r=1, rng=stream(3, "x"), order="top",
    )  # fmt: skip
    assert chosen.performance[0].tolist() == [1, 0]
    assert chosen.performance[1].tolist() == []
    assert sum(len(ids) for ids in chosen.random) == 1
    assert not set(chosen.random[0].tolist()) & {0, 1}
    assert chosen.empty_seats == 2  # the two seats of cluster 1 that nobody bid for


def test_explorers_are_spread_evenly_and_who_comes_first_changes() -> None:
    nobody, unknown = np.zeros((30, 3), bool), np.full((30, 3), np.nan)
    extra = set()
    for seed in range(20):
        chosen = select(
            nobody, unknown, unknown, np.ones(30, bool), np.full(30, 50),
            price=10, n_p=0, n_r=7, rng=stream(seed, "x"),
        )  # fmt: skip
        sizes = [len(ids) for ids in chosen.random]
        assert sorted(sizes) == [2, 2, 3]
        assert chosen.empty_seats == 0
        extra.add(int(np.argmax(sizes)))
    assert extra == {0, 1, 2}


def test_only_who_is_available_and_can_pay_explores() -> None:
    # 0 is away; 1 cannot pay, but its bid for cluster 0 is in escrow; 2 can pay one seat; 3 cannot pay.
    paid = np.array([[0, 0], [1, 0], [0, 0], [0, 0]], bool)
    chosen = select(
        paid, np.full((4, 2), 0.5), np.full((4, 2), np.nan), np.array([False, True, True, True]),
        np.array([90, 0, 10, 9]), price=10, n_p=0, n_r=8, rng=stream(4, "x"),
    )  # fmt: skip
    assert 1 in chosen.random[0]
    assert sorted(np.concatenate(chosen.random).tolist()) == [1, 2]
    assert chosen.empty_seats == 6


def test_what_a_cluster_cannot_take_passes_on() -> None:
    # Everyone has a performance seat in cluster 0, so that all explorers that can be must be in cluster 1.
    paid = np.zeros((4, 2), bool)
    paid[:, 0] = True
    for seed in range(6):
        chosen = select(
            paid, np.full((4, 2), 0.5), np.full((4, 2), np.nan), np.ones(4, bool), np.full(4, 50),
            price=10, n_p=4, n_r=2, rng=stream(seed, "x"),
        )  # fmt: skip
        assert [len(ids) for ids in chosen.random] == [0, 2]
        assert len(set(chosen.random[1].tolist())) == 2
        assert chosen.empty_seats == 4  # the performance seats of cluster 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.integers(0, 5), st.integers(0, 15))
def test_selection_properties(seed: int, n: int, k: int, n_p: int, n_r: int) -> None:
    draw = np.random.default_rng(seed)
    paid, available, balances = draw.random((n, k)) < 0.5, draw.random(n) < 0.8, draw.integers(0, 40, n)
    importance, psi = draw.random((n, k)), np.full((n, k), np.nan)

    def again() -> Selection:
        return select(
            paid, importance, psi, available, balances, price=10, n_p=n_p, n_r=n_r, rng=stream(seed, "x")
        )  # fmt: skip

    chosen = again()
    performance, random = chosen.seats(n)
    for cluster in range(k):
        members = np.concatenate([chosen.performance[cluster], chosen.random[cluster]]).tolist()
        assert len(members) == len(set(members))
        assert available[members].all()
        assert len(chosen.performance[cluster]) == min(n_p, int((paid[:, cluster] & available).sum()))
    assert (paid | ~performance).all()
    assert ((random & ~paid).sum(axis=1) * 10 <= balances).all()
    assert chosen.empty_seats == n_p * k + n_r - int((performance | random).sum())
    assert [ids.tolist() for ids in again().random] == [ids.tolist() for ids in chosen.random]


def test_first_round_deals_each_client_once_and_evenly() -> None:
    available = np.ones(20, bool)
    available[[3, 7]] = False
    chosen = first_round(available, 11, 3, stream(5, "x"))
    assert [len(ids) for ids in chosen.random] == [4, 4, 3]
    dealt = np.concatenate(chosen.random).tolist()
    assert len(set(dealt)) == 11
    assert not {3, 7} & set(dealt)
    assert chosen.empty_seats == 0
    assert [len(ids) for ids in chosen.performance] == [0, 0, 0]


def test_first_round_takes_what_there_is() -> None:
    chosen = first_round(np.array([True, False, True]), 6, 2, stream(6, "x"))
    assert [len(ids) for ids in chosen.random] == [1, 1]
    assert chosen.empty_seats == 4
