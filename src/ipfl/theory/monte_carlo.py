"""The errors of `gaussian_means` by simulation, each with its standard error."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.core.arrays import Floats
from ipfl.theory.gaussian_means import GaussianMeans

Z_95 = 1.96
"""Standard errors to either side of a mean that make its 95 % band."""
Drawing = Literal["root", "pairwise"]
"""Ways to draw the clients' means. root: around their cluster's β, as the model says; pairwise: each around
client 0 with variance 2τ² and independent of the others, as the printed formulas assume."""


class Estimate(NamedTuple):
    """A mean over trials."""

    mean: float
    standard_error: float

    def record(self) -> dict[str, float]:
        """Mean and 95 % band, for the file of numbers."""
        half = Z_95 * self.standard_error
        return {"mean": self.mean, "low": self.mean - half, "high": self.mean + half}


def estimate(values: Floats) -> Estimate:
    """Mean of independent values, and its standard error."""
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


class Trials(NamedTuple):
    """Simulated federations: a row per trial, a column per client."""

    means: Floats
    """μ_j."""
    estimates: Floats
    """μ̂_j."""

    def errors(self, weights: Floats) -> Floats:
        """(Σ_j w_j μ̂_j − μ_0)² of every trial."""
        return np.asarray((self.estimates @ weights - self.means[:, 0]) ** 2)


def simulate_means(
    model: GaussianMeans, trials: int, seed: int, *path: str | int, drawing: Drawing = "root"
) -> Trials:
    """Draws federations.

    The mean of n observations N(μ, σ²) is N(μ, σ²/n), so it is drawn instead of the observations. β₁ is 0,
    and with `pairwise` μ_0 is: errors depend on differences only.

    Args:
        model: Of which kind.
        trials: How many.
        seed: With `path`, says which random stream.
        *path: What the trials are for.
        drawing: How the clients' means are drawn.
    """
    rng = stream(seed, "theory", *path)
    clients = len(model.sizes)
    centres = np.where(model.is_second, model.gap, 0.0)
    spread = np.full(clients, model.tau if drawing == "root" else np.sqrt(2) * model.tau)
    if drawing == "pairwise":
        spread[0] = 0.0
    means = centres + spread * rng.standard_normal((trials, clients))
    noise = model.sigma / np.sqrt(np.array(model.sizes, dtype=np.float64))
    return Trials(means, means + noise * rng.standard_normal((trials, clients)))


def simulate_contribution(
    clients: int, noise: float, tau: float, distances: NDArray[Any], trials: int, seed: int, *path: str | int
) -> list[Estimate]:
    """By how much the error of a member falls when a newcomer at each distance joins its cluster."""
    rng = stream(seed, "theory", *path)
    means = tau * rng.standard_normal((trials, clients))
    estimates = means + np.sqrt(noise) * rng.standard_normal((trials, clients))
    newcomer_noise = np.sqrt(noise) * rng.standard_normal(trials)
    before = (estimates.mean(axis=1) - means[:, 0]) ** 2
    found = []
    for distance in distances:
        joined = (estimates.sum(axis=1) + distance + newcomer_noise) / (clients + 1)
        found.append(estimate(before - (joined - means[:, 0]) ** 2))
    return found
