"""A labelled data set in memory: two disjoint pools, training and test, with optional groups.

Images are uint8 (n, height, width, channels); whoever trains converts batch by batch. Other features are
float32 (n, features). A group is whoever the point came from (a writer, a person).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipfl.core import stream
from ipfl.data.apportion import apportion
from ipfl.errors import InputError

SPLIT_SEED = 0
"""Splits that are part of a data set, not of a run, are drawn from this seed for everyone."""


def features(x: ArrayLike, where: str) -> NDArray[Any]:
    """Checks points and brings them to their form in memory: uint8 images stay, the rest is float32.

    Args:
        x: (n, features), grey images (n, height, width) or images (n, height, width, channels).
        where: What to call the array in an error.

    Raises:
        InputError: On another shape, no numbers, or a value that is not finite.
    """
    points = np.asarray(x)
    if points.dtype.kind not in "buif":
        raise InputError(f"{where} holds {points.dtype}, expected numbers")
    if points.ndim == 3:
        points = points[..., np.newaxis]
    if points.ndim not in (2, 4) or 0 in points.shape:
        raise InputError(
            f"{where} has shape {points.shape}, expected (n, features), (n, height, width) "
            "or (n, height, width, channels), none of them 0"
        )
    if points.dtype == np.uint8:
        return points
    with np.errstate(over="ignore"):
        points = points.astype(np.float32, copy=False)
    if not np.isfinite(points).all():
        raise InputError(f"{where} holds values that are not finite (NaN or infinity)")
    return points


def labels(y: ArrayLike, points: int, where: str) -> NDArray[np.int64]:
    """Checks class labels: whole numbers from 0 on, one per point.

    Raises:
        InputError: On anything else.
    """
    array = np.asarray(y)
    if array.shape != (points,):
        raise InputError(f"{where} has shape {array.shape}, expected one label for each of {points} points")
    if array.dtype.kind not in "ui":
        raise InputError(f"{where} holds {array.dtype}, expected whole numbers")
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:  # beyond, a uint64 would become negative
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(f"{where} holds the label {wrong}, expected labels from 0 on")
    return array.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test pool; checked and converted when made.

    Raises:
        InputError: When arrays do not fit each other or hold something else than finite numbers.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: int
    first_half: tuple[int, ...] | None = None
    """Classes of D_A in `halves`; None: the lower half of the labels."""
    group_train: NDArray[np.int64] | None = None
    """Who each training point came from (writer, person)."""
    group_test: NDArray[np.int64] | None = None
    group_distribution: NDArray[np.int64] | None = None
    """Hidden distribution of group g at position g, where it is known (`gaussian`)."""

    def __post_init__(self) -> None:
        for pool in ("train", "test"):
            x = features(getattr(self, f"x_{pool}"), f"{self.name}: x_{pool}")
            y = labels(getattr(self, f"y_{pool}"), len(x), f"{self.name}: y_{pool}")
            if y.max() >= self.classes:
                raise InputError(
                    f"{self.name}: y_{pool} holds the label {y.max()}, but classes = {self.classes}"
                )
            object.__setattr__(self, f"x_{pool}", x)
            object.__setattr__(self, f"y_{pool}", y)
            group = getattr(self, f"group_{pool}")
            if group is not None:
                checked = labels(group, len(x), f"{self.name}: group_{pool}")
                object.__setattr__(self, f"group_{pool}", checked)
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise InputError(
                f"{self.name}: x_train is {self.x_train.shape[1:]} {self.x_train.dtype}, "
                f"x_test is {self.x_test.shape[1:]} {self.x_test.dtype}"
            )
        if self.classes < 2:
            raise InputError(f"{self.name}: {self.classes} class, there is nothing to tell apart")
        if (self.group_train is None) != (self.group_test is None):
            raise InputError(f"{self.name}: groups are needed for both the training and the test points")
        kinds, group = self.group_distribution, self.group_train
        if kinds is not None and (group is None or len(kinds) <= group.max()):
            raise InputError(f"{self.name}: group_distribution must name a distribution for every group")


def held_out(strata: NDArray[np.int64], share: float, *path: str) -> NDArray[np.bool_]:
    """Marks the test points of a set that has no official split: the same ones in every run.

    Args:
        strata: Class or group of each point; each gives its part, exact to one point.
        share: Share of all points that is held out.
        path: Names the random stream, so that each data set has its own.
    """
    values, inverse = np.unique(strata, return_inverse=True)
    counts = apportion([round(share * len(strata))], [np.bincount(inverse)])[0]
    shuffled = stream(SPLIT_SEED, "split", *path).permutation(len(strata))
    by_stratum = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    starts = np.searchsorted(inverse[by_stratum], np.arange(len(values)))
    test = np.zeros(len(strata), dtype=np.bool_)
    for start, count in zip(starts, counts, strict=True):
        test[by_stratum[start : start + count]] = True
    return test
