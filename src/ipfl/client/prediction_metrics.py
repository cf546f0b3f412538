"""Metrics of predictions that a run reports beside its score (`evaluate.metrics`), client by client.

A metric that cannot be computed on a client's test points, such as the AUROC of one class, is None there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TargetKind
from ipfl.core.arrays import Floats
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError, unknown
from ipfl.system.plugins import load_callable


@dataclass(frozen=True)
class Predictions:
    """What a model predicts of some points, and what is true of them."""

    target: Target
    outputs: Floats
    """(n, outputs): log-probabilities of classes, log-odds of labels, or standardised numbers."""
    truth: NDArray[Any]
    """Targets as the data has them."""

    @property
    def predicted(self) -> NDArray[Any]:
        """Classes (n,), labels of 0 and 1 (n, labels), or numbers in the units and the shape of the truth."""
        if self.target.kind == "classes":
            return np.asarray(self.outputs.argmax(axis=1))
        if self.target.kind == "multilabel":
            return (self.outputs > 0).astype(np.int64)
        return self.target.decode(self.outputs).reshape(self.truth.shape)

    @property
    def columns(self) -> list[tuple[Floats, NDArray[np.bool_]]]:
        """Of every class or label: its scores, and which points have it."""
        labels = range(self.outputs.shape[1])
        if self.target.kind == "classes":
            return [(self.outputs[:, label], self.truth == label) for label in labels]
        return [(self.outputs[:, label], self.truth[:, label] > 0.5) for label in labels]


def accuracy(given: Predictions) -> float:
    """Share of points, or of single labels, that are right."""
    return float((given.predicted == given.truth).mean())


def balanced_accuracy(given: Predictions) -> float:
    """Mean over the classes that occur of the share of their points that are right."""
    is_right = given.predicted == given.truth
    return float(np.mean([is_right[given.truth == label].mean() for label in np.unique(given.truth)]))


def macro_f1(given: Predictions) -> float | None:
    """Mean F1 = 2·tp/(2·tp + fp + fn) over the classes or labels that are true or predicted anywhere."""
    predicted = given.predicted
    found = []
    for label, (_, is_true) in enumerate(given.columns):
        chosen = predicted == label if given.target.kind == "classes" else predicted[:, label] > 0
        if chosen.any() or is_true.any():
            found.append(2 * float((chosen & is_true).sum()) / float(chosen.sum() + is_true.sum()))
    return float(np.mean(found)) if found else None


def auroc(given: Predictions) -> float | None:
    """Probability that a point of a class gets a higher score for it than one of another class.

    Mean over the classes, or labels, that some points have and others have not. Ties count half.
    """
    from scipy.stats import rankdata  # scipy takes 0.2 s to import

    found = []
    for scores, is_true in given.columns:
        positive, negative = int(is_true.sum()), int((~is_true).sum())
        if positive and negative:
            ranks = rankdata(scores)[is_true].sum()
            found.append((ranks - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(found)) if found else None


def log_loss(given: Predictions) -> float:
    """Mean cross entropy of the points, or mean binary cross entropy of their labels."""
    if given.target.kind == "classes":
        return -float(np.take_along_axis(given.outputs, given.truth[:, None], axis=1).mean())
    # −log σ(z) = log(1 + exp(−z)) where a label is 1, log(1 + exp(z)) where it is 0
    signed = np.where(given.truth > 0.5, -given.outputs, given.outputs)
    return float(np.logaddexp(0.0, signed).mean())


def mae(given: Predictions) -> float:
    """Mean absolute error, in the units of the data."""
    return float(np.abs(given.predicted - given.truth).mean())


def r2(given: Predictions) -> float | None:
    """R² = 1 − Σ errors² / Σ deviations²; mean over the outputs that are not constant, None if all are."""
    truth = given.truth.reshape(len(given.truth), -1).astype(np.float64)
    errors = ((given.predicted.reshape(truth.shape) - truth) ** 2).sum(axis=0)
    spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - errors[spread > 0] / spread[spread > 0]).mean()) if (spread > 0).any() else None


Metric = Callable[[Predictions], float | None]
_LABELS: tuple[TargetKind, ...] = ("classes", "multilabel")
METRICS: dict[str, tuple[tuple[TargetKind, ...], Metric]] = {
    "accuracy": (_LABELS, accuracy),
    "balanced_accuracy": (("classes",), balanced_accuracy),
    "macro_f1": (_LABELS, macro_f1),
    "auroc": (_LABELS, auroc),
    "log_loss": (_LABELS, log_loss),
    "mae": (("regression",), mae),
    "r2": (("regression",), r2),
}
"""Name → the kinds of targets that it is for, and the metric."""
USUAL_METRICS: dict[TargetKind, tuple[str, ...]] = {
    "classes": (),
    "multilabel": ("macro_f1",),
    "regression": ("mae", "r2"),
}
"""What is reported where `evaluate.metrics` says nothing; for classes, accuracy is reported anyway."""


def choose_metrics(names: Sequence[str] | None, target: Target) -> tuple[str, ...]:
    """The metrics to report.

    Raises:
        InputError: One is unknown, or not for this kind of target.
    """
    if names is None:
        return USUAL_METRICS[target.kind]
    for name in names:
        find_metric(name)
        if name in METRICS and target.kind not in METRICS[name][0]:
            fitting = ", ".join(known for known, (kinds, _) in METRICS.items() if target.kind in kinds)
            raise InputError(
                f"evaluate.metrics: {name!r} is not for the target {target.kind!r}; use {fitting}"
            )
    return tuple(names)


@cache
def find_metric(name: str) -> Metric:
    """A metric by its name, or a user's own `module:callable` (truth, predicted) → number.

    Raises:
        InputError: There is none.
    """
    if name in METRICS:
        return METRICS[name][1]
    if ":" not in name:
        raise unknown("metric", name, [*METRICS, "module:callable"])
    own = load_callable(name, "metric")

    def call(given: Predictions) -> float | None:
        try:
            return float(own(given.truth, given.predicted))
        except Exception as error:  # the user's code may raise anything
            reason = " ".join(str(error).split())
            raise InputError(f"metric {name!r} failed: {reason}") from error

    return call


def measure_predictions(names: Sequence[str], given: Predictions) -> list[float | None]:
    """Every metric of some predictions; None where it is not defined, or not finite."""
    if not len(given.truth):
        return [None] * len(names)
    with np.errstate(all="ignore"):
        values = [find_metric(name)(given) for name in names]
    return [value if value is not None and math.isfinite(value) else None for value in values]
