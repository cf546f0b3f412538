"""The only SGD loop and the only evaluator of the project, both on flat parameter vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from ipfl.client.network import Network
from ipfl.client.predictors import Mixture, NearestPrototype, Predictor
from ipfl.client.settings import TrainConfig
from ipfl.core import Vector
from ipfl.data.federated import Samples

EVALUATION_BATCH = 256

Positions = np.ndarray[tuple[int], np.dtype[np.intp]]
"""Positions of a batch's samples in the samples they were taken from."""

Objective = Callable[[Network, Samples, Positions], None]
"""Adds the gradient of one batch's loss at the network's parameters to `network.grad`, which is zero then.

For methods that train on another loss than the mean cross entropy; `mean_loss` is that one.
"""


@dataclass(frozen=True)
class Pull:
    """A proximal pull strength/2·‖w − anchor‖² added to the loss.

    Several anchors a_k with weights u_k of sum 1 are one anchor at Σ u_k·a_k: the gradients are the same.
    """

    anchor: Vector
    strength: float


@dataclass(frozen=True)
class Score:
    """How a model did on some samples, as sums, so that scores add up."""

    n: int
    hits: float
    """Points predicted correctly."""
    soft: float
    """Summed probability of the true class: far less noisy than hits on few points."""
    loss: float
    """Summed cross entropy."""

    @property
    def accuracy(self) -> float:
        """Share of hits; 0 on no samples."""
        return self.hits / self.n if self.n else 0.0


def _batches(samples: Samples, order: Positions, size: int) -> Iterator[tuple[Samples, Positions]]:
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Samples(samples.x[chosen], samples.y[chosen]), chosen


def _in_order(samples: Samples) -> Iterator[Samples]:
    for batch, _ in _batches(samples, np.arange(len(samples)), EVALUATION_BATCH):
        yield batch


def _loss(network: Network, batch: Samples) -> Tensor:
    return cross_entropy(network.module(network.inputs(batch.x)), torch.from_numpy(batch.y))


def mean_loss(network: Network, batch: Samples, positions: Positions) -> None:
    """The ordinary objective: mean cross entropy of the batch."""
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
def _seeded(rng: np.random.Generator) -> Iterator[None]:
    """Torch's own randomness (dropout) from a child of `rng`, whose own stream goes on untouched."""
    (child,) = rng.spawn(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(child.integers(2**63)))
        yield


def sgd(
    network: Network,
    start: Vector,
    samples: Samples,
    settings: TrainConfig,
    rng: np.random.Generator,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    pull: Pull | None = None,
    objective: Objective | None = None,
) -> Vector:
    """Trains `start` on `samples` with plain SGD and returns the new parameters.

    Args:
        network: Workspace; what it held before is overwritten.
        start: Parameters to start from.
        samples: Training data.
        settings: Learning rate, batch size, epochs, momentum, weight decay.
        rng: Shuffles the samples, and seeds what the module itself draws (dropout).
        epochs: Instead of the settings' number.
        lr: Instead of the settings' learning rate.
        pull: Proximal term, if any.
        objective: What the batches' gradients are of, instead of the mean cross entropy.
    """
    add_gradient = objective or mean_loss
    network.load(start)
    network.module.train()
    step = settings.lr if lr is None else lr
    weights, gradient = network.flat[: network.trained], network.grad
    anchor = None if pull is None else torch.tensor(pull.anchor[: network.trained])
    velocity = torch.zeros_like(weights) if settings.momentum else None
    with _seeded(rng):
        for _ in range(settings.epochs if epochs is None else epochs):
            for batch, positions in _batches(samples, rng.permutation(len(samples)), settings.batch_size):
                gradient.zero_()
                add_gradient(network, batch, positions)
                if settings.weight_decay:
                    gradient.add_(weights, alpha=settings.weight_decay)
                if pull is not None and anchor is not None:
                    gradient.add_(weights, alpha=pull.strength).sub_(anchor, alpha=pull.strength)
                if velocity is not None:
                    gradient = velocity.mul_(settings.momentum).add_(network.grad)
                weights.sub_(gradient, alpha=step)
                gradient = network.grad
    return network.read()


def _logs(network: Network, params: Vector, samples: Samples) -> Iterator[Tensor]:
    """Log-probabilities of the classes under one model, batch by batch."""
    network.load(params)
    network.module.eval()
    for batch in _in_order(samples):
        yield log_softmax(network.module(network.inputs(batch.x)), dim=1)


def _features(network: Network, params: Vector, samples: Samples) -> Iterator[Tensor]:
    """What goes into one model's classifier, batch by batch."""
    network.load(params)
    network.module.eval()
    for batch in _in_order(samples):
        yield network.features(network.inputs(batch.x))[0]


def _log_probabilities(network: Network, predictor: Predictor, samples: Samples) -> Iterator[Tensor]:
    """Log-probabilities of the classes under what a client predicts with, batch by batch."""
    if isinstance(predictor, Mixture):
        weights = torch.tensor(predictor.weights).log()
        every = [torch.cat(list(_logs(network, model, samples))) for model in predictor.models]
        mixed = torch.logsumexp(torch.stack(every) + weights[:, None, None], dim=0)
        yield from torch.split(mixed, EVALUATION_BATCH)
    elif isinstance(predictor, NearestPrototype):
        prototypes = torch.from_numpy(predictor.prototypes)
        for features_ in _features(network, predictor.model, samples):
            distances = torch.cdist(features_, prototypes).square()
            yield log_softmax(-distances.nan_to_num(nan=torch.inf), dim=1)
    else:
        yield from _logs(network, predictor, samples)


@torch.no_grad()
def evaluate(network: Network, predictor: Predictor, samples: Samples) -> Score:
    """Scores a model, or another predictor of a client, on `samples`."""
    hits = soft = loss = 0.0
    batches = zip(_log_probabilities(network, predictor, samples), _in_order(samples), strict=True)
    for logs, batch in batches:
        labels = torch.from_numpy(batch.y)
        true = logs.gather(1, labels[:, None]).double()
        hits += float((logs.argmax(1) == labels).sum())
        soft += float(true.exp().sum())
        loss -= float(true.sum())
    return Score(len(samples), hits, soft, loss)


@torch.no_grad()
def log_probabilities(network: Network, params: Vector, samples: Samples) -> NDArray[np.float64]:
    """(n, classes): logarithm of the probability of every class, of every sample."""
    parts = [logs.double().numpy() for logs in _logs(network, params, samples)]
    return np.concatenate(parts) if parts else np.empty((0, 0))


@torch.no_grad()
def losses(network: Network, params: Vector, samples: Samples) -> NDArray[np.float64]:
    """Cross entropy of every sample."""
    parts = [
        -logs.gather(1, torch.from_numpy(batch.y)[:, None])[:, 0].double().numpy()
        for logs, batch in zip(_logs(network, params, samples), _in_order(samples), strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


@torch.no_grad()
def features(network: Network, params: Vector, samples: Samples) -> NDArray[np.float32]:
    """(n, features): what goes into the classifier, of every sample."""
    parts = [batch.numpy() for batch in _features(network, params, samples)]
    return np.concatenate(parts) if parts else np.empty((0, network.classifier.in_features), np.float32)


def mean_gradient(network: Network, params: Vector, samples: Samples) -> Vector:
    """Gradient of the mean loss over `samples` at `params` (zeros on the buffers)."""
    network.load(params)
    network.module.eval()
    network.grad.zero_()
    for batch in _in_order(samples):
        (_loss(network, batch) * (len(batch) / len(samples))).backward()  # type: ignore[no-untyped-call]
    whole = np.zeros(network.size, dtype=np.float32)
    whole[: network.trained] = network.grad.numpy()
    return whole


@torch.no_grad()
def predictions(
    network: Network, params: Vector, samples: Samples
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Predicted classes, for confusion counts."""
    parts = [logs.argmax(1).numpy() for logs in _logs(network, params, samples)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
