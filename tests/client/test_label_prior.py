"""How often a client has each class, as a term for the outputs of its model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.client.last_step import prior_logits


def labels(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


def test_by_hand():
    # Shares 0.9 and 0.1 of 20: Q = (0.4² + 0.4²) / (0.5/20) = 12.8, less 2·√2 = 2.828: 9.972.
    # α = (20 − 9.972) / 8.972 = 1.118, so p = (18 + 0.559, 2 + 0.559) / 21.118 = 0.8788 and 0.1212,
    # and log 2p = 0.5640 and −1.417.
    assert prior_logits(labels(18, 2), 2) == pytest.approx([0.5640, -1.417], abs=1e-3)


def test_what_may_be_chance_counts_as_equal():
    # Shares 0.7 and 0.3 of 20: Q = (0.2² + 0.2²) / 0.025 = 3.2, less than 1 + 2.828.
    assert prior_logits(labels(14, 6), 2).tolist() == [0, 0]


def test_a_class_that_was_never_seen_is_rare_not_impossible():
    # Only class 0: Q = 0.5/0.025 = 20, less 2.828: 17.172. α = 2.828/16.172 = 0.1749, and
    # p_1 = 0.08744 / 20.175 = 0.004334; log 2p_1 = −4.748.
    assert prior_logits(labels(20, 0), 2)[1] == pytest.approx(-4.748, abs=2e-3)
    assert np.isfinite(prior_logits(labels(10_000), 2)).all()


def test_shares_of_a_dirichlet_are_found():
    # A share of Dirichlet(1, …, 1) has the variance 0.1·0.9/(10 + 1) = 0.0082: so wrong are equal shares.
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(10), size=100)
    seen = [rng.choice(10, size=60, p=p) for p in true]
    found = np.array([np.exp(prior_logits(one, 10)) / 10 for one in seen])
    assert np.square(0.1 - true).mean() == pytest.approx(0.0082, rel=0.1)
    assert np.square(found - true).mean() < 0.0082 / 4
    # What matters is the information lost, in nats for a point: that of equal shares is 0.37.
    lost = (true * (np.log(true) - np.log(found))).sum(axis=1).mean()
    equal = (true * (np.log(true) - np.log(0.1))).sum(axis=1).mean()
    assert lost < equal / 3


@given(st.lists(st.integers(0, 60), min_size=2, max_size=8))
def test_shares_sum_to_one_and_keep_the_order(counts):
    logits = prior_logits(labels(*counts), len(counts))
    assert np.exp(logits).mean() == pytest.approx(1)
    order = np.argsort(counts, kind="stable")
    assert (np.diff(logits[order]) >= -1e-12).all()
