"""The only SGD loop and the only evaluator of the project, both on flat parameter vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from ipfl.config import TrainConfig
from ipfl.core import Vector
from ipfl.data.federated import Samples
from ipfl.models import Network

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Pull:
    """A proximal pull strength/2·‖w − anchor‖² added to the loss (FedProx, Ditto, FedSoft)."""

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


def _batches(
    samples: Samples, order: np.ndarray[tuple[int], np.dtype[np.intp]], size: int
) -> Iterator[Samples]:
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Samples(samples.x[chosen], samples.y[chosen])


def _loss(network: Network, batch: Samples) -> Tensor:
    return cross_entropy(network.module(network.inputs(batch.x)), torch.from_numpy(batch.y))


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
) -> Vector:
    """Trains `start` on `samples` with plain SGD and returns the new parameters.

    Args:
        network: Workspace; whatever it held is overwritten.
        start: Parameters to start from.
        samples: Training data.
        settings: Learning rate, batch size, epochs, momentum, weight decay.
        rng: Shuffles the samples, and seeds what the module itself draws (dropout).
        epochs: Instead of the settings' number.
        lr: Instead of the settings' learning rate.
        pull: Proximal term, if any.
    """
    network.load(start)
    network.module.train()
    step = settings.lr if lr is None else lr
    weights, gradient = network.flat[: network.trained], network.grad
    anchor = None if pull is None else torch.tensor(pull.anchor[: network.trained])
    velocity = torch.zeros_like(weights) if settings.momentum else None
    with _seeded(rng):
        for _ in range(settings.epochs if epochs is None else epochs):
            for batch in _batches(samples, rng.permutation(len(samples)), settings.batch_size):
                gradient.zero_()
                _loss(network, batch).backward()  # type: ignore[no-untyped-call]
                if settings.weight_decay:
                    gradient.add_(weights, alpha=settings.weight_decay)
                if pull is not None and anchor is not None:
                    gradient.add_(weights, alpha=pull.strength).sub_(anchor, alpha=pull.strength)
                if velocity is not None:
                    gradient = velocity.mul_(settings.momentum).add_(network.grad)
                weights.sub_(gradient, alpha=step)
                gradient = network.grad
    return network.read()


@torch.no_grad()
def evaluate(network: Network, params: Vector, samples: Samples) -> Score:
    """Scores `params` on `samples`."""
    network.load(params)
    network.module.eval()
    hits = soft = loss = 0.0
    for batch in _batches(samples, np.arange(len(samples)), EVALUATION_BATCH):
        labels = torch.from_numpy(batch.y)
        logs = log_softmax(network.module(network.inputs(batch.x)), dim=1)
        true = logs.gather(1, labels[:, None]).double()
        hits += float((logs.argmax(1) == labels).sum())
        soft += float(true.exp().sum())
        loss -= float(true.sum())
    return Score(len(samples), hits, soft, loss)


def mean_gradient(network: Network, params: Vector, samples: Samples) -> Vector:
    """Gradient of the mean loss over `samples` at `params` (zeros on the buffers)."""
    network.load(params)
    network.module.eval()
    network.grad.zero_()
    for batch in _batches(samples, np.arange(len(samples)), EVALUATION_BATCH):
        (_loss(network, batch) * (len(batch) / len(samples))).backward()  # type: ignore[no-untyped-call]
    whole = np.zeros(network.size, dtype=np.float32)
    whole[: network.trained] = network.grad.numpy()
    return whole


@torch.no_grad()
def predictions(
    network: Network, params: Vector, samples: Samples
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Predicted classes, for confusion counts."""
    network.load(params)
    network.module.eval()
    parts = [
        network.module(network.inputs(batch.x)).argmax(1).numpy()
        for batch in _batches(samples, np.arange(len(samples)), EVALUATION_BATCH)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
