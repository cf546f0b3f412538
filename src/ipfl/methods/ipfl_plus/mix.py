"""Mix: how cluster models become a client's own, and what counts as evidence for another mix.

The paper's mix is P_i = Σ_k υ_ik ω_k. Where data is clearly of one kind it holds too much of the other
models. So here, by default, the mix at hand is υ⁴, and a client takes another one where its own points are
evidence for it. A client has a few dozen of them, so the best of ten candidates is partly the luckiest. Three
things are done about that:

- Candidates are compared point by point, and the one at hand is left only if another is better by some
  standard errors of the paired differences.
- How sure a model is of itself does not count: a mean of networks has smaller outputs than each of them, so
  that its soft hits are too low for its accuracy (see `calibrated_hits`).
- Where all points have been trained on, they speak for the models that were trained on them: the further
  another mix is from the one at hand, the better it must be (see `optimism`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.client.own_points import OwnPoints
from ipfl.core import Vector
from ipfl.core.arrays import Floats
from ipfl.core.vectors import mix
from ipfl.methods.ipfl import row_normalised

SHARPNESS = (8.0, 4.0, 2.0, 1.0, 0.0)
"""Exponents s of υ^s that are tried, sharpest first: 1 is the paper's mix, 0 the plain mean."""

TEMPERATURES = tuple(float(t) for t in np.geomspace(1 / 5, 5, 17))
"""What `calibrated_hits` multiplies the log-probabilities by; the ninth is 1."""

AT_HAND = 4.0
"""Sharpness of the mix that is left only on evidence."""

STANDARD_ERRORS = 0.5
"""By how many standard errors another mix must be better than the one at hand."""

OPTIMISM = 0.1
"""Hits by which a mix must also be better on points that models were trained on, for moving all of the weight
from one model to another; in proportion for less."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Mix:
    """How a client mixes the cluster models."""

    rule: Literal["evidence", "paper"] = Field(
        default="evidence",
        description="evidence: by υ^4, unless its points are evidence for another mix; paper: by υ",
    )

    def personalize(self, models: Sequence[Vector], importance: Floats, me: Client, limit: int) -> Vector:
        """The client's own model, chosen on `limit` of its points of a kind at most."""
        if self.rule == "paper":
            return mix(models, row_normalised(importance))
        points = OwnPoints.of(me, limit)
        # Not where `goal` is something else than the points that clients train on.
        is_trained = me.settings.use_probe and len(points.trained) > 0
        return mix_on_evidence(models, importance, points, me, is_trained=is_trained)


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


def candidate_weights(importance: Floats) -> list[NDArray[np.float64]]:
    """The mixes to choose from: υ^4, the mix at hand, each model alone, and other powers of υ."""
    others = (_sharpened(importance, sharpness) for sharpness in SHARPNESS if sharpness != AT_HAND)
    return [_sharpened(importance, AT_HAND), *_single_models(importance), *others]


def calibrated_hits(log_probabilities: Floats, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Soft hits of a model that is exactly as sure of itself as its accuracy allows.

    The log-probabilities are multiplied by one number, which changes no prediction: the one of `TEMPERATURES`
    that makes the labels most likely.

    Args:
        log_probabilities: (n, classes) of every point.
        labels: (n,) true classes.

    Returns:
        (n,) probability of the true class; 0 where a model gives no number.
    """
    if not len(labels):
        return np.empty(0)
    finite = np.asarray(np.isfinite(log_probabilities).all(axis=1))
    logs = np.where(finite[:, None], log_probabilities, 0.0)
    own = np.arange(len(labels)), labels
    scaled = [_normalised(temperature * logs)[own] for temperature in TEMPERATURES]
    likelihood = [logs_of_labels[finite].sum() for logs_of_labels in scaled]
    return np.where(finite, np.exp(scaled[int(np.argmax(likelihood))]), 0.0)


def evidence(differences: Floats) -> float:
    """How much better than the one at hand a candidate is for sure, from paired differences of their scores.

    The mean difference, less `STANDARD_ERRORS` of its errors. One point or none is no evidence.
    """
    n = len(differences)
    if n < 2:
        return -math.inf
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    return float(differences.mean()) - STANDARD_ERRORS * error


def choose_on_evidence(scores: Sequence[Floats], ask_for: Sequence[float] | None = None) -> int:
    """The candidate with the most evidence against the first, the one at hand; 0 if there is none for any.

    Args:
        scores: Per candidate the score of every point, the same points for all; larger is better.
        ask_for: By how much each must be better beside that; None: nothing.
    """
    gains = np.array([evidence(other - scores[0]) for other in scores])
    if ask_for is not None:
        gains -= ask_for
    best = int(np.argmax(gains))
    return best if gains[best] > 0 else 0


def optimism(weights: Sequence[Floats]) -> list[float]:
    """How much better than the first each mix looks on points that were trained on, for that reason alone.

    `OPTIMISM` times the weight that is moved from some models to others.
    """
    return [OPTIMISM * float(np.abs(other - weights[0]).sum()) / 2 for other in weights]


def _single_models(importance: Floats) -> list[NDArray[np.float64]]:
    """Each model alone, by υ_ik."""
    return list(np.eye(len(importance))[np.argsort(-importance, kind="stable")])


def _sharpened(importance: Floats, sharpness: float) -> NDArray[np.float64]:
    """υ^s, relative to the largest before, so that no power of small numbers becomes 0."""
    relative = row_normalised(importance)
    return row_normalised((relative / relative.max()) ** sharpness)


def _normalised(logs: Floats) -> NDArray[np.float64]:
    """Logarithms of probabilities that sum to 1, row by row."""
    shifted = logs - logs.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
