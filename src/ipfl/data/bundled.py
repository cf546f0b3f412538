"""Data sets that need no file: the digits that come with scikit-learn, and the theory's Gaussian means."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.dataset import DATASET_SEED, Dataset, choose_test_points, divide_points
from ipfl.errors import InputError

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


def read_digits() -> Dataset:
    """The digits that come with scikit-learn, with a fixed split."""
    x, y = _digits()
    is_test = choose_test_points(y, 297 / len(y), "digits")
    return divide_points("digits", x, y, None, is_test, classes=10)


@cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels from scikit-learn's file, as its `load_digits` reads it.

    To import that function takes as long as to import torch. The file is text, and read once.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InputError("the data set digits is part of scikit-learn, which is not installed")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    x = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return x, table[:, -1].astype(np.int64)


def make_gaussian() -> Dataset:
    r"""The theory section's Gaussian means as a task that a classifier can learn; the same in every run.

    Client i of cluster c observes z ~ N(μ_i, σ²) with μ_i ~ N(β_c, τ²). Here a point is the pair (x, y) with
    a fair coin y ∈ {0, 1} and x = z for y = 1, x = −z for y = 0, so that (2y − 1)·x is exactly the z of the
    theory. The best classifier of client i is the linear one along μ_i: learning it *is* estimating the mean.
    β_1 = (a, a, 0, …) and β_2 = (a, −a, 0, …): a model of both clusters keeps the shared first coordinate and
    loses the second, just as the mean over all clients does in Eq. 2.
    """
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
