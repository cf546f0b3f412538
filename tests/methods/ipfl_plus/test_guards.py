"""The robust market by hand: copies, extremes, sample counts, noise, claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.config.sections import AggregateConfig
from ipfl.methods.ipfl_plus.agreement import agreement, contributions_by_agreement
from ipfl.methods.ipfl_plus.guards import (
    find_originals,
    is_above_noise,
    is_too_long,
    limit_claims,
    median_length,
    screen,
    usual_length_after,
)
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.updates import ClusterUpdates

EVERY_GUARD = IPFL().guards


def updates(steps: list[list[float]] | np.ndarray, counts: list[float] | None = None) -> ClusterUpdates:
    """Updates from the model (1, 1, …), of 10 samples each if nothing else is said."""
    before = np.ones(len(steps[0]), np.float32)
    models = tuple((before + np.array(step)).astype(np.float32) for step in steps)
    n = len(models)
    weights = np.array(counts or [10.0] * n)
    return ClusterUpdates.of(before, tuple(range(n)), models, weights)


def originals(steps: np.ndarray) -> list[int]:
    """For every update the one that it is a copy of."""
    return find_originals(steps @ steps.T).tolist()


def too_long(steps: np.ndarray, *usual: float) -> np.ndarray:
    """Whether updates are too long."""
    return is_too_long(np.linalg.norm(steps, axis=1), *usual)


class TestScreen:
    def test_copies_count_once(self):
        # The second is the first at cosine 1/√(1 + 0.01²) > 0.95, and the fourth the third, twice as long.
        steps = [[1, 0], [1, 0.01], [0.6, 0.8], [1.2, 1.6]]
        assert originals(np.array(steps)) == [0, 0, 2, 2]
        assert screen(updates(steps), EVERY_GUARD).is_fair.tolist() == [True, False, True, False]

    def test_copies_with_noise_of_a_quarter(self):
        # Cosines 1/(1 + ¼²) = 0.94 of the first two, 0 of all other pairs: over max(0.85, (1 + 0)/2).
        steps = np.array([[1.0, 0.25, 0, 0, 0], [1, 0, 0.25, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
        assert originals(steps) == [0, 0, 2, 3]
        # There are but these two: they may be alike by chance.
        assert originals(steps[:2]) == [0, 1]

    def test_where_all_are_alike_nobody_copies(self):
        # All cosines are 1/(1 + ¼²) = 0.94, under (1 + 0.94)/2; the fifth is the first once more.
        steps = np.hstack([np.ones((4, 1)), np.eye(4) / 4])
        assert originals(steps) == [0, 1, 2, 3]
        assert originals(np.vstack([steps, steps[0]])) == [0, 1, 2, 3, 0]

    def test_the_way_back_is_no_copy(self):
        assert originals(np.array([[1.0, 0], [-1, 0]])) == [0, 1]

    def test_updates_of_length_0_are_not_copies_of_each_other(self):
        # They have no direction; that they contribute nothing is for others to say.
        assert originals(np.zeros((3, 2))) == [0, 1, 2]

    def test_much_longer_than_the_others(self):
        # Lengths 1, 1, 1, 3 and 3.1: three medians are 3.
        steps = [[1, 0], [0, 1], [-1, 0], [0, -3], [2.0, 2.37]]
        assert too_long(np.array(steps)).tolist() == [False] * 4 + [True]
        assert not screen(updates(steps), EVERY_GUARD).is_fair[4]

    def test_attackers_that_are_half_of_a_cluster_are_too_long_by_what_is_expected(self):
        # Lengths 1, 10, 10 with a median of 10. Expected is 1: its double counts, and three of that are 6.
        steps = np.array([[1.0, 0], [0, 10], [10, 0]])
        assert not too_long(steps).any()
        assert too_long(steps, 1.0).tolist() == [False, True, True]
        # All are far longer than expected: the model has changed, and the median of the round counts.
        assert not too_long(10 * steps, 1.0).any()

    def test_usual_length(self):
        # The median of 1, 2 and 3 is 2; then 0.8·2 + 0.2·3. Who does not move does not count.
        first = median_length([np.array([1.0, 3, 0]), np.array([2.0, 0])])
        assert first == usual_length_after(float("nan"), first) == 2
        assert usual_length_after(2.0, 3.0) == pytest.approx(2.2)
        # Nobody moved: it stays as it was.
        assert usual_length_after(2.0, median_length([np.zeros(2)])) == 2
        # Most of a round attacked: 10 counts as twice 2.
        assert usual_length_after(2.0, 10.0) == pytest.approx(0.8 * 2 + 0.2 * 4)

    def test_free_riders_do_not_make_honest_updates_too_long(self):
        # The median is taken of those that are updates at all: 1.
        assert not too_long(np.array([[0.0, 0], [0, 0], [0, 0], [1, 0], [0, 1]])).any()
        assert not too_long(np.zeros((2, 2))).any()

    def test_claimed_samples_count_up_to_twice_the_median(self):
        # 10, 20, 30 and 1000: the median is 25.
        found = screen(
            updates([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]], [10, 20, 30, 1000]), EVERY_GUARD
        )
        assert found.weights.tolist() == [10, 20, 30, 50]

    def test_guards_work_one_by_one(self):
        # The second is a copy of the first, the third too long, and claims too many samples.
        found = updates([[1, 0], [1, 0.01], [0, -9], [-1, 0], [0, 1]], [10, 10, 1000, 10, 10])
        fair = {
            guard: (~screen(found, frozenset({guard})).is_fair).nonzero()[0].tolist() for guard in EVERY_GUARD
        }
        assert {guard: rows for guard, rows in fair.items() if rows} == {"copies": [1], "lengths": [2]}
        limited = {g for g in EVERY_GUARD if screen(found, frozenset({g})).weights[2] < 1000}
        assert limited == {"counts"}

    def test_which_guards_a_setting_means(self):
        assert IPFL(robust=False).guards == frozenset()
        assert IPFL(robust=("clip", "noise")).guards == {"clip", "noise"}
        assert {"claims", "copies", "lengths", "counts", "clip", "noise"} == EVERY_GUARD

    def test_the_rest_is_clipped_to_the_median_length(self):
        # Lengths 1, 1 and 2: the third becomes (0, −1) in the mean of three, (1 − 0)/3 and (1 − 1)/3.
        found = updates([[1, 0], [0, 1], [0, -2]]).mean(AggregateConfig(), clip=True)
        np.testing.assert_allclose(found, [1 + 1 / 3, 1], rtol=1e-6)
        plain = updates([[1, 0], [0, 1], [0, -2]]).mean(AggregateConfig())
        np.testing.assert_allclose(plain, [1 + 1 / 3, 1 - 1 / 3], rtol=1e-6)

    def test_nothing_left_leaves_the_model(self):
        # The others are copies of the first, which is too long beside them.
        found = screen(updates([[10, 0], [1, 0], [1, 0]]), EVERY_GUARD)
        assert not found.is_fair.any()
        assert found.only(found.is_fair).mean(AggregateConfig()).tolist() == [1, 1]


rows = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(3)), elements=st.floats(-4, 4, width=32))


@given(rows)
def test_whatever_comes_the_mean_is_a_model_no_further_away_than_three_medians(steps):
    found = screen(updates(steps), EVERY_GUARD)
    kept = found.only(found.is_fair)
    model = kept.mean(AggregateConfig(), clip=True)
    assert model.dtype == np.float32
    assert np.isfinite(model).all()
    lengths = found.products.lengths
    typical = np.median(lengths[lengths > 0]) if lengths.any() else 0.0
    assert np.linalg.norm(model - found.before) <= 3 * typical + 1e-5


@pytest.mark.parametrize(
    ("psi", "expected"),
    [
        ([1.0, 0.8, 0.6, 0.02], [True, True, True, False]),  # median 0.7, a tenth of it 0.07
        ([0.5, 0.0, -0.2], [True, False, False]),  # median 0: above 0
        ([-0.1, -0.3], [False, False]),  # a negative median is no limit below 0
        ([np.nan, 0.4], [True, True]),  # what is unknown may be good
        ([np.nan, 0.4, 0.01], [True, True, False]),  # median 0.205
        ([np.nan], [True]),
        ([], []),
    ],
)
def test_small_beside_the_median_is_noise(psi, expected):
    assert is_above_noise(np.array(psi)).tolist() == expected


class TestClaims:
    def test_extremes_are_cut(self):
        # A fifth of five on either side: the largest and the smallest become their neighbours.
        claims = np.array([[1.0], [0.4], [0.3], [0.2], [0.0]])
        assert limit_claims(claims, 0.2).ravel().tolist() == [0.4, 0.4, 0.3, 0.2, 0.2]

    def test_a_cluster_keeps_half_of_its_own(self):
        # Five clusters of two clients each: at most a tenth is cut, so the second best of each column stays.
        claims = np.kron(np.eye(5), np.array([[0.9], [0.8]])) + 0.05
        np.testing.assert_allclose(limit_claims(claims, 0.4).max(axis=0), 0.85)

    def test_nothing_to_cut(self):
        claims = np.random.default_rng(0).random((6, 2))
        np.testing.assert_array_equal(limit_claims(claims, 0.0), claims)


def test_a_cluster_whose_updates_are_all_unfair_has_no_contributions_and_no_steps():
    # The first is ten times as long as the median, the others are copies of it: none of them counts.
    found = screen(updates([[10, 0], [1, 0], [1, 0]]), EVERY_GUARD)
    assert not found.is_fair.any()
    nobody = found.only(found.is_fair)
    assert nobody.products.among.shape == (0, 0)
    shares = nobody.shares(clip=True)
    assert contributions_by_agreement(nobody.products, shares).tolist() == []
    assert nobody.mean(AggregateConfig()).tolist() == [1, 1]


def test_two_long_reversed_updates_are_no_majority_beside_three():
    # Weights of 1/5 and M = (0.5, 0). As they are sent, those that go the right way are beside 0.5 + (1 + 1 −
    # 2.5 − 2.5)/5 = −0.1 of it and would count as wrong. Clipped to the median length 1: 0.5 + (2 − 2)/5, and
    # the reversed ones are beside 0.5 + (3 − 1)/5, against which they go.
    models = tuple(np.array(step, np.float32) for step in ([1, 0], [1, 0], [1, 0], [-2.5, 0], [-2.5, 0]))
    direction, weights = np.array([0.5, 0], np.float32), np.full(5, 10.0)
    found = ClusterUpdates.of(np.zeros(2, np.float32), tuple(range(5)), models, weights, (), direction)
    as_sent = agreement(found.products, found.shares(clip=False), with_direction=True)
    np.testing.assert_allclose(as_sent, [-1, -1, -1, -1, -1])
    np.testing.assert_allclose(found.shares(clip=True), [0.2, 0.2, 0.2, 0.08, 0.08])
    psi = contributions_by_agreement(found.products, found.shares(clip=True), is_noisy=True)
    np.testing.assert_allclose(psi, [1, 1, 1, -1, -1])
