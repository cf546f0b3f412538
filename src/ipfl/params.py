"""Arithmetic on flat parameter vectors: mean, mix, distance; and which replies are fit for it.

Sums run in float64, in the given order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ipfl.core import Record, Vector

LARGEST = 1e6
"""Largest component of a vector that a client may send. Parameters and gradients of a network that works are
of order 1; beyond this a training has diverged or a message is broken, and one such reply in a mean of
thousands would still leave no usable model."""


def mix(vectors: Sequence[Vector], weights: Iterable[float]) -> Vector:
    """Σ_k weight_k · vector_k (Eq. personalized_model); the weights are taken as they are."""
    total = np.zeros(len(vectors[0]), dtype=np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total += float(weight) * vector.astype(np.float64)
    return total.astype(np.float32)


def mean(vectors: Sequence[Vector], weights: Sequence[float] | None = None) -> Vector:
    """Weighted mean (FedAvg's aggregation); equal weights by default."""
    shares = np.ones(len(vectors)) if weights is None else np.asarray(weights, dtype=np.float64)
    return mix(vectors, shares / shares.sum())


def distance(one: Vector, other: Vector) -> float:
    """Euclidean distance."""
    return float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))


def measured(vector: Vector) -> bool:
    """Whether all components are finite and at most `LARGEST`; so is then every mean of such vectors."""
    # No comparison is true of NaN, which min and max pass on.
    return not vector.size or bool(vector.min() >= -LARGEST and vector.max() <= LARGEST)


def sound(reply: Record, name: str, size: int) -> bool:
    """Whether a reply holds a vector of that name, of the right length and measure, and a sample count."""
    vector, n = reply.params.get(name), reply.facts.get("n")
    if vector is None or vector.shape != (size,) or not isinstance(n, int) or n < 1:
        return False
    return measured(vector)
