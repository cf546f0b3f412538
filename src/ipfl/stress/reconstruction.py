"""What a curious server learns from one gradient of a linear model: the labels, and points themselves.

The server chooses the model that it asks about. With all parameters zero every class has probability 1/C, and
the mean gradient over n points x_i with labels y_i is, for class c,

    bias_c = 1/C − n_c/n                 weights_c = x̄/C − 1/n Σ_{y_i = c} x_i

with n_c the number of points of the class. So n_c = n·(1/C − bias_c), exactly; a class without points shows
x̄/C; and a class with a single point shows that point. Clipping multiplies by a factor, which a class without
points reveals again (its bias_c is 1/C): only noise helps.
"""

from __future__ import annotations

import numpy as np

from ipfl.core import Vector
from ipfl.core.arrays import Floats
from ipfl.training.network import Network


def _layers(gradient: Vector, network: Network) -> tuple[Floats, Floats]:
    """Weights (C, features) and biases (C,) of a linear model's gradient."""
    weights, biases = (part.double().numpy() for part in network.state_dict(gradient).values())
    return weights, biases


def _scale(biases: Floats) -> float:
    """What clipping divided by, if some class has no points."""
    largest = float(biases.max())
    return 1 / (len(biases) * largest) if largest > 0 else 1.0


def guess_label_counts(gradient: Vector, network: Network, points: int) -> Floats:
    """(C,): how many points of each class there are, from the gradient of a linear model of zeros."""
    _, biases = _layers(gradient, network)
    counts = np.maximum(points * (1 / len(biases) - _scale(biases) * biases), 0)
    return np.asarray(counts * points / max(float(counts.sum()), np.finfo(float).tiny))


def guess_point(gradient: Vector, network: Network, label: int, points: int) -> Floats:
    """The only point of a class, flat, from the same gradient."""
    weights, biases = _layers(gradient, network)
    absent = int(biases.argmax())
    return np.asarray(points * _scale(biases) * (weights[absent] - weights[label]))


def count_misplaced(guessed: Floats, true: Floats) -> float:
    """How many points a guess of the label counts puts into the wrong class."""
    return float(np.abs(guessed - true).sum() / 2)


def correlation(guessed: Floats, true: Floats) -> float:
    """Pearson's correlation of a guessed point and the true one; 0 if one of them is constant."""
    if not guessed.std() or not true.std():
        return 0.0
    return float(np.corrcoef(guessed, true)[0, 1])
