"""What a client predicts with: one model, a mixture of models, or features with class prototypes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector


@dataclass(frozen=True)
class Mixture:
    """Several models whose predicted probabilities are added up with weights."""

    models: tuple[Vector, ...]
    weights: tuple[float, ...]
    """One per model, not negative, sum 1."""


@dataclass(frozen=True)
class NearestPrototype:
    """A model whose features are compared with one prototype per class; the nearest wins."""

    model: Vector
    prototypes: NDArray[np.float32]
    """(classes, features); a row of NaN for a class that has no prototype, which then is never predicted."""


Predictor = Vector | Mixture | NearestPrototype
