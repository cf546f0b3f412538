"""Theorem 6 on losses whose limits are known."""

import numpy as np
import pytest

from ipfl.core import stream
from ipfl.theory.convergence import QuadraticLosses, descend, random_losses


def two_clients(first, second):
    """L₁ = ½ (M − a₁)², L₂ = 3/2 (M − a₂)², with equal weights: M* = (a₁ + 3 a₂)/4."""
    return QuadraticLosses(np.array([[[1.0]], [[3.0]]]), np.array([[first], [second]]), np.array([0.5, 0.5]))


LOSSES = two_clients(0.0, 4.0)


def test_minimum_and_loss():
    """M* = 12/4 = 3; L(3) = ½ (½ · 9 + 3/2 · 1) = 3."""
    assert LOSSES.minimum == pytest.approx([3])
    assert LOSSES.loss(LOSSES.minimum) == pytest.approx(3)
    assert LOSSES.smoothness == pytest.approx(3)


def test_constant_step():
    """η = ¼. E = 1: to M*. E = 2: 1 − P = 1 − (¾)², 1 − (¼)²: M = 15/16 · 4/(7/16 + 15/16) = 30/11."""
    assert LOSSES.constant_step_limit(0.25, 1) == pytest.approx([3])
    assert LOSSES.constant_step_limit(0.25, 2) == pytest.approx([30 / 11])
    assert descend(LOSSES, lambda t: 0.25, 60, 1)[-1] == pytest.approx([3])
    assert descend(LOSSES, lambda t: 0.25, 60, 2)[-1] == pytest.approx([30 / 11])


def test_first_round_by_hand():
    """η = ¼, E = 2, from 0: client 1 stays at 0; client 2 goes to 3, then 3¾. Mean 15/8."""
    assert descend(LOSSES, lambda t: 0.25, 1, 2)[1] == pytest.approx([15 / 8])


@pytest.mark.parametrize("exponent, reaches", [(0, False), (0.75, True), (1, True), (2, False)])
def test_both_conditions_on_the_steps_are_needed(exponent, reaches):
    """E = 2. Σ η = ∞ and Σ η² < ∞ for exponents above ½ up to 1; 2 stops too early, 0 drifts."""
    last = descend(LOSSES, lambda t: 0.25 / (t + 1) ** exponent, 4000, 2)[-1]
    assert (abs(last[0] - 3) < 0.01) == reaches


def test_diminishing_steps_average_noise_away():
    rng = stream(0, "test")
    noisy = descend(LOSSES, lambda t: 0.3 / (t + 1) ** 0.75, 4000, 1, noise=1.0, rng=rng)
    assert abs(noisy[-1][0] - 3) < 0.1
    kept = descend(LOSSES, lambda t: 0.3, 4000, 1, noise=1.0, rng=rng)
    assert kept[1000:].std() > 3 * noisy[1000:].std()


def test_the_printed_inequality_does_not_hold():
    """L(M) ≤ Σ w_i L_i(M^i): clients at their own minima make the right side 0, the left L(2) = 4."""
    own = LOSSES.minima
    assert LOSSES.weights @ LOSSES.client_losses(own) == 0
    assert LOSSES.loss(LOSSES.weights @ own) == pytest.approx(0.5 * (0.5 * 4 + 1.5 * 4))


def test_the_loss_may_rise_in_a_round():
    """a = −3 and 1: M* = 0, where it begins; with E = 2 the first round leaves it."""
    losses = two_clients(-3.0, 1.0)
    start, after = descend(losses, lambda t: 0.25, 1, 2)
    assert start == pytest.approx(losses.minimum)
    assert losses.loss(after) > losses.loss(start)


def test_random_losses_are_convex_and_smooth():
    losses = random_losses(6, 4, seed=1)
    values = np.linalg.eigvalsh(losses.curvatures)
    assert 0.2 <= values.min() <= values.max() <= 1
    weighted = np.einsum("i,ijk,ik->j", losses.weights, losses.curvatures, losses.minimum - losses.minima)
    assert weighted == pytest.approx(np.zeros(4), abs=1e-12)  # the gradient at M*
    group = losses.subset(np.array([1, 4]))
    assert group.weights.sum() == pytest.approx(1)
    assert group.weights[0] / group.weights[1] == pytest.approx(losses.weights[1] / losses.weights[4])
