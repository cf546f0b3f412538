"""What the appraisal phase found out about the aggregated models: accuracy and gradient per cluster.

g_k of the Shapley approximation is the mean gradient of the loss at W_M over points that represent cluster
k's clients: either the participants' own held-back points, or the server's holdout that suits the model best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Record, Replies
from ipfl.market.economy import cluster_name

Gradients = dict[int, NDArray[np.float64]]


def _counts(reply: Record, cluster: int) -> tuple[float, float] | None:
    """(hits, points) that a reply claims for a cluster; None where it says nothing sensible."""
    said = reply.facts.get(cluster_name(cluster))
    if said is None or len(said) != 2 or not 0 <= said[0] <= said[1] or not said[1] > 0:
        return None
    return float(said[0]), float(said[1])


def _gradient(reply: Record, cluster: int, size: int) -> NDArray[np.float64] | None:
    vector = reply.params.get(cluster_name(cluster))
    if vector is None or vector.shape != (size,) or not np.isfinite(vector).all():
        return None
    return vector.astype(np.float64)


def appraised(answers: Replies, clusters: Sequence[int], size: int) -> tuple[dict[int, float], Gradients]:
    """Acc_kr and g_k of each cluster, both means over the participants' points; absent where nobody said."""
    accuracy: dict[int, float] = {}
    gradients: Gradients = {}
    for k in clusters:
        counted = {client: counts for client in sorted(answers) if (counts := _counts(answers[client], k))}
        if counted:
            accuracy[k] = sum(hits for hits, _ in counted.values()) / sum(n for _, n in counted.values())
        weight, total = 0.0, np.zeros(size)
        for client, (_, n) in counted.items():
            if (gradient := _gradient(answers[client], k, size)) is not None:
                total += n * gradient
                weight += n
        if weight:
            gradients[k] = total / weight
    return accuracy, gradients


def closest_holdout(scored: Replies, clusters: Sequence[int], size: int) -> Gradients:
    """g_k from the server's holdouts: for each cluster the one on which its model is most accurate.

    The server does not know which distribution a cluster serves; that it serves it best is all it can see.
    """
    gradients: Gradients = {}
    for k in clusters:
        best = -1.0
        for holdout in sorted(scored, reverse=True):
            counts, gradient = _counts(scored[holdout], k), _gradient(scored[holdout], k, size)
            if counts and gradient is not None and counts[0] / counts[1] > best:
                best, gradients[k] = counts[0] / counts[1], gradient
    return gradients
