"""The only training loop and the only evaluator of the project, both on flat parameter vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.optim import Optimizer

from ipfl.config.train_section import TrainConfig
from ipfl.core import Vector
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.losses import as_outputs, hard_scores, mix_outputs, own_losses, soft_scores
from ipfl.training.network import Network, Points

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Batch:
    """Some samples, as the network wants them, on its device."""

    inputs: Tensor
    labels: Tensor
    positions: Tensor
    """Where they stand in the samples they were taken from."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> Batch:
        return Batch(self.inputs[part], self.labels[part], self.positions[part])


Objective = Callable[[Network, Batch], None]
"""Adds the gradient of one batch's loss at the network's parameters to `network.grad`, which is zero then.

For methods that train on another loss than the ordinary one (`train.loss`); `mean_loss` is that one.
"""


@dataclass(frozen=True)
class Pull:
    """A proximal pull strength/2·‖w − anchor‖² added to the loss.

    Several anchors a_k with weights u_k of sum 1 are one anchor at Σ u_k·a_k: the gradients are the same.
    """

    anchor: Vector
    strength: float


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
"""What a client predicts with: one model, a mixture of models, or features with class prototypes."""


@dataclass(frozen=True)
class Score:
    """How a model did on some samples, as sums, so that scores add up; see `ipfl.data.target_kinds`."""

    n: int
    hits: float
    """Summed hard scores: points predicted correctly, where these are right or wrong."""
    soft: float
    """Summed soft scores, the probability of the true class: far less noisy than hits on few points."""
    loss: float
    """Summed loss that the scores come from: cross entropy for classes."""

    @property
    def accuracy(self) -> float:
        """Share of hits; 0 on no samples."""
        return self.hits / self.n if self.n else 0.0


def _batches(network: Network, points: Points, order: Tensor, size: int) -> Iterator[Batch]:
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Batch(network.inputs(points.x[chosen]), points.y[chosen], chosen)


def _optimizer(settings: TrainConfig, network: Network) -> Optimizer | None:
    """A fresh optimizer; None for `sgd`, which is here."""
    if settings.optimizer == "sgd":
        return None
    from ipfl.training.optimizers import make_optimizer

    return make_optimizer(settings, network)


def _augment(settings: TrainConfig) -> Callable[[Tensor], Tensor] | None:
    """What changes the inputs of every batch; None: nothing does."""
    if settings.augment is None:
        return None
    from ipfl.training.augmentation import find_augment

    return find_augment(settings.augment)


def _training_batches(
    network: Network,
    points: Points,
    rng: np.random.Generator,
    size: int,
    augment: Callable[[Tensor], Tensor] | None,
) -> Iterator[Batch]:
    """The batches of an epoch."""
    if points.draw is None:
        batches = _batches(network, points, network.put(rng.permutation(len(points))), size)
    else:
        batches = (
            Batch(network.inputs(points.x[chosen]), points.y[chosen], chosen)
            for chosen in map(network.put, points.draw(rng, len(points)))
        )
    for batch in batches:
        yield batch if augment is None else replace(batch, inputs=augment(batch.inputs))


def _batches_in_order(network: Network, points: Points) -> Iterator[Batch]:
    everything = torch.arange(len(points), device=network.device)
    return _batches(network, points, everything, EVALUATION_BATCH)


def _loss(network: Network, batch: Batch) -> Tensor:
    return network.loss.mean(network.forward(batch.inputs), batch.labels)


def mean_loss(network: Network, batch: Batch) -> None:
    """The ordinary objective: mean loss of the batch."""
    _loss(network, batch).backward()  # type: ignore[no-untyped-call]


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside: results depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _seeded(network: Network, rng: np.random.Generator) -> Iterator[None]:
    """Torch's own randomness (dropout) from a child of `rng`, whose own stream goes on untouched."""
    (child,) = rng.spawn(1)
    seed = int(child.integers(2**63))
    with network.fork_rng():
        torch.default_generator.manual_seed(seed)
        if network.device.type != "cpu":
            torch.manual_seed(seed)
        yield


def sgd(
    network: Network,
    start: Vector,
    samples: Samples | Points,
    settings: TrainConfig,
    rng: np.random.Generator,
    *,
    pull: Pull | None = None,
    objective: Objective | None = None,
) -> Vector:
    """Trains `start` on `samples`, by SGD or another optimizer, and returns the new parameters.

    A batch of one point is left out where BatchNorm cannot take it.

    Args:
        network: Workspace; what it held before is overwritten.
        start: Parameters to start from.
        samples: Training data.
        settings: Learning rate, batch size, epochs, optimizer and so on.
        rng: Shuffles the samples, and seeds what is drawn otherwise (dropout, augmentation).
        pull: Proximal term, if any.
        objective: What the batches' gradients are of, instead of the mean loss.
    """
    add_gradient = objective or mean_loss
    points = network.points(samples)
    network.load(start)
    network.start_training()
    weights, gradient = network.flat[: network.trained], network.grad
    anchor = None if pull is None else network.put(pull.anchor[: network.trained])
    velocity = torch.zeros_like(weights) if settings.momentum else None
    optimizer, augment = _optimizer(settings, network), _augment(settings)
    decay = settings.weight_decay if optimizer is None else 0.0
    steps, too_small = 0, None
    with _seeded(network, rng):
        for _ in range(settings.epochs):
            for batch in _training_batches(network, points, rng, settings.batch_size, augment):
                gradient.zero_()
                if (error := _refused_by_batch_norm(add_gradient, network, batch)) is not None:
                    too_small = error
                    continue
                steps += 1
                if decay:
                    gradient.add_(weights, alpha=decay)
                if pull is not None and anchor is not None:
                    gradient.add_(weights, alpha=pull.strength).sub_(anchor, alpha=pull.strength)
                for frozen in network.frozen:
                    gradient[frozen] = 0
                if optimizer is not None:
                    optimizer.step()
                    continue
                if velocity is not None:
                    gradient = velocity.mul_(settings.momentum).add_(network.grad)
                weights.sub_(gradient, alpha=settings.lr)
                gradient = network.grad
    if too_small is not None and not steps:
        raise InputError(
            f"BatchNorm needs two points in a batch, but a client trains on {len(points)} with "
            f"train.batch_size = {settings.batch_size}; use GroupNorm in the model, or more points in a batch"
        ) from too_small
    return network.read()


def _refused_by_batch_norm(add_gradient: Objective, network: Network, batch: Batch) -> ValueError | None:
    """Adds a batch's gradient; torch's error, if it is one point, of which BatchNorm takes no variance."""
    try:
        add_gradient(network, batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        return error
    return None


def _raw_outputs(network: Network, params: Vector, points: Points) -> Iterator[Tensor]:
    """What one model's module returns, batch by batch."""
    network.load(params)
    network.start_scoring()
    for batch in _batches_in_order(network, points):
        yield network.forward(batch.inputs)


def _outputs(network: Network, params: Vector, points: Points) -> Iterator[Tensor]:
    """Outputs of one model, batch by batch: log-probabilities of classes, log-odds of labels, or numbers."""
    return (as_outputs(network.target, raw) for raw in _raw_outputs(network, params, points))


def _features(network: Network, params: Vector, points: Points) -> Iterator[Tensor]:
    """What goes into one model's classifier, batch by batch."""
    network.load(params)
    network.start_scoring()
    for batch in _batches_in_order(network, points):
        yield network.features(batch.inputs)[0]


def _predicted(network: Network, predictor: Predictor, points: Points) -> Iterator[Tensor]:
    """The same outputs of what a client predicts with, batch by batch."""
    if isinstance(predictor, Mixture):
        weights = torch.tensor(predictor.weights, device=network.device)
        every = [torch.cat(list(_outputs(network, model, points))) for model in predictor.models]
        yield from torch.split(mix_outputs(network.target, every, weights), EVALUATION_BATCH)
    elif isinstance(predictor, NearestPrototype):
        prototypes = network.put(predictor.prototypes)
        for features_ in _features(network, predictor.model, points):
            distances = torch.cdist(features_, prototypes).square()
            yield log_softmax(-distances.nan_to_num(nan=torch.inf), dim=1)
    else:
        yield from _outputs(network, predictor, points)


@torch.no_grad()
def predicted_outputs(network: Network, predictor: Predictor, samples: Samples | Points) -> Tensor:
    """(n, outputs): log-probabilities of classes, log-odds of labels, or standardised numbers."""
    points = network.points(samples)
    if not len(points):
        return torch.empty(0, network.target.outputs)
    return torch.cat(list(_predicted(network, predictor, points)))


def evaluate(network: Network, predictor: Predictor, samples: Samples | Points) -> Score:
    """Scores a model, or another predictor of a client, on `samples`."""
    points = network.points(samples)
    if not len(points):
        return Score(0, 0.0, 0.0, 0.0)
    return score_outputs(network, predicted_outputs(network, predictor, points), points)


def score_outputs(network: Network, outputs: Tensor, points: Points) -> Score:
    """The score of outputs that are there already."""
    if network.target.kind != "classes":
        lost = own_losses(network.target, outputs, points.y)
        right = float(hard_scores(network.target, outputs, points.y).sum())
        return Score(len(points), right, float(soft_scores(lost).sum()), float(lost.double().sum()))
    hits = float((outputs.argmax(1) == points.y).sum())
    soft = loss = 0.0
    true_logs = outputs.gather(1, points.y[:, None]).cpu().double()  # from the device all at once
    for true in torch.split(true_logs, EVALUATION_BATCH):
        soft += float(true.exp().sum())
        loss -= float(true.sum())
    return Score(len(points), hits, soft, loss)


def log_scores(network: Network, params: Vector, samples: Samples | Points) -> NDArray[np.float64]:
    """(n, classes): logarithm of the probability of every class, of every sample.

    (n, 1) where no classes are predicted: the logarithm of every sample's soft score.
    """
    points = network.points(samples)
    outputs = predicted_outputs(network, params, points)
    is_classes = network.target.kind == "classes"
    logs = outputs if is_classes else -own_losses(network.target, outputs, points.y)[:, None]
    return logs.cpu().double().numpy()


@torch.no_grad()
def losses(network: Network, params: Vector, samples: Samples | Points) -> NDArray[np.float64]:
    """Loss of every sample, the one that is trained on."""
    points = network.points(samples)
    if not len(points):
        return np.empty(0)
    if network.loss.name == "cross_entropy":
        logs = predicted_outputs(network, params, points)
        return -logs.gather(1, points.y[:, None])[:, 0].cpu().double().numpy()
    raw = torch.cat(list(_raw_outputs(network, params, points)))
    return network.loss.per_point(raw, points.y).cpu().double().numpy()


@torch.no_grad()
def features(network: Network, params: Vector, samples: Samples | Points) -> NDArray[np.float32]:
    """(n, features): what goes into the classifier, of every sample."""
    found = list(_features(network, params, network.points(samples)))
    width = network.classifier.in_features
    return torch.cat(found).cpu().numpy() if found else np.empty((0, width), np.float32)


def mean_gradient(network: Network, params: Vector, samples: Samples | Points) -> Vector:
    """Gradient of the mean loss over `samples` at `params` (zeros on the buffers)."""
    points = network.points(samples)
    network.load(params)
    network.start_scoring()
    network.grad.zero_()
    for batch in _batches_in_order(network, points):
        (_loss(network, batch) * (len(batch) / len(points))).backward()  # type: ignore[no-untyped-call]
    whole = np.zeros(network.size, dtype=np.float32)
    whole[: network.trained] = network.grad.cpu().numpy()
    return whole


def predictions(
    network: Network, params: Vector, samples: Samples | Points
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Predicted classes, for confusion counts."""
    found = predicted_outputs(network, params, samples)
    return found.argmax(1).cpu().numpy() if len(found) else np.empty(0, dtype=np.int64)
