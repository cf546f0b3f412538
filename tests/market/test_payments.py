"""The rules of the market as functions of numbers, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.market import payments as tokens


@pytest.mark.parametrize(
    ("score", "usual", "gamma", "expected"),
    [
        (0.5, float("nan"), 0.1, 0.0),  # used to nothing yet
        (float("nan"), 0.5, 0.1, 0.0),  # did not say
        (0.5, 0.5, 0.1, 0.0),  # as usual
        (0.6, 0.5, 0.1, 0.0),  # better
        (0.475, 0.5, 0.1, 0.5),  # 5 % less = half of γ
        (0.45, 0.5, 0.1, 1.0),
        (0.1, 0.5, 0.1, 1.0),  # more than all cannot be missing
        (0.499, 0.5, 0.0, 1.0),  # γ = 0: any loss is a whole one
        (0.5, 0.5, 0.0, 0.0),
        (0.0, 0.0, 0.1, 0.0),  # used to nothing at all
    ],
)
def test_shortfall_by_hand(score: float, usual: float, gamma: float, expected: float) -> None:
    assert tokens.shortfalls(np.array([score]), np.array([usual]), gamma) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("accuracy", "best", "eta", "gamma", "expected"),
    [
        (0.5, float("nan"), 0.5, 0.1, 0.0),  # first round: nothing to compare with
        (float("nan"), 0.5, 0.5, 0.1, 0.0),  # nobody measured it
        (0.5, 0.5, 0.5, 0.1, 0.5),  # no gain: all of η
        (0.4, 0.5, 0.5, 0.1, 0.5),  # a loss does not cost more than that
        (0.525, 0.5, 0.5, 0.1, 0.25),  # gain 5 % = half of γ: half of η
        (0.6, 0.5, 0.5, 0.1, 0.0),  # gain 20 % ≥ γ
        (0.501, 0.5, 0.5, 0.0, 0.0),  # γ = 0: any gain will do
        (0.5, 0.5, 0.5, 0.0, 0.5),
        (0.1, 0.0, 0.5, 1.0, 0.0),  # from nothing to something
        (0.0, 0.0, 0.5, 1.0, 0.5),
    ],
)
def test_utility_by_hand(accuracy: float, best: float, eta: float, gamma: float, expected: float) -> None:
    assert tokens.utility(accuracy, best, eta, gamma) == pytest.approx(expected)


def test_ranks_ties_by_participation_then_order_and_unknown_last() -> None:
    # ψ: inf and NaN below all, ordered by Ω (1 < 2); then the two 0.3, Ω equal, in order; then 0.9.
    psi = np.array([np.inf, np.nan, 0.9, 0.3, 0.3])
    assert tokens.ranks(psi, np.array([2, 1, 1, 4, 4])).tolist() == [2, 1, 5, 3, 4]


def test_split_tokens_by_hand() -> None:
    # 10 by 1 : 2 : 4 = 1.43, 2.86, 5.71: floors 1, 2, 5, the two left over to .86 and .71.
    assert tokens.split_tokens(10, np.array([1, 2, 4])).tolist() == [1, 3, 6]
    assert tokens.split_tokens(5, np.array([1, 1, 1])).tolist() == [2, 2, 1]
    assert tokens.split_tokens(2**61, np.array([1, 3])).tolist() == [2**59, 3 * 2**59]


@given(st.integers(0, 2**60), st.lists(st.integers(0, 10**6), min_size=1, max_size=30).filter(any))
def test_split_tokens_gives_everything_away_and_nobody_is_a_token_off(total: int, weights: list[int]) -> None:
    parts = tokens.split_tokens(total, np.array(weights, np.int64)).tolist()
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - weight * total) < sum(
            weights
        )  # |part − exact| < 1, in whole numbers
    by_weight = sorted(zip(weights, parts, strict=True))
    assert [part for _, part in by_weight] == sorted(parts)  # never less for more weight


@pytest.mark.parametrize("weights", [[-1, 2], [0, 0], [2**40, 2**40]])
def test_weights_nobody_can_share_by(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        tokens.split_tokens(5, np.array(weights, np.int64))
