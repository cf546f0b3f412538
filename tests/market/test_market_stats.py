from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.market.market_stats import gini, market_events, market_stats, rank_correlation


def test_gini_by_hand() -> None:
    assert gini(np.array([5, 5, 5])) == 0
    # One of four has all: (2·4 − 4 − 1)·8/(4·8) = 3/4.
    assert gini(np.array([0, 8, 0, 0])) == pytest.approx(0.75)
    # 1, 2, 3: (−2·1 + 0·2 + 2·3)/(3·6) = 4/18.
    assert gini(np.array([3, 1, 2])) == pytest.approx(2 / 9)
    assert gini(np.array([0, 0])) == 0


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_gini_is_half_the_relative_mean_difference(balances: list[int]) -> None:
    x = np.array(balances)
    mean_difference = np.abs(x[:, None] - x[None, :]).mean()
    assert gini(x) == pytest.approx(mean_difference / (2 * x.mean()) if x.any() else 0, abs=1e-9)


def test_broke_clients_cannot_pay_one_bid() -> None:
    assert market_stats(np.array([0, 9, 10, 11]), 10, 3)["broke"] == 2


def test_rank_correlation_by_hand() -> None:
    # Ranks 1, 2, 3, 4 against 1, 2, 4, 3: 1 − 6·(1 + 1)/(4·15) = 0.8. The unknown pair does not count.
    one, other = np.array([1.0, 2, 3, 4, np.nan]), np.array([10.0, 20, 400, 30, 5])
    assert rank_correlation(one, other) == pytest.approx(0.8)
    # With a tie: ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, variances 1.5 and 2: 1.5/√3.
    assert rank_correlation(np.array([1.0, 1, 2]), np.array([1.0, 2, 3])) == pytest.approx(np.sqrt(3) / 2)


@pytest.mark.parametrize("one", [[], [1.0], [1.0, 1.0, 1.0]])
def test_rank_correlation_of_nothing_to_rank(one: list[float]) -> None:
    some = np.arange(len(one), dtype=float)
    assert rank_correlation(np.array(one), some) is None
    assert rank_correlation(some, np.array(one)) is None


@pytest.mark.parametrize(
    ("bids", "collapsed"),
    [([9, 1], True), ([8, 2], False), ([0, 95, 5], True), ([7], False), ([0, 0], False)],
)
def test_collapse(bids: list[int], collapsed: bool) -> None:
    """From nine of ten bids on; nothing can be told of one cluster, or without bids."""
    ranks = np.concatenate(
        [np.where(np.arange(len(bids)) == k, 0, -1)[None].repeat(n, 0) for k, n in enumerate(bids)]
    )
    assert market_events(ranks.reshape(-1, len(bids)), 0, False)[0] is collapsed
    begins = [event.kind for event in market_events(ranks, 2, False)[1]]
    assert begins == ["empty_seats", *(["collapse"] if collapsed else [])]
    assert [event.kind for event in market_events(ranks, 0, True)[1]] == []
