"""A model for a client that a run has never met: the method's `personalize`, on the offer for newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.client.last_step import personalized
from ipfl.config.train_section import AdaptConfig, TrainConfig
from ipfl.core import EMPTY, Method, Record, Vector
from ipfl.data.dataset import check_features, check_targets
from ipfl.data.federated import Parts, Samples
from ipfl.data.own.table_encoding import number_texts
from ipfl.data.target_kinds import count_outputs
from ipfl.errors import InputError
from ipfl.training.network import Network
from ipfl.training.predictors import Predictor
from ipfl.training.sgd import one_thread


@dataclass(frozen=True)
class Newcomers:
    """What is needed to serve clients that come later."""

    method: Method[Any]
    offer: Record
    """What the server sends them."""
    network: Network
    initial: Vector
    """The parameters that everyone can make from the run's seed."""
    classes: int
    train: TrainConfig
    seed: int
    rounds: int
    """That were played."""
    adapt: AdaptConfig
    """The last step at the clients."""
    class_names: Sequence[str] = ()
    """Of the run's labels, if they are texts."""

    def samples(self, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        """Somebody's points, checked.

        Raises:
            InputError: They do not fit the run.
        """
        shape = self.network.input_shape
        if x.shape[1:] != shape and (*x.shape[1:], 1) == shape:
            x = x[..., None]  # grey images may come without a channel axis
        has_classes = self.network.target.kind == "classes"
        fits = y.shape[:1] == x.shape[:1] and (y.ndim == 1 or not has_classes)
        if not x.ndim or x.shape[1:] != shape or not fits or not y.size:
            raise InputError(
                f"expected points of shape {shape} with a label each, not x {x.shape}, y {y.shape}"
            )
        if y.dtype.kind == "U" and self.class_names:
            y, _ = number_texts(y.tolist(), self.class_names, "y")
        points = check_features(x, "x")
        classed = check_targets(y, len(x), self.network.target.kind, "y")
        if not has_classes and count_outputs(classed) != self.classes:
            raise InputError(
                f"expected {self.classes} values to predict per point, not {count_outputs(classed)}"
            )
        if has_classes and classed.max() >= self.classes:
            raise InputError(f"labels must be from 0 to {self.classes - 1}, not {y.min()} to {y.max()}")
        return Samples(points, classed)

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """The model for a client whose goal is to be good at points like these."""
        goal = self.samples(x, y)
        me = Client(
            id=0,
            round=self.rounds,
            action="personalize",
            seed=self.seed,
            classes=self.classes,
            parts=Parts(goal, goal, goal, goal),
            network=self.network,
            settings=self.train.at_round(self.rounds),
            initial=self.initial,
        )
        try:
            with one_thread():
                return personalized(self.method, self.adapt, self.offer, EMPTY, me, is_member=False).predictor
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = " ".join(repr(error).split())
            raise InputError(f"the run's offer to newcomers does not fit its method: {reason}") from error
