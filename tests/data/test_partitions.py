"""Shares to whole numbers: every expected count is worked out beside the test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.core import stream
from ipfl.data.partitions import (
    class_shares,
    counts_within_supply,
    distribution_shares,
    largest_remainder,
    parse_partition,
    probe_size,
    unequal_sizes,
)
from ipfl.errors import InputError


def test_largest_remainder_by_hand() -> None:
    # 7 · (0.5, 0.3, 0.2) = 3.5, 2.1, 1.4: floors 3 + 2 + 1 = 6, the one missing goes to .5
    assert largest_remainder([7], [[0.5, 0.3, 0.2]]).tolist() == [[4, 2, 1]]
    # a tie of .5 and .5: the lower column
    assert largest_remainder([3], [[1, 1]]).tolist() == [[2, 1]]
    # 0.1 · 30 is 3.0000000000000004 in floats and must still be 3
    assert largest_remainder([30], [[0.1, 0.9]]).tolist() == [[3, 27]]


@given(st.integers(0, 500), st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 1e-3))
def test_counts_are_within_one_of_the_quota_and_sum_up(total: int, weights: list[float]) -> None:
    counts = largest_remainder([total], [weights])[0]
    assert counts.sum() == total
    assert (np.abs(counts - total * np.array(weights) / sum(weights)) < 1 + 1e-6).all()


def test_a_to_b_over_three_distributions() -> None:
    # 90 % own (client i: i mod 3), 10 % over the two others, 5 % each
    shares = distribution_shares(parse_partition("10:90"), 4, 3, stream(0, "x"))
    expected = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9], [0.9, 0.05, 0.05]]
    assert np.allclose(shares, expected)


def test_linear_is_half_plus_k_over_n() -> None:
    # N = 100: client k has (0.5 + k) % of D_A
    shares = distribution_shares(parse_partition("linear"), 100, 2, stream(0, "x"))
    assert np.allclose(shares[:, 0], (0.5 + np.arange(100)) / 100)
    assert np.allclose(shares.sum(axis=1), 1)


def test_linear_slides_along_neighbours() -> None:
    # N = 2, d = 3: places 2 · (1 − 0.25) = 1.5 and 2 · (1 − 0.75) = 0.5, between D_1, D_2 and D_0, D_1
    assert np.allclose(
        distribution_shares(parse_partition("linear"), 2, 3, stream(0, "x")), [[0, 0.5, 0.5], [0.5, 0.5, 0]]
    )


def test_random_is_uniform_for_two() -> None:
    share = distribution_shares(parse_partition("random"), 4000, 2, stream(0, "x"))[:, 0]
    # Uniform(0, 1): mean 1/2, a quarter below 1/4; 4000 draws, so within 0.03 (4 standard errors)
    assert abs(share.mean() - 0.5) < 0.03
    assert abs((share < 0.25).mean() - 0.25) < 0.03


def test_classes_are_dealt_evenly() -> None:
    # 10 clients · 2 classes over 5 classes of the same supply: each class exactly 4 times
    shares = class_shares(parse_partition("classes:2"), 10, np.full(5, 100), stream(3, "x"))
    assert ((shares > 0).sum(axis=1) == 2).all()
    assert (shares > 0).sum(axis=0).tolist() == [4] * 5


def test_a_rare_class_goes_to_fewer_clients() -> None:
    held = (class_shares(parse_partition("classes:1"), 300, np.array([100, 200]), stream(0, "x")) > 0).sum(
        axis=0
    )
    assert held.tolist() == pytest.approx([100, 200], abs=2)  # in proportion to the supply


def test_a_class_that_runs_out_is_filled_by_the_others() -> None:
    # First client: 4 of class 0. Second wants 4 more of it, 1 is left; its other class gives 3.
    counts = counts_within_supply(np.array([4, 4]), np.array([[1, 0, 0], [0.9, 0.1, 0]]), np.array([5, 9, 9]))
    assert counts.tolist() == [[4, 0, 0], [1, 3, 0]]


@given(st.integers(5, 200), st.integers(1, 30), st.floats(0.1, 3), st.integers(0, 99))
def test_unequal_sizes_keep_the_mean_and_the_floor(mean: int, n: int, spread: float, seed: int) -> None:
    sizes = unequal_sizes(mean, np.exp(stream(seed, "w").normal(0, spread, n)))
    assert sizes.sum() == mean * n
    assert sizes.min() >= 5


def test_unequal_sizes_by_hand() -> None:
    # mean 20, weights 1 : 3 : 8 of 60 is 5, 15, 40
    assert unequal_sizes(20, np.array([1.0, 3.0, 8.0])).tolist() == [5, 15, 40]
    # weights 0.1 : 1 : 1: the first would have 2.9 and gets 5, 27.5 each are left, tie to the left
    assert unequal_sizes(20, np.array([0.1, 1.0, 1.0])).tolist() == [5, 28, 27]


def test_probe_is_rounded_and_leaves_something_on_both_sides() -> None:
    # 0.2 · 60 = 12; 0.2 · 2 = 0.4 but at least 1; 0.9 · 2 = 1.8 but 1 must be left; 0.5 · 5 = 2.5 rounds up
    assert [int(probe_size(n, s)) for n, s in ((60, 0.2), (2, 0.2), (2, 0.9), (5, 0.5))] == [12, 1, 1, 3]


@pytest.mark.parametrize(
    "text, says",
    [
        ("10:80", "sum to 100"),
        ("-10:110", "unknown partition"),
        ("10:ninety", "not a number"),
        ("classes:0", "at least 1"),
        ("classes:1.5", "whole number"),
        ("classes:", "not a number"),
        ("dirichlet:0", "greater than 0"),
        ("dirichlet:nan", "not a number"),
        ("linear:3", "takes no number"),
        ("lineer", "did you mean 'linear'"),
    ],
)
def test_bad_partitions_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_partition(text)
