"""A model for a client that a run has never met: the method's `personalize`, on the offer for newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.client.last_step import personalized
from ipfl.config.run_config import RunConfig
from ipfl.core import EMPTY, Method, Record, Vector
from ipfl.data.dataset import check_features, check_targets
from ipfl.data.federated import Parts, Samples
from ipfl.data.own.table_encoding import number_texts
from ipfl.data.target_kinds import count_outputs
from ipfl.errors import InputError
from ipfl.training.network import Network
from ipfl.training.sgd import Predictor, one_thread


@dataclass(frozen=True)
class Newcomers:
    """All that it takes to serve clients that come later."""

    method: Method[Any]
    offer: Record
    """The server's record for them."""
    network: Network
    initial: Vector
    """The parameters that everyone can make from the run's seed."""
    config: RunConfig
    rounds: int
    """That were played."""
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
        kind, outputs = self.network.target.kind, self.network.target.outputs
        has_classes = kind == "classes"
        fits = y.shape[:1] == x.shape[:1] and (y.ndim == 1 or not has_classes)
        if not x.ndim or x.shape[1:] != shape or not fits or not y.size:
            raise InputError(
                f"expected points of shape {shape} with a label each, not x {x.shape}, y {y.shape}"
            )
        if y.dtype.kind == "U" and self.class_names:
            y, _ = number_texts(y.tolist(), self.class_names, "y")
        points = check_features(x, "x")
        classed = check_targets(y, len(x), kind, "y")
        if not has_classes and count_outputs(classed) != outputs:
            raise InputError(f"expected {outputs} values to predict per point, not {count_outputs(classed)}")
        if has_classes and classed.max() >= outputs:
            raise InputError(f"labels must be from 0 to {outputs - 1}, not {y.min()} to {y.max()}")
        return Samples(points, classed)

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """The model for a client whose goal is to be good at points like these."""
        goal = self.samples(x, y)
        me = Client(
            id=0,
            round=self.rounds,
            action="personalize",
            seed=self.config.seed,
            classes=self.network.target.outputs,
            parts=Parts(goal, goal, goal, goal),
            network=self.network,
            settings=self.config.train.at_round(self.rounds),
            initial=self.initial,
        )
        adapt = self.config.adapt
        try:
            with one_thread():
                return personalized(self.method, adapt, self.offer, EMPTY, me, is_member=False).predictor
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = " ".join(repr(error).split())
            raise InputError(f"the run's offer to newcomers does not fit its method: {reason}") from error
