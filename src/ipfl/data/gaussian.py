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
from ipfl.data.dataset import SPLIT_SEED, Dataset


def gaussian(
    *,
    people: int = 200,
    train: int = 200,
    test: int = 100,
    dimensions: int = 8,
    distance: float = 2.0,
    sigma: float = 1.0,
    tau: float = 0.2,
) -> Dataset:
    """Draws the data set; the same for everyone who asks for the same numbers.

    Args:
        people: Groups to draw clients from, alternating between the two clusters.
        train: Training points of each.
        test: Test points of each.
        dimensions: Length of x, at least 2.
        distance: |β_1 − β_2|.
        sigma: Spread σ of a client's points.
        tau: Spread τ of the clients' means within a cluster.
    """
    random = stream(SPLIT_SEED, "gaussian")
    cluster = np.arange(people) % 2
    beta = np.zeros((2, dimensions))
    beta[:, :2] = np.array([[1.0, 1.0], [1.0, -1.0]]) * distance / 2
    mu = beta[cluster] + tau * random.standard_normal((people, dimensions))
    each = train + test
    z = mu[:, None, :] + sigma * random.standard_normal((people, each, dimensions))
    y = random.integers(2, size=(people, each))
    x = ((2 * y - 1)[..., None] * z).astype(np.float32)
    group = np.broadcast_to(np.arange(people)[:, None], y.shape)
    return Dataset(
        name="gaussian",
        x_train=x[:, :train].reshape(-1, dimensions),
        y_train=y[:, :train].ravel(),
        x_test=x[:, train:].reshape(-1, dimensions),
        y_test=y[:, train:].ravel(),
        classes=2,
        group_train=group[:, :train].ravel(),
        group_test=group[:, train:].ravel(),
        group_distribution=cluster,
    )
