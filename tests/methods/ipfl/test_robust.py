"""The robust market by hand: judges, copies, outliers, noise, remembered, claims, who earns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.core.sections import AggregateConfig
from ipfl.ledger.accounts import Kind
from ipfl.methods.ipfl import tokens
from ipfl.methods.ipfl.robust import Verdict, judge, limit_claims

BEFORE = np.zeros(2, np.float32)
DOWNHILL = np.array([-1.0, 0.0])
"""Gradient of a loss that falls along the first axis."""


def verdict(
    steps: list[list[float]],
    gradients: list[np.ndarray | None] | None = None,
    counts: list[float] | None = None,
    remembered: list[float] | None = None,
    server: np.ndarray | None = None,
) -> Verdict:
    """Judges updates from the model 0; all judges see the loss fall along the first axis by default."""
    n = len(steps)
    return judge(
        BEFORE,
        [np.array(step, np.float32) for step in steps],
        counts or [10.0] * n,
        [DOWNHILL] * n if gradients is None else gradients,
        np.full(n, np.nan) if remembered is None else np.array(remembered),
        0.5,
        AggregateConfig(),
        server,
    )


class TestJudges:
    def test_contribution_is_the_agreement_with_others(self):
        # Shares of 1/4; cosines with the descent (1, 0): 1, 0.6, 0.8 and, for the way back, −1. The last is
        # left out of the mean; the others have lengths 1, 1, 1: (1 + 0.6 + 0.8)/3 and (0 + 0.8 − 0.6)/3.
        found = verdict([[1, 0], [0.6, 0.8], [0.8, -0.6], [-1, 0]])
        np.testing.assert_allclose(found.psi, [0.25, 0.15, 0.2, -0.25])
        np.testing.assert_allclose(found.model, [0.8, 0.2 / 3], rtol=1e-6)

    def test_nobody_judges_himself(self):
        # The last one's gradient praises the step (0, 1), which the others find sideways: 0 of three votes.
        praise = np.array([0.0, -50.0])
        found = verdict([[1, 0], [0.8, 0.6], [0.8, -0.6], [0, 1]], [DOWNHILL, DOWNHILL, DOWNHILL, praise])
        assert found.psi[3] == 0
        assert (found.psi[:3] > 0).all()

    def test_a_judge_counts_no_more_for_a_long_gradient(self):
        # Two of three judges of the first update are downhill: their median is 1, however loud the third.
        loud = np.array([1e6, 0.0])
        found = verdict([[1, 0], [1, 0.5], [1, -0.5], [0, 1]], [DOWNHILL, DOWNHILL, DOWNHILL, loud])
        np.testing.assert_allclose(found.psi[0], 0.25)

    def test_a_single_provider_cannot_be_judged_and_is_used(self):
        found = verdict([[3, 4]])
        assert np.isnan(found.psi[0])
        assert found.model.tolist() == [3, 4]

    def test_gradients_that_did_not_come_are_no_votes(self):
        found = verdict([[1, 0], [0.6, 0.8], [-1, 0]], [None, DOWNHILL, np.zeros(2)])
        assert np.isnan(found.psi[1])  # only its own gradient is there
        np.testing.assert_allclose(found.psi[[0, 2]], [1 / 3, -1 / 3])

    def test_the_server_judges_alone(self):
        found = verdict([[1, 0], [0, 1]], [DOWNHILL, DOWNHILL], server=np.array([0.0, -2.0]))
        np.testing.assert_allclose(found.psi, [0, 0.5])
        np.testing.assert_allclose(found.model, [0, 1])


class TestUpdates:
    def test_a_client_that_returns_the_model_contributes_nothing(self):
        found = verdict([[1, 0], [0.8, 0.6], [0, 0]])
        assert found.psi[2] == 0
        np.testing.assert_allclose(found.model, [0.9, 0.3], rtol=1e-6)  # the mean of the other two

    def test_copies_count_once(self):
        # The second is the first at cosine 1/√(1 + 0.01²) > 0.95: one voice, one update, one reward.
        found = verdict([[1, 0], [1, 0.01], [0.6, 0.8]])
        np.testing.assert_allclose(found.psi, [1 / 3, 0, 0.2])
        np.testing.assert_allclose(found.model, [0.8, 0.4], rtol=1e-6)

    def test_copies_do_not_outvote(self):
        # Two names of one client call for (0, −1); without the copy's voice the third hears one judge
        # against one: median of 1 and −0 … so it stays above 0.
        against = np.array([0.0, 1.0])
        found = verdict([[0, -1], [0, -1], [1, 0], [0.8, 0.6]], [against, against, DOWNHILL, DOWNHILL])
        np.testing.assert_allclose(found.psi[2], 0.25 * (0 + 1) / 2)

    def test_outlandish_length_is_not_used(self):
        # Lengths 1, 1, 1 and 10, more than three medians.
        found = verdict([[1, 0], [0.8, 0.6], [0.6, -0.8], [10, 1]])
        assert found.psi[3] == 0
        np.testing.assert_allclose(found.model, [0.8, -0.2 / 3], rtol=1e-6)

    def test_free_riders_do_not_make_honest_updates_outlandish(self):
        found = verdict([[0, 0], [0, 0], [0, 0], [1, 0], [0.8, 0.6]])
        assert (found.psi[3:] > 0).all()

    def test_small_beside_the_median_is_noise(self):
        # Cosines 1, 0.8, 0.6, 0.02: median 0.7, a tenth of it 0.07.
        found = verdict([[1, 0], [0.8, 0.6], [0.6, -0.8], [0.02, 1]])
        assert found.psi[3] == 0
        np.testing.assert_allclose(found.model, [0.8, -0.2 / 3], rtol=1e-6)

    def test_claimed_samples_count_up_to_twice_the_median(self):
        # In the mean 1000 count 20, beside 10, 10, 10: (10 + 8 + 6 + 20·0.28)/50 and (6 − 8 + 20·0.96)/50.
        # In contributions they do not count at all: a quarter of the cosine each.
        found = verdict([[1, 0], [0.8, 0.6], [0.6, -0.8], [0.28, 0.96]], counts=[10, 10, 10, 1000])
        np.testing.assert_allclose(found.model, [0.592, 0.344], rtol=1e-6)
        np.testing.assert_allclose(found.psi, [0.25, 0.2, 0.15, 0.07])

    def test_standing_decides_what_is_used(self):
        # ψ is −0.25 for the last, but with 1 remembered its remembered is (1 − 0.25)/2; the first is good
        # today only: (−1 + 0.25)/2.
        steps = [[1, 0], [0.6, 0.8], [0.8, -0.6], [-1, 0]]
        found = verdict(steps, remembered=[-1, np.nan, np.nan, 1])
        np.testing.assert_allclose(found.psi, [0.25, 0.15, 0.2, -0.25])
        np.testing.assert_allclose(found.model, [(0.6 + 0.8 - 1) / 3, 0.2 / 3], rtol=1e-5)

    def test_nothing_good_at_all(self):
        # All go uphill: those of fair length are used, as in a market that is not robust.
        found = verdict([[-1, 0], [-0.6, 0.8]])
        assert (found.psi < 0).all()
        np.testing.assert_allclose(found.model, [-0.8, 0.4], rtol=1e-6)

    def test_nothing_fair_at_all_leaves_the_model(self):
        # The others are copies of the first, which is too long beside them.
        assert verdict([[10, 0], [1, 0], [1, 0]]).model.tolist() == [0, 0]


rows = arrays(np.float64, st.tuples(st.integers(2, 8), st.just(3)), elements=st.floats(-4, 4, width=32))


@given(rows)
def test_whatever_comes_the_verdict_is_a_model(steps):
    before = np.ones(3, np.float32)
    models, unknown = [(before + step).astype(np.float32) for step in steps], np.full(len(steps), np.nan)
    found = judge(before, models, [5.0] * len(steps), list(-steps), unknown, 0.5, AggregateConfig())
    assert found.model.dtype == np.float32
    assert np.isfinite(found.model).all()
    assert found.psi.shape == (len(steps),)
    assert (np.nan_to_num(np.abs(found.psi)) <= 1 / len(steps) + 1e-9).all()  # a share times a cosine


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


class TestRewards:
    def test_only_positive_contributions_earn(self):
        # 60 tokens; ranks among clients 0 and 2 alone: 1 and 2.
        bank = tokens.Bank(np.zeros(4, np.int64), np.zeros(1, np.int64), np.array([60]), 60)
        psi, everyone = np.array([0.1, 0.0, 0.3, np.nan]), np.arange(4)
        after, moved = tokens.reward(bank, 0, everyone, psi, np.ones(4, int), everyone, positive=True)
        assert after.balances.tolist() == [20, 0, 40, 0]
        assert set(moved.kind.tolist()) == {Kind.REWARD}

    def test_if_there_are_none_all_are_ranked(self):
        bank = tokens.Bank(np.zeros(2, np.int64), np.zeros(1, np.int64), np.array([60]), 60)
        everyone = np.arange(2)
        after, _ = tokens.reward(
            bank, 0, everyone, np.array([-0.2, -0.1]), np.ones(2, int), everyone, positive=True
        )
        assert after.balances.tolist() == [20, 40]
