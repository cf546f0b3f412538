"""The client at deployment: choose a mix of the cluster models, and train it further if that helps.

Three kinds of points tell how good a model is, see `OwnPoints`. A model that was trained on a point is scored
there by another one that was not (cross-fitting), so that `train` gives evidence too: four points for every
one that was held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.core import Vector
from ipfl.core.vectors import mix
from ipfl.data.federated import Samples
from ipfl.methods.ipfl.arrays import Floats
from ipfl.methods.ipfl.mixing import calibrated_hits, candidate_weights, choose_on_evidence

FOLDS = 2
"""Parts of `train` that are left out of a training in turn."""

AUTO_EPOCHS = 5
"""Epochs of fine-tuning under `adapt = "auto"`."""

SHARES = (0.5, 1.0)
"""How much of the way from a mix to its fine-tuned copy is offered: half of it does less harm."""

GENTLE = 0.2
"""Share of `train.lr` with which a mix is fine-tuned: the first steps of a full one undo much of it."""


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

        `train` is like `goal` if the client wants to be good at what it has (`goal` is `probe`), or has only
        one set of points for everything. Otherwise only `goal` counts.
        """
        goal, train = me.data("goal", limit), me.data("train", limit)
        if _is_same(me.data("goal"), me.data("train")):
            return cls(_take(goal, slice(0, 0)), train)
        is_like = _is_same(me.data("goal"), me.data("probe"))
        return cls(goal, train if is_like else _take(train, slice(0, 0)))

    @property
    def labels(self) -> NDArray[np.int64]:
        """True classes of all points."""
        return np.concatenate([self.held_back.y, self.trained.y])


def mix_on_evidence(models: Sequence[Vector], importance: Floats, points: OwnPoints, me: Client) -> Vector:
    """The paper's mix Σ_k υ_ik ω_k, unless the client's points are evidence for another one."""
    candidates = [mix(models, weights) for weights in candidate_weights(importance)]
    scores = [point_scores(_logs(candidate, points, me), points.labels, me) for candidate in candidates]
    return candidates[choose_on_evidence(scores)]


def fine_tune(start: Vector, me: Client, epochs: int, on: Samples | None = None) -> Vector:
    """Trains a mix on the client's `train` part, or on some points of it, in small steps."""
    return me.train(start, epochs=epochs, lr=GENTLE * me.settings.lr, on=on)


def fine_tune_on_evidence(start: Vector, points: OwnPoints, me: Client) -> Vector:
    """The mix trained further, or only part of the way; or as it was, unless that is better on the points.

    The trained model is scored on the points that were held back; on each fold of the others, a model that
    was trained without that fold. Once it is decided to train, those that were held back are trained on too.
    """
    train, folds = me.data("train"), np.arange(len(points.trained)) % FOLDS
    tuned = _on_the_way(start, fine_tune(start, me, AUTO_EPOCHS))
    columns = me.classes if me.predicts_classes else 1
    on_trained = np.empty((len(tuned), len(points.trained), columns))
    for fold in range(FOLDS):
        left_out = np.flatnonzero(folds == fold)
        others = _take(train, np.delete(np.arange(len(train)), left_out))
        without = _on_the_way(start, fine_tune(start, me, AUTO_EPOCHS, on=others))
        for logs, model in zip(on_trained, without, strict=True):
            logs[left_out] = me.log_scores(model, _take(points.trained, left_out))
    tables = [_logs(start, points, me)]
    for logs, model in zip(on_trained, tuned, strict=True):
        tables.append(np.concatenate([me.log_scores(model, points.held_back), logs]))
    chosen = choose_on_evidence([point_scores(table, points.labels, me) for table in tables])
    if not chosen:
        return start
    if not (len(points.held_back) and len(points.trained)):
        return tuned[chosen - 1]
    everything = train.joined(me.data("goal"))
    return _on_the_way(start, fine_tune(start, me, AUTO_EPOCHS, on=everything))[chosen - 1]


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


def _on_the_way(start: Vector, end: Vector) -> list[Vector]:
    """The model at each of `SHARES` of the way that training went."""
    return [mix([start, end], [1 - share, share]) for share in SHARES]


def _logs(model: Vector, points: OwnPoints, me: Client) -> NDArray[np.float64]:
    """(n, classes) or (n, 1): what `Client.log_scores` says of all points under one model."""
    parts = [me.log_scores(model, samples) for samples in (points.held_back, points.trained)]
    return np.concatenate(parts)


def _is_same(one: Samples, other: Samples) -> bool:
    """Whether two parts hold the same points in the same order."""
    if one is other:
        return True
    same_labels = np.array_equal(one.y, other.y)
    return same_labels and one.x.shape == other.x.shape and np.array_equal(one.x, other.x)


def _take(samples: Samples, chosen: slice | NDArray[np.intp]) -> Samples:
    return Samples(samples.x[chosen], samples.y[chosen])
