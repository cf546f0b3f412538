"""The client at deployment: choose a mix of the cluster models, and train it further for itself.

The mix is chosen on the client's own points, see `OwnPoints`. How far it is trained is not: points that many
rounds have trained on speak for the models as they are, and a dozen others say little. It goes by how few of
the classes the client has, see `fine_tuned_share`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.core import Vector
from ipfl.core.vectors import mix
from ipfl.data.federated import Samples
from ipfl.market.market_arrays import Floats
from ipfl.methods.ipfl_plus.label_prior import prior_logits
from ipfl.methods.ipfl_plus.mixing import calibrated_hits, candidate_weights, choose_on_evidence, optimism

GENTLE, LESS_GENTLE = 0.2, 0.5
"""Share of `train.lr` with which a mix is fine-tuned: the first steps of a full one undo much of it. The
second for clients that go all of the way: they have nothing to keep."""

AUTO_EPOCHS, LONG_EPOCHS, LONG_FROM = 5, 20, 0.5
"""Epochs of fine-tuning under `adapt = "auto"`; more for clients that go more than half of the way: they keep
little of what others have learned about their other classes, and gain by training on."""

MIN_SHARE, SHARE_PER_MISSING, ALMOST_ALL = 0.25, 1.25, 0.9
"""How much of the way to its fine-tuned copy a mix goes: a quarter at least, and all of it from nine tenths
on, which is where some three quarters of the classes are missing. The mean of both models keeps most of what
many clients have learned."""

SHARE_WITHOUT_CLASSES = 0.5
"""The same where numbers or labels are predicted, of which no such count can be made."""


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


def fine_tune(
    start: Vector, me: Client, epochs: int, on: Samples | None = None, rate: float = GENTLE
) -> Vector:
    """Trains a mix on the client's `train` part, or on some points of it, in steps of this share of `lr`."""
    return me.train(start, epochs=epochs, lr=rate * me.settings.lr, on=on)


def fine_tune_some_of_the_way(start: Vector, points: OwnPoints, me: Client) -> Vector:
    """The mix trained further, as much of the way as `fine_tuned_share` says.

    Not where `goal` is something else than the points to train on. Those that were held back are trained on
    too if `train.use_probe` says so: where it does not, others decide by them (`clients.leave`, `patience`).
    """
    if not len(points.trained):
        return start
    is_released = me.settings.use_probe and len(points.held_back) > 0
    everything = me.data("train").joined(me.data("goal")) if is_released else None
    share = fine_tuned_share(points.labels, me.classes) if me.predicts_classes else SHARE_WITHOUT_CLASSES
    epochs = LONG_EPOCHS if share > LONG_FROM else AUTO_EPOCHS
    end = fine_tune(start, me, epochs, everything, GENTLE if share < 1 else LESS_GENTLE)
    if not np.isfinite(end).all():  # a training that diverged
        return start
    return mix([start, end], [1 - share, share])


def with_label_prior(model: Vector, points: OwnPoints, me: Client) -> Vector:
    """A fine-tuned mix that also reckons with how often the client has each class (`prior_logits`).

    The part of the way that was fine-tuned has learned it already, so only the rest of it is added. Nothing
    is where `goal` is something else than `train`, or if the network's outputs have no biases.
    """
    place = me.network.output_bias
    has_biases = place is not None and place.stop - place.start == me.classes
    if not (has_biases and me.predicts_classes and len(points.trained)):
        return model
    rest = 1 - fine_tuned_share(points.labels, me.classes)
    labels = np.concatenate([me.data("train").y, points.held_back.y])
    corrected = np.array(model, dtype=np.float32)
    corrected[place] += (rest * prior_logits(labels, me.classes)).astype(np.float32)
    return corrected


def fine_tuned_share(labels: NDArray[np.int64], classes: int) -> float:
    """How much of the way a client goes that has points of these classes.

    Who has few of the classes can forget the others, which cluster models must tell apart; who has all of
    them gains little by training alone. r = exp(H) / classes is the share of the classes that the client
    has, with the entropy H of its labels (and the correction of Miller and Madow: n points show too few of
    them); the share is 1.25·(1 − r), at least a quarter, and all from nine tenths on.
    """
    counts = np.bincount(labels)
    shares = counts[counts > 0] / len(labels)
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * len(labels))
    has = min(1.0, math.exp(entropy) / classes)
    share = max(MIN_SHARE, SHARE_PER_MISSING * (1 - has))
    return 1.0 if share >= ALMOST_ALL else share


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


def _is_same(one: Samples, other: Samples) -> bool:
    """Whether two parts hold the same points in the same order."""
    if one is other:
        return True
    same_labels = np.array_equal(one.y, other.y)
    return same_labels and one.x.shape == other.x.shape and np.array_equal(one.x, other.x)


def _take(samples: Samples, chosen: slice | NDArray[np.intp]) -> Samples:
    return Samples(samples.x[chosen], samples.y[chosen])
