"""Arithmetic on flat parameter vectors: mean, mix, distance. Sums run in float64, in the given order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ipfl.core.records import Vector


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
