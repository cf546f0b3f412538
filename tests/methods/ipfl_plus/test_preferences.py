from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.methods.ipfl_plus.preferences import choose_bids, importance_weights, mean_returns

anything = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.integers(1, 6).flatmap(lambda k: st.tuples(*[arrays(np.float64, k, elements=anything)] * 2)))
def test_importance_is_convex_whatever_comes_in(given_: tuple[np.ndarray, np.ndarray]) -> None:
    weights = importance_weights(*given_)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


def test_importance_without_any_hit_is_uniform() -> None:
    assert importance_weights(np.array([0.0, np.nan, -1.0, 0.0]), np.ones(4)).tolist() == [0.25] * 4


def test_importance_does_not_depend_on_factors_common_to_all_clusters() -> None:
    # n_ik/n_k from counts: 30 of 40 points and 10 of 40; all clients together 300 and 200 of 1000.
    # 30/300 = 0.1, 10/200 = 0.05 → 2/3, 1/3; the accuracies 0.75, 0.25 over 0.3, 0.2 must say the same.
    np.testing.assert_allclose(
        importance_weights(np.array([0.75, 0.25]), np.array([0.3, 0.2])), [2 / 3, 1 / 3]
    )


def test_an_unknown_mean_counts_as_the_average_of_the_known() -> None:
    # Known 0.2 and 0.6, so the third is taken as 0.4: ratios 1, 1, 2.
    weights = importance_weights(np.array([0.2, 0.6, 0.8]), np.array([0.2, 0.6, np.nan]))
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.5])


def test_exactly_uniform_weights_prefer_all_clusters() -> None:
    third = importance_weights(np.array([0.1, 0.1, 0.1]), np.array([0.7, 0.7, 0.7]))
    assert choose_bids(third) == [0, 1, 2]


def test_the_best_cluster_is_bid_for_even_below_the_threshold() -> None:
    assert choose_bids(np.array([0.3, 0.4, 0.3]), threshold=0.9) == [1]


def test_a_preferred_cluster_that_loses_money_is_bid_for_only_for_its_appeal() -> None:
    weights = np.array([0.4, 0.35, 0.25])
    assert choose_bids(weights, 0.3, np.array([np.nan, -0.1, np.nan])) == [0]
    assert choose_bids(weights, 0.3, np.array([-0.1, 0.0, np.nan])) == [0, 1]


def test_incentive_feedback_changes_the_order_and_is_bounded_by_one_price() -> None:
    # 0.26 against 0.24 + 0.1·clip(5)/4 = 0.265; with a return of 0.5 only 0.2525.
    weights = np.array([0.26, 0.24, 0.26, 0.24])
    assert choose_bids(weights, 0.2, np.array([np.nan, 5.0, np.nan, np.nan])) == [1, 0, 2, 3]
    assert choose_bids(weights, 0.2, np.array([np.nan, 0.5, np.nan, np.nan])) == [0, 2, 1, 3]
    # However much it earned, it adds 0.1/4 at most: 0.28 against 0.24 + 0.025.
    assert (
        choose_bids(np.array([0.28, 0.24, 0.24, 0.24]), 0.2, np.array([np.nan, 5.0, np.nan, np.nan]))[0] == 0
    )
    assert choose_bids(weights, 0.2, np.array([np.nan, 5.0, np.nan, np.nan]), feedback=0.0) == [0, 2, 1, 3]


def test_mean_return_per_seat_in_prices() -> None:
    # 3 seats that brought 45 tokens at a price of 10: 1.5 prices each. No seat: unknown, whatever is said.
    np.testing.assert_allclose(mean_returns([3, 1, 0], [45, -20, 7], 10), [1.5, -2.0, np.nan])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-50, 50)), max_size=20))
def test_totals_give_the_plain_mean_per_cluster(history: list[tuple[int, int]]) -> None:
    seats = [sum(k == cluster for k, _ in history) for cluster in range(3)]
    net = [sum(tokens for k, tokens in history if k == cluster) for cluster in range(3)]
    for cluster, mean in enumerate(mean_returns(seats, net, 10)):
        mine = [tokens for k, tokens in history if k == cluster]
        assert mean == pytest.approx(sum(mine) / len(mine) / 10) if mine else np.isnan(mean)
