r"""The theory section's Gaussian means as a task that a classifier can learn.

Client i of cluster c observes z ~ N(μ_i, σ²) with μ_i ~ N(β_c, τ²). Here a point is the pair (x, y) with
a fair coin y ∈ {0, 1} and x = z for y = 1, x = −z for y = 0, so that (2y − 1)·x is exactly the z of the
theory. The best classifier of client i is the linear one along μ_i: learning it *is* estimating the mean.
β_1 = (a, a, 0, …) and β_2 = (a, −a, 0, …): a model of both clusters keeps the shared first coordinate and
loses the second, just as the mean over all clients does in Eq. 2.
"""

from __future__ import annotations

import numpy as np

from ipfl.core import stream
from ipfl.data.dataset import DATASET_SEED, Dataset

_GROUPS = 200
"""Groups, each a possible client, alternating between the two clusters."""
_TRAIN = 200
"""Training points of each group."""
_TEST = 100
_DIMENSIONS = 8
_DISTANCE = 2.0
"""|β_1 − β_2|."""
_SIGMA = 1.0
"""Spread σ of a client's points."""
_TAU = 0.2
"""Spread τ of the clients' means within a cluster."""


def make_gaussian() -> Dataset:
    """Draws the data set: the same in every run."""
    random = stream(DATASET_SEED, "gaussian")
    cluster = np.arange(_GROUPS) % 2
    beta = np.zeros((2, _DIMENSIONS))
    beta[:, :2] = np.array([[1.0, 1.0], [1.0, -1.0]]) * _DISTANCE / 2
    mu = beta[cluster] + _TAU * random.standard_normal((_GROUPS, _DIMENSIONS))
    points = _TRAIN + _TEST
    z = mu[:, None, :] + _SIGMA * random.standard_normal((_GROUPS, points, _DIMENSIONS))
    y = random.integers(2, size=(_GROUPS, points))
    x = ((2 * y - 1)[..., None] * z).astype(np.float32)
    group = np.broadcast_to(np.arange(_GROUPS)[:, None], y.shape)
    return Dataset(
        name="gaussian",
        x_train=x[:, :_TRAIN].reshape(-1, _DIMENSIONS),
        y_train=y[:, :_TRAIN].ravel(),
        x_test=x[:, _TRAIN:].reshape(-1, _DIMENSIONS),
        y_test=y[:, _TRAIN:].ravel(),
        classes=2,
        group_train=group[:, :_TRAIN].ravel(),
        group_test=group[:, _TRAIN:].ravel(),
        group_distribution=cluster,
    )
