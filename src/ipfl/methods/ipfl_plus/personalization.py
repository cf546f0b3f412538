"""The mix of the cluster models that a client chooses on its own points, see `OwnPoints`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.client.own_points import OwnPoints
from ipfl.core import Vector
from ipfl.core.vectors import mix
from ipfl.market.market_arrays import Floats
from ipfl.methods.ipfl_plus.mixing import calibrated_hits, candidate_weights, choose_on_evidence, optimism


def mix_on_evidence(
    models: Sequence[Vector], importance: Floats, points: OwnPoints, me: Client, *, is_trained: bool = False
) -> Vector:
    """The mix at hand, unless the client's points are evidence for another one.

    Args:
        models: ω_k.
        importance: υ_ik.
        points: The client's.
        me: The client.
        is_trained: Whether those that were held back have been trained on by now.
    """
    weights = candidate_weights(importance)
    candidates = [mix(models, one) for one in weights]
    scores = [point_scores(_logs(candidate, points, me), points.labels, me) for candidate in candidates]
    return candidates[choose_on_evidence(scores, optimism(weights) if is_trained else None)]


def point_scores(table: NDArray[np.float64], labels: NDArray[np.int64], me: Client) -> NDArray[np.float64]:
    """(n,): soft score of every point; of classes, with the model as sure of itself as it should be.

    Args:
        table: What `Client.log_scores` says of the points.
        labels: Their true classes, if classes are predicted.
        me: The client.
    """
    if me.predicts_classes:
        return calibrated_hits(table, labels)
    return np.nan_to_num(np.exp(table[:, 0]), nan=0.0)


def _logs(model: Vector, points: OwnPoints, me: Client) -> NDArray[np.float64]:
    """(n, classes) or (n, 1): what `Client.log_scores` says of all points under one model."""
    parts = [me.log_scores(model, samples) for samples in (points.held_back, points.trained)]
    return np.concatenate(parts)
