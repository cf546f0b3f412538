"""Targets: one class of several, some labels of several, or numbers; and the score of a prediction.

The score of a point is the one notion of good that all methods, markets and evaluations use, in [0, 1]:

| kind | loss ℓ of a point | soft score | hard score |
|---|---|---|---|
| `classes` | cross entropy | exp(−ℓ), the probability of the true class | 1 if it is predicted, else 0 |
| `multilabel` | mean binary cross entropy of its labels | exp(−ℓ) | share of its labels that are right |
| `regression` | mean squared error, in standard deviations of the targets | exp(−ℓ) | the same |

Sums of scores are called hits. `ipfl.training.losses` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipfl.config.task_section import TargetKind
from ipfl.errors import InputError

TARGET_KINDS: tuple[TargetKind, ...] = get_args(TargetKind)


@dataclass(frozen=True)
class Target:
    """The kind of target, and the number of outputs that a model needs for it."""

    kind: TargetKind
    outputs: int
    """Number of classes, of labels, or of numbers."""
    mean: tuple[float, ...] = ()
    """Of every number in the training data, for regression."""
    scale: tuple[float, ...] = ()
    """Standard deviation of every number in the training data, for regression."""

    @classmethod
    def of_training(cls, kind: TargetKind, outputs: int, y: NDArray[Any]) -> Target:
        """The target of some training data."""
        if kind != "regression":
            return cls(kind, outputs)
        table = y.reshape(len(y), -1).astype(np.float64)
        spread = table.std(axis=0)
        return cls(kind, outputs, tuple(table.mean(axis=0)), tuple(np.where(spread > 0, spread, 1.0)))

    def encode(self, y: NDArray[Any]) -> NDArray[Any]:
        """Targets as a network is trained on them: numbers are standardised, (n, outputs)."""
        if self.kind == "classes":
            return y
        table = y.reshape(len(y), self.outputs).astype(np.float64)
        if self.kind == "regression":
            table = (table - np.asarray(self.mean)) / np.asarray(self.scale)
        return table.astype(np.float32)

    def decode(self, predicted: NDArray[Any]) -> NDArray[np.float64]:
        """Predicted numbers (n, outputs) in the units of the data."""
        return np.asarray(predicted * np.asarray(self.scale) + np.asarray(self.mean), np.float64)

    def wrong_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Wrong targets for all points: the next class, all labels turned, numbers mirrored at their mean."""
        if self.kind == "classes":
            return np.asarray((y + 1) % self.outputs)
        if self.kind == "multilabel":
            return np.asarray(1 - y)
        mirrored = 2 * np.asarray(self.mean) - y.reshape(len(y), -1)
        return np.asarray(mirrored.reshape(y.shape).astype(y.dtype))


def check_number_targets(y: ArrayLike, points: int, kind: TargetKind, name: str) -> NDArray[np.float32]:
    """Checks the targets of regression, (n,) or (n, outputs), or of several labels, (n, labels) of 0 and 1.

    Raises:
        InputError: The targets are something else.
    """
    values = np.asarray(y)
    wanted = (1, 2) if kind == "regression" else (2,)
    if values.ndim not in wanted or values.shape[0] != points or 0 in values.shape:
        form = "(n,) or (n, outputs)" if kind == "regression" else "(n, labels)"
        raise InputError(f"{name} has shape {values.shape}, expected {form} for {points} points")
    if values.dtype.kind not in "buif":
        raise InputError(f"{name} holds {values.dtype}, expected numbers")
    if kind == "multilabel" and not np.isin(values, (0, 1)).all():
        raise InputError(f"{name} holds other values than 0 and 1")
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise InputError(f"{name} holds values that are not finite (NaN or infinity)")
    return numbers


def count_outputs(y: NDArray[Any]) -> int:
    """Numbers or labels per point."""
    return 1 if y.ndim == 1 else int(y.shape[1])
