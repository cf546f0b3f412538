"""Initial clustering (appendix "Initial Clustering"): K-Means on what the clients' models are good at.

After a few rounds of pre-training, each client's model is scored on IID test data of the server; clients
whose per-class F1 is alike start in the same cluster. Later they settle by preference and contribution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.errors import InputError
from ipfl.market.market_arrays import Floats, Ints

STARTS = 10
"""K-Means runs, of which the tightest is kept."""


def confusion(guess: Ints, labels: Ints, classes: int) -> NDArray[np.int64]:
    """(3·C,) true positives, false positives and false negatives of every class, one after the other."""
    predicted, actual = (np.bincount(points, minlength=classes) for points in (guess, labels))
    right = np.bincount(labels[guess == labels], minlength=classes)
    return np.concatenate([right, predicted - right, actual - right])


def f1_from_counts(tp: Ints, fp: Ints, fn: Ints) -> NDArray[np.float64]:
    """ξ, the F1 score 2·tp/(2·tp + fp + fn) per client and class; 0 for a class that never occurs."""
    return np.asarray(2 * tp / np.maximum(2 * tp + fp + fn, 1), np.float64)


def varied_classes(f1: Floats, kept: int) -> NDArray[np.int64]:
    """Eq. imprtant_features: the classes with the largest V_F1 = var(ξ) over clients, ties by class number.

    Args:
        f1: (n, C) F1 per client and class.
        kept: How many; all of them if there are fewer.
    """
    if kept < 1:
        raise InputError(f"initial clustering must keep at least one class, not {kept}")
    return np.argsort(-f1.var(axis=0), kind="stable")[:kept].astype(np.int64)


def initial_clusters(
    f1: Floats, answered: Ints, all_clients: Ints, clusters: int, classes_kept: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The first cluster of every client.

    Args:
        f1: (n, C) F1 per class of the clients that answered in time.
        answered: (n,) their ids.
        all_clients: (N,) everyone; the others get a random cluster.
        clusters: K; where fewer clients answered than that, or they are too much alike, K-Means finds
            as many groups as they form.
        classes_kept: Number of classes to compare.
        rng: Of this round.

    Returns:
        (N,) cluster numbers in the order of `all_clients`.
    """
    from sklearn.cluster import KMeans  # takes as long to import as torch

    assigned = rng.integers(clusters, size=len(all_clients))
    seed = int(rng.integers(2**31))
    finite = np.isfinite(f1).all(axis=1)
    if not finite.any():
        return assigned
    points = f1[finite][:, varied_classes(f1[finite], classes_kept)]
    groups = min(clusters, len(np.unique(points, axis=0)))
    labels = KMeans(groups, n_init=STARTS, random_state=seed).fit_predict(points)
    found = dict(zip(answered[finite].tolist(), labels.tolist(), strict=True))
    return np.array(
        [found.get(i, random) for i, random in zip(all_clients.tolist(), assigned.tolist(), strict=True)]
    )
