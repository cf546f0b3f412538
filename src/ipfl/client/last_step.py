"""The last step at a client: what it makes of the network that its method gives it, after `personalize`.

It belongs to no method, so that methods can be compared with or without it (`[adapt]`). The network is
trained further on the client's own points, some of the way (`auto`) or so many epochs, and what its labels
say before it looks at a point goes into the biases of its outputs (`label_prior`).

How far the way is does not go by scores: points that many rounds have trained on speak for the models as they
are, and a dozen others say little. It goes by how few of the classes the client has, see `fine_tuned_share`.

Labels as a prior: a client that has class c three times as often as others should say c more readily. To the
logits of a model that was trained where all C classes are as frequent belongs log(C·p_c), with the client's
own shares p (Bayes' rule). It takes no training, and forgets nothing.

The shares are not known, only n labels are, and of 160 labels of 52 classes most differences are chance. So
the shares are p_c = (n_c + α/C) / (n + α), the posterior mean under a Dirichlet distribution of concentration
α, and α is what the client's labels show (method of moments): with Q = Σ_c (n_c/n − 1/C)² in units of what
equal shares would give, (1 − 1/C)/n,

    E Q = (n + α) / (1 + α),    so that    α = (n − Q) / (Q − 1).

Two standard deviations that Q has by chance, √(2/(C − 1)) each, are taken off it first: shares that may as
well be equal count as equal.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.client.own_points import OwnPoints
from ipfl.config.train_section import AdaptConfig
from ipfl.core import Method, Record, Vector
from ipfl.core.vectors import mix
from ipfl.errors import InputError
from ipfl.training.sgd import Predictor

GENTLE, LESS_GENTLE = 0.2, 0.5
"""Share of the learning rate under `auto`: the first steps of a full one undo much of what rounds learned.
The second for clients that go all of the way: they have nothing to keep."""

AUTO_EPOCHS, LONG_EPOCHS, LONG_FROM = 5, 20, 0.5
"""Epochs under `auto`; more for clients that go more than half of the way: they keep little of what others
have learned about their other classes, and gain by training on."""

MIN_SHARE, SHARE_PER_MISSING, ALMOST_ALL = 0.25, 1.25, 0.9
"""How much of the way to its fine-tuned copy a network goes: a quarter at least, and all of it from nine
tenths on, which is where some three quarters of the classes are missing. The mean of both keeps most of what
many clients have learned."""

SHARE_WITHOUT_CLASSES = 0.5
"""The same where numbers or labels are predicted, of which no such count can be made."""

COUNTED_POINTS = 128
"""Points of each part whose labels say how far to go."""

PASSES_PER_EPOCH = 3
"""Forward passes that an epoch of training takes as long as."""

CHANCE = 2.0
"""Standard deviations by which labels must be less even than by chance before they count."""
MIN_CONCENTRATION = 0.05
"""α for each class, at least: a class that a client has never seen is rare, not impossible."""


@dataclass(frozen=True)
class Personalized:
    """What a client predicts with, and what its last step took."""

    predictor: Predictor
    passes: int = 0
    """Forward passes over the points that it was trained on."""
    seconds: float = 0.0


def personalized(
    method: Method[Any],
    adapt: AdaptConfig,
    offer: Record,
    mine: Record,
    me: Client,
    *,
    is_member: bool = True,
) -> Personalized:
    """What a client predicts with: what its method gives it, and the last step if it takes one.

    Args:
        method: Whose `personalize`.
        adapt: What the last step is.
        offer: What the server offers.
        mine: What the client remembers.
        me: The client.
        is_member: Whether the federation has met it.
    """
    given: Predictor = method.personalize(offer, mine, me)
    if not (adapt.is_on and (is_member or adapt.newcomers)):
        return Personalized(given)
    if not isinstance(given, np.ndarray):
        raise InputError(f"[adapt] needs one network, and {method.name} gives a {type(given).__name__}")
    begun = time.perf_counter()
    model, passes = take_last_step(given, adapt, me)
    return Personalized(model, passes, time.perf_counter() - begun)


def take_last_step(start: Vector, adapt: AdaptConfig, me: Client) -> tuple[Vector, int]:
    """The network after the last step, and the passes that this took."""
    lr = me.settings.lr if adapt.lr is None else adapt.lr
    if adapt.epochs == "auto":
        points = OwnPoints.of(me, COUNTED_POINTS)
        model, passes = fine_tune_some_of_the_way(start, points, lr, me)
        return (_with_rest_of_prior(model, points, me) if adapt.label_prior else model), passes
    if adapt.epochs:
        end = me.train(start, epochs=adapt.epochs, lr=lr)
        return (end if np.isfinite(end).all() else start), PASSES_PER_EPOCH * adapt.epochs
    return with_label_prior(start, OwnPoints.of(me, COUNTED_POINTS), 1.0, me), 0


def fine_tune_some_of_the_way(start: Vector, points: OwnPoints, lr: float, me: Client) -> tuple[Vector, int]:
    """The network trained further, as much of the way as `fine_tuned_share` says, and the passes.

    Not where `goal` is something else than the points to train on. Those that were held back are trained on
    too if `train.use_probe` says so: where it does not, others decide by them (`clients.leave`, `patience`).
    """
    if not len(points.trained):
        return start, 0
    is_released = me.settings.use_probe and len(points.held_back) > 0
    everything = me.data("train").joined(me.data("goal")) if is_released else None
    share = fine_tuned_share(points.labels, me.classes) if me.predicts_classes else SHARE_WITHOUT_CLASSES
    epochs = LONG_EPOCHS if share > LONG_FROM else AUTO_EPOCHS
    rate = GENTLE if share < 1 else LESS_GENTLE
    end = me.train(start, epochs=epochs, lr=rate * lr, on=everything)
    if not np.isfinite(end).all():  # a training that diverged
        return start, PASSES_PER_EPOCH * epochs
    return mix([start, end], [1 - share, share]), PASSES_PER_EPOCH * epochs


def _with_rest_of_prior(model: Vector, points: OwnPoints, me: Client) -> Vector:
    """A network that was fine-tuned some of the way: that part of the way has learned the prior already."""
    if not (me.predicts_classes and len(points.trained)):
        return model
    return with_label_prior(model, points, 1 - fine_tuned_share(points.labels, me.classes), me)


def with_label_prior(model: Vector, points: OwnPoints, share: float, me: Client) -> Vector:
    """A network that also reckons with how often the client has each class (`prior_logits`).

    Nothing is added where `goal` is something else than `train`, or if the network's outputs have no biases.

    Args:
        model: The network.
        points: The client's.
        share: How much of it is added.
        me: The client.
    """
    place = me.network.output_bias
    has_biases = place is not None and place.stop - place.start == me.classes
    if not (has_biases and me.predicts_classes and len(points.trained)):
        return model
    labels = np.concatenate([me.data("train").y, points.held_back.y])
    corrected = np.array(model, dtype=np.float32)
    corrected[place] += (share * prior_logits(labels, me.classes)).astype(np.float32)
    return corrected


def fine_tuned_share(labels: NDArray[np.int64], classes: int) -> float:
    """How much of the way a client goes that has points of these classes.

    Who has few of the classes can forget the others, which the model must tell apart; who has all of them
    gains little by training alone. r = exp(H) / classes is the share of the classes that the client
    has, with the entropy H of its labels (and the correction of Miller and Madow: n points show too few of
    them); the share is 1.25·(1 − r), at least a quarter, and all from nine tenths on.
    """
    counts = np.bincount(labels)
    shares = counts[counts > 0] / len(labels)
    entropy = float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * len(labels))
    has = min(1.0, math.exp(entropy) / classes)
    share = max(MIN_SHARE, SHARE_PER_MISSING * (1 - has))
    return 1.0 if share >= ALMOST_ALL else share


def prior_logits(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """(C,) log(C·p_c) of a client with these labels; zeros if they may as well be of equal shares."""
    n = len(labels)
    if n == 0 or classes < 2:
        return np.zeros(classes)
    counts = np.bincount(labels, minlength=classes)
    uneven = float(np.square(counts / n - 1 / classes).sum()) / ((1 - 1 / classes) / n)
    uneven -= CHANCE * math.sqrt(2 / (classes - 1))
    if uneven <= 1:
        return np.zeros(classes)
    concentration = max((n - uneven) / (uneven - 1), MIN_CONCENTRATION * classes)
    shares = (counts + concentration / classes) / (n + concentration)
    return np.asarray(np.log(classes * shares), np.float64)
