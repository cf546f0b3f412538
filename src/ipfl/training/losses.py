"""Losses and scores of a model's outputs, for every kind of target (`ipfl.data.target_kinds`).

Two losses are kept apart. The loss that is trained on is what `train.loss` says: it makes gradients. The loss
that scores come from is always the target's own, so that preferences, contributions and evaluations mean the
same whatever a model is trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    log_softmax,
    mse_loss,
)

from ipfl.config.task_section import TargetKind
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError
from ipfl.system.plugins import load_callable

PointLosses = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → (n,): the loss of every point."""


def _classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def _labels(outputs: Tensor, targets: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, targets, reduction="none").mean(dim=1)


def _distances(outputs: Tensor, targets: Tensor) -> Tensor:
    return l1_loss(outputs, targets, reduction="none").mean(dim=1)


def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return huber_loss(outputs, targets, reduction="none").mean(dim=1)


OWN_LOSS: dict[TargetKind, str] = {
    "classes": "cross_entropy",
    "multilabel": "binary_cross_entropy",
    "regression": "mse",
}
"""The loss of each kind of target that its scores come from, and that `train.loss = "auto"` trains on."""

LOSSES: dict[str, tuple[TargetKind, PointLosses]] = {
    "cross_entropy": ("classes", _classes),
    "binary_cross_entropy": ("multilabel", _labels),
    "mse": ("regression", _squares),
    "mae": ("regression", _distances),
    "huber": ("regression", _huber),
}
"""Name → the kind of target that it is for, and the loss of every point."""


@dataclass(frozen=True)
class Loss:
    """What a network is trained on."""

    name: str
    per_point: PointLosses

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch."""
        if self.name == "cross_entropy":  # in one operation, and to the same bits as ever
            return cross_entropy(outputs, targets)
        return self.per_point(outputs, targets).mean()


def find_loss(name: str, target: Target) -> Loss:
    """The loss that `train.loss` names, for one kind of target.

    Raises:
        InputError: It is for another kind of target, or cannot be imported.
    """
    name = OWN_LOSS[target.kind] if name == "auto" else name
    if ":" in name:
        return Loss(name, _checked(load_callable(name, "loss"), name))
    kind, per_point = LOSSES[name]
    if kind != target.kind:
        fitting = [known for known, (its_kind, _) in LOSSES.items() if its_kind == target.kind]
        raise InputError(
            f"train.loss = {name!r} is for {kind}, but {target.kind} is predicted: use {' or '.join(fitting)}"
        )
    return Loss(name, per_point)


def _checked(own: Callable[[Tensor, Tensor], Tensor], name: str) -> PointLosses:
    """A user's own loss, which must give a number per point."""

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        found = own(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != (len(targets),):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"train.loss {name!r} returned {got} for {len(targets)} points, not a loss for each"
            )
        return found

    return losses


def own_losses(target: Target, outputs: Tensor, targets: Tensor) -> Tensor:
    """(n,): the loss of every point that its score comes from."""
    return LOSSES[OWN_LOSS[target.kind]][1](outputs, targets)


def hard_scores(target: Target, outputs: Tensor, targets: Tensor) -> Tensor:
    """(n,): hard score of every point, in [0, 1]; see `ipfl.data.target_kinds`."""
    if target.kind == "classes":
        return (outputs.argmax(1) == targets).double()
    if target.kind == "multilabel":
        return ((outputs > 0) == (targets > 0.5)).double().mean(dim=1)
    return soft_scores(own_losses(target, outputs, targets))


def soft_scores(losses: Tensor) -> Tensor:
    """(n,): exp(−ℓ); 0 where a model gives no number."""
    return (-losses.double()).exp().nan_to_num(nan=0.0, posinf=0.0)


def mix_outputs(target: Target, outputs: list[Tensor], weights: Tensor) -> Tensor:
    """Outputs of several models, mixed with weights of sum 1: of probabilities, or of predicted numbers.

    Args:
        target: What is predicted.
        outputs: Of every model, (n, outputs); log-probabilities for classes.
        weights: (models,).
    """
    stacked = torch.stack(outputs)
    if target.kind == "classes":
        return torch.logsumexp(stacked + weights.log()[:, None, None], dim=0)
    if target.kind == "multilabel":
        return torch.logit((stacked.sigmoid() * weights[:, None, None]).sum(dim=0), eps=1e-7)
    return (stacked * weights[:, None, None]).sum(dim=0)


def as_outputs(target: Target, raw: Tensor) -> Tensor:
    """What is made of a module's outputs: log-probabilities for classes, all else as it is."""
    return log_softmax(raw, dim=1) if target.kind == "classes" else raw
