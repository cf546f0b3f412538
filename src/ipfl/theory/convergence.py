"""Theorems 3, 4 and 6: federated gradient descent with diminishing steps on a convex loss.

The loss of client i is L_i(M) = ½ (M − a_i)ᵀ A_i (M − a_i) with a positive definite A_i: convex, smooth, and
all limits are known. L = Σ_i w_i L_i has its minimum at M* = (Σ w_i A_i)⁻¹ Σ w_i A_i a_i.

In a round every client takes E steps of size η_t from the common model, and the results are averaged.
With P_i = (I − η A_i)^E that is M ← Σ w_i (a_i + P_i (M − a_i)). For a constant step its fixed point solves

    (I − Σ w_i P_i) M = Σ w_i (I − P_i) a_i

which is M* for E = 1 only: with more local steps, clients drift to their own minima. The drift in a round
is of order η_t². So Σ η_t = ∞ (any distance can be covered) and Σ η_t² < ∞ (drift and gradient noise add up
to a finite sum) together are enough, as Theorem 6 says, and the figure shows that each of the two is needed.

Its proof does not hold as printed: L(M_{t+1}) ≤ Σ w_i L_i(M^i_{t+1}) is claimed by Jensen's inequality, but
with every client at its own minimum the right side is 0 and the left is not. The loss may rise in a round;
what falls is its distance from the minimum in the long run (tests/theory/test_convergence.py has both).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ipfl.core import stream
from ipfl.core.arrays import Floats, Ints

StepSize = Callable[[int], float]
"""η_t for t = 0, 1, …"""


@dataclass(frozen=True)
class QuadraticLosses:
    """Losses of all clients."""

    curvatures: Floats
    """A_i: (client, dimension, dimension)."""
    minima: Floats
    """a_i: (client, dimension)."""
    weights: Floats
    """w_i, with the sum 1."""

    @property
    def minimum(self) -> Floats:
        """M*."""
        weighted = self.weights[:, None, None] * self.curvatures
        return np.asarray(
            np.linalg.solve(weighted.sum(axis=0), np.einsum("ijk,ik->j", weighted, self.minima))
        )

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of any A_i, the paper's β; steps below 2/β lower a client's own loss."""
        return float(np.linalg.eigvalsh(self.curvatures).max())

    def client_losses(self, model: Floats) -> Floats:
        """L_i(M) of every client; `model` may have a row per client."""
        away = model - self.minima
        return np.asarray(np.einsum("ij,ijk,ik->i", away, self.curvatures, away) / 2)

    def loss(self, model: Floats) -> float:
        """L(M)."""
        return float(self.weights @ self.client_losses(model))

    def constant_step_limit(self, step: float, local_steps: int) -> Floats:
        """The limit of federated descent with a constant step; see the module's text."""
        eye = np.eye(self.minima.shape[1])
        left = eye - np.linalg.matrix_power(eye - step * self.curvatures, local_steps)
        weighted = self.weights[:, None, None] * left
        return np.asarray(
            np.linalg.solve(weighted.sum(axis=0), np.einsum("ijk,ik->j", weighted, self.minima))
        )

    def subset(self, members: Ints) -> QuadraticLosses:
        """The losses of some clients, with their weights in proportion."""
        weights = self.weights[members]
        return QuadraticLosses(self.curvatures[members], self.minima[members], weights / weights.sum())


def random_losses(clients: int, dimension: int, seed: int, *, gap: float = 0.0) -> QuadraticLosses:
    """Losses whose minima lie in two groups, `gap` apart; eigenvalues of every A_i from 0.2 to 1."""
    rng = stream(seed, "theory", "losses")
    rotations = np.linalg.qr(rng.standard_normal((clients, dimension, dimension)))[0]
    values = rng.uniform(0.2, 1.0, (clients, dimension))
    curvatures = np.einsum("ijk,ik,ilk->ijl", rotations, values, rotations)
    minima = 3.0 + rng.standard_normal((clients, dimension))
    minima[clients // 2 :, 0] += gap
    weights = rng.uniform(0.5, 1.5, clients)
    return QuadraticLosses(curvatures, minima, weights / weights.sum())


def descend(
    losses: QuadraticLosses,
    steps: StepSize,
    rounds: int,
    local_steps: int = 1,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Floats:
    """Federated gradient descent from the origin.

    Args:
        losses: Of the clients.
        steps: η_t by round.
        rounds: How many.
        local_steps: E, of each client in a round.
        noise: Standard deviation of the error in every coordinate of a gradient.
        rng: For the noise.

    Returns:
        The common models: (round + 1, dimension), the start first.
    """
    model = np.zeros(losses.minima.shape[1])
    models = [model]
    for t in range(rounds):
        local = np.tile(model, (len(losses.weights), 1))
        for _ in range(local_steps):
            gradients = np.einsum("ijk,ik->ij", losses.curvatures, local - losses.minima)
            if rng is not None and noise:
                gradients = gradients + noise * rng.standard_normal(gradients.shape)
            local = local - steps(t) * gradients
        model = losses.weights @ local
        models.append(model)
    return np.array(models)
