"""A client's points by what they say of a model: those that it was trained on, and those that it was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.data.federated import Samples


@dataclass(frozen=True)
class OwnPoints:
    """The client's points that say how good a model is for it, in the order in which they are scored."""

    held_back: Samples
    """Of `goal`, those that are not in `train` as well."""
    trained: Samples
    """The first points of `train`, if they are like those of `goal`."""

    @classmethod
    def of(cls, me: Client, limit: int) -> OwnPoints:
        """At most `limit` points of each kind.

        `train` is like `goal` if the client wants to be good at what it has (`goal` is `probe`), has only
        one set of points for everything, or trains on `goal` as well. Otherwise only `goal` counts.
        """
        goal, train = me.data("goal", limit), me.data("train", limit)
        if _ends_with(me.data("train"), me.data("goal")):
            return cls(goal[:0], train)
        is_like = _is_same(me.data("goal"), me.data("probe"))
        return cls(goal, train if is_like else train[:0])

    @property
    def labels(self) -> NDArray[np.int64]:
        """True classes of all points."""
        return np.concatenate([self.held_back.y, self.trained.y])


def _ends_with(train: Samples, goal: Samples) -> bool:
    """Whether the last points to train on are all of `goal`; those that methods join are there."""
    if train is goal:
        return True
    return 0 < len(goal) <= len(train) and _is_same(train[len(train) - len(goal) :], goal)


def _is_same(one: Samples, other: Samples) -> bool:
    """Whether two parts hold the same points in the same order."""
    if one is other:
        return True
    same_labels = np.array_equal(one.y, other.y)
    return same_labels and one.x.shape == other.x.shape and np.array_equal(one.x, other.x)
