"""Section 3, "Theoretical foundation": clients that estimate their mean, alone or together.

Client j has n_j observations z ~ N(μ_j, σ²). The first m₁ clients (T₁) have μ_j ~ N(β₁, τ²), the others (T₂)
μ_j ~ N(β₂, τ²). All estimators of the paper are weighted averages Σ_j w_j μ̂_j of the clients' own means with
Σ_j w_j = 1, and are judged by client 0, which is in T₁: e = E(Σ_j w_j μ̂_j − μ_0)².

**Exact.** Write μ_j = β + τ ε_j with independent standard normal ε_j, and μ̂_j = μ_j + noise of variance
σ²/n_j. With W₂ = Σ_{j ∈ T₂} w_j,

    Σ_j w_j μ̂_j − μ_0 = W₂ (β₂ − β₁) + τ (Σ_{j≠0} w_j ε_j − (1 − w_0) ε_0) + Σ_j w_j noise_j
    e = W₂² (β₂ − β₁)² + τ² (Σ_{j≠0} w_j² + (1 − w_0)²) + Σ_j w_j² σ²/n_j

It makes no difference whether β₁ is fixed, or μ_0 is fixed and β₁ has a flat prior, as the paper says: only
differences μ_j − μ_0 matter.

**Printed.** The paper has 2τ² Σ_{j≠0} w_j² instead of the middle term: the variance 2τ² of every μ_j − μ_0,
added up as if these differences were independent. They share μ_0: Cov(μ_j − μ_0, μ_k − μ_0) = τ². The printed
formula is exact for clients that are drawn around client 0 one by one, μ_j ~ N(μ_0, 2τ²).

**Equal sizes n₀**, s = σ²/n₀: a cluster's error is s/m₁ + τ² (m₁ − 1)/m₁ (printed: s/m₁ + 2τ² (m₁ − 1)/m₁²).
It is below the local error s if and only if τ² < s (printed: τ² < m₁ s/2). The two agree for m₁ = 2 only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.core.arrays import Floats
from ipfl.errors import InputError

Reading = Literal["exact", "printed"]
READINGS: tuple[Reading, ...] = ("exact", "printed")
"""The formulas, and ways to draw clients that they are right for. exact: around their cluster's β, as the
model says; printed: around client 0, with variance 2τ² and independent of each other."""
PROCEDURES = ("local", "federated", "clustered")
"""The paper's three procedures."""


@dataclass(frozen=True)
class GaussianMeans:
    """A federation of clients that estimate their means."""

    sizes: tuple[int, ...]
    """n_j: observations of each client."""
    first: int
    """m₁: clients 0 to m₁ − 1 are in cluster T₁, all others in T₂."""
    gap: float
    """β₂ − β₁."""
    sigma: float
    """Standard deviation of an observation."""
    tau: float
    """Standard deviation of the clients' means inside a cluster."""

    def __post_init__(self) -> None:
        if not 1 <= self.first <= len(self.sizes) or min(self.sizes) < 1:
            raise InputError("a federation needs a client in its first cluster, and an observation for each")

    @classmethod
    def of_equal_sizes(
        cls, first: int, second: int, size: int, *, gap: float, sigma: float, tau: float
    ) -> GaussianMeans:
        """All clients have n₀ = `size` observations; m₁ = `first`, m₂ = `second`."""
        return cls((size,) * (first + second), first, gap, sigma, tau)

    @property
    def is_second(self) -> NDArray[np.bool_]:
        """True for clients in T₂."""
        return np.arange(len(self.sizes)) >= self.first

    def weights(self, procedure: str) -> Floats:
        """The weights w_j of a procedure: n_j over the sum of all that take part."""
        takes_part = {
            "local": np.arange(len(self.sizes)) == 0,
            "federated": np.ones(len(self.sizes), dtype=bool),
            "clustered": ~self.is_second,
        }[procedure]
        sizes = np.where(takes_part, self.sizes, 0)
        return np.asarray(sizes / sizes.sum())

    def error(self, weights: Floats, reading: Reading = "exact") -> float:
        """Mean squared error of Σ_j w_j μ̂_j as an estimate of μ_0; see the module's text."""
        bias = weights[self.is_second].sum() * self.gap
        noise = (weights**2 / np.array(self.sizes)).sum() * self.sigma**2
        others = (weights[1:] ** 2).sum()
        spread = others + (1 - weights[0]) ** 2 if reading == "exact" else 2 * others
        return float(bias**2 + noise + self.tau**2 * spread)

    def procedure_error(self, procedure: str, reading: Reading = "exact") -> float:
        """Error of one of `PROCEDURES`."""
        return self.error(self.weights(procedure), reading)

    @property
    def noise(self) -> float:
        """σ²/n_0: error of client 0 alone, s in the formulas."""
        return self.sigma**2 / self.sizes[0]


def largest_spread(clients: int, noise: float, reading: Reading = "exact") -> float:
    """The τ² below which a cluster of `clients` (m₁) is better than training alone; `noise` is s = σ²/n₀."""
    return noise if reading == "exact" else clients * noise / 2


def contribution(clients: int, noise: float, tau: float, distance: float) -> float:
    """By how much a member's error falls when a client joins its cluster (equal sizes, exact).

    m₁ members around β, and a newcomer whose mean is β + d, d = `distance`. Before, a member's error is
    s/m₁ + τ² (m₁ − 1)/m₁. After, every weight is 1/(m₁ + 1), and the newcomer adds a bias d/(m₁ + 1):

        s/(m₁ + 1) + τ² (m₁ − 1 + m₁²)/(m₁ + 1)² + d²/(m₁ + 1)²

    The difference is s/(m₁(m₁ + 1)) − τ²/(m₁(m₁ + 1)²) − d²/(m₁ + 1)²: positive only for d² < ((m₁ + 1) s −
    τ²)/m₁. For a newcomer of the same kind, E d² = τ², that is again τ² < s.
    """
    m = clients
    return noise / (m * (m + 1)) - tau**2 / (m * (m + 1) ** 2) - distance**2 / (m + 1) ** 2


def farthest_newcomer(clients: int, noise: float, tau: float) -> float:
    """The distance at which a contribution is zero; 0 if no newcomer is worth anything."""
    return float(np.sqrt(max(0.0, ((clients + 1) * noise - tau**2) / clients)))
