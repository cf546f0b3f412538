"""The errors of `gaussian_means` by simulation, each with its standard error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.core.arrays import Floats
from ipfl.theory.gaussian_means import GaussianMeans, Reading

Z_95 = 1.96
"""Standard errors to either side of a mean that make its 95 % band."""
Point = dict[str, float]
"""What a formula says (`formula`), and what a simulation does: `mean`, and its band from `low` to `high`."""


class Estimate(NamedTuple):
    """A mean over trials."""

    mean: float
    standard_error: float


def estimate(values: Floats) -> Estimate:
    """Mean of independent values, and its standard error."""
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


def beside(formula: float, values: Floats) -> Point:
    """A formula beside the mean of independent values and its 95 % band."""
    mean, error = estimate(values)
    return {"formula": formula, "mean": mean, "low": mean - Z_95 * error, "high": mean + Z_95 * error}


class Trials(NamedTuple):
    """Simulated federations: a row per trial, a column per client."""

    model: GaussianMeans
    """Of which kind they are."""
    reading: Reading
    means: Floats
    """μ_j."""
    estimates: Floats
    """μ̂_j."""

    def errors(self, weights: Floats) -> Floats:
        """(Σ_j w_j μ̂_j − μ_0)² of every trial."""
        return np.asarray((self.estimates @ weights - self.means[:, 0]) ** 2)

    def procedure_error(self, procedure: str) -> Point:
        """The error of one of the paper's procedures."""
        formula = self.model.procedure_error(procedure, self.reading)
        return beside(formula, self.errors(self.model.weights(procedure)))

    def gain(self, before: Floats, after: Floats) -> Point:
        """By how much the error falls from these weights to those."""
        formula = self.model.error(before, self.reading) - self.model.error(after, self.reading)
        return beside(formula, self.errors(before) - self.errors(after))


def simulate_means(
    model: GaussianMeans, trials: int, seed: int, *path: str | int, reading: Reading = "exact"
) -> Trials:
    """Draws federations.

    The mean of n observations N(μ, σ²) is N(μ, σ²/n), so it is drawn instead of the observations. β₁ is 0,
    or μ_0 is where clients are drawn around client 0: errors depend on differences only.

    Args:
        model: Of which kind.
        trials: How many.
        seed: With `path`, says which random stream.
        *path: What the trials are for.
        reading: The formula that the clients' means are drawn for.
    """
    rng = stream(seed, "theory", *path)
    clients = len(model.sizes)
    centres = np.where(model.is_second, model.gap, 0.0)
    spread = np.full(clients, model.tau if reading == "exact" else np.sqrt(2) * model.tau)
    if reading == "printed":
        spread[0] = 0.0
    means = centres + spread * rng.standard_normal((trials, clients))
    noise = model.sigma / np.sqrt(np.array(model.sizes, dtype=np.float64))
    return Trials(model, reading, means, means + noise * rng.standard_normal((trials, clients)))


def simulate_contribution(
    clients: int, noise: float, tau: float, distances: NDArray[Any], trials: int, seed: int, *path: str | int
) -> Iterator[Floats]:
    """By how much the error of a member falls when a newcomer at each distance joins, in every trial."""
    rng = stream(seed, "theory", *path)
    means = tau * rng.standard_normal((trials, clients))
    estimates = means + np.sqrt(noise) * rng.standard_normal((trials, clients))
    newcomer_noise = np.sqrt(noise) * rng.standard_normal(trials)
    before = (estimates.mean(axis=1) - means[:, 0]) ** 2
    for distance in distances:
        joined = (estimates.sum(axis=1) + distance + newcomer_noise) / (clients + 1)
        yield before - (joined - means[:, 0]) ** 2
