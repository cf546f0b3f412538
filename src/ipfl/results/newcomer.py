"""A model for a client that a run has never met: the method's `personalize`, on the offer for newcomers."""

from __future__ import annotations

from collections.abc import Sequence
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


def newcomer_points(
    network: Network, class_names: Sequence[str], x: NDArray[Any], y: NDArray[Any]
) -> Samples:
    """Somebody's points, checked.

    Args:
        network: Of the run.
        class_names: Of the run's labels, if they are texts.
        x: Points.
        y: A target for each.

    Raises:
        InputError: They do not fit the run.
    """
    shape, kind, outputs = network.input_shape, network.target.kind, network.target.outputs
    if x.shape[1:] != shape and (*x.shape[1:], 1) == shape:
        x = x[..., None]  # grey images may come without a channel axis
    has_classes = kind == "classes"
    fits = y.shape[:1] == x.shape[:1] and (y.ndim == 1 or not has_classes)
    if not x.ndim or x.shape[1:] != shape or not fits or not y.size:
        raise InputError(f"expected points of shape {shape} with a label each, not x {x.shape}, y {y.shape}")
    if y.dtype.kind == "U" and class_names:
        y, _ = number_texts(y.tolist(), class_names, "y")
    points, targets = check_features(x, "x"), check_targets(y, len(x), kind, "y")
    if not has_classes and count_outputs(targets) != outputs:
        raise InputError(f"expected {outputs} values to predict per point, not {count_outputs(targets)}")
    if has_classes and targets.max() >= outputs:
        raise InputError(f"labels must be from 0 to {outputs - 1}, not {y.min()} to {y.max()}")
    return Samples(points, targets)


def personalize_newcomer(
    method: Method[Any],
    offer: Record,
    network: Network,
    initial: Vector,
    config: RunConfig,
    rounds: int,
    goal: Samples,
) -> Predictor:
    """The model of a new client.

    Args:
        method: Of the run.
        offer: The server's record for newcomers.
        network: Of the run.
        initial: The parameters that everyone can make from the run's seed.
        config: Of the run.
        rounds: That were played.
        goal: Points that the client wants to be good at.
    """
    me = Client(
        id=0,
        round=rounds,
        action="personalize",
        seed=config.seed,
        classes=network.target.outputs,
        parts=Parts(goal, goal, goal, goal),
        network=network,
        settings=config.train.at_round(rounds),
        initial=initial,
    )
    try:
        with one_thread():
            return personalized(method, config.adapt, offer, EMPTY, me, is_member=False).predictor
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(repr(error).split())
        raise InputError(f"the run's offer to newcomers does not fit its method: {reason}") from error
