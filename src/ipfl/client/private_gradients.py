"""Gradients of single points, shortened and summed with noise: what DP-SGD is made of.

Abadi et al., Deep Learning with Differential Privacy, CCS 2016. The loop is that of all training
(`ipfl.training.sgd.sgd`); here are its objective and its batches: every point is in a batch with the same
chance, independently of the others, as the accountant assumes (`ipfl.client.privacy_accountant`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from ipfl.errors import InputError
from ipfl.training.network import Network
from ipfl.training.sgd import Batch

GRADIENT_CHUNK = 32
"""Points whose gradients are in memory at once."""


def point_gradients(network: Network, batch: Batch) -> Tensor:
    """(n, trained): the gradient of each point's loss at the network's parameters.

    Raises:
        InputError: The model mixes the points of a batch, as batch normalization does.
    """
    module = network.module
    trained = {name: one.detach() for name, one in module.named_parameters() if one.requires_grad}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return network.loss.mean(functional_call(module, parameters, (x[None],)).float(), y[None])

    try:
        found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            trained, batch.inputs, batch.labels
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(
            f"[privacy] needs a model whose points do not mix (no batch norm): {reason}"
        ) from error
    whole = torch.zeros(len(batch), network.trained, device=network.device)
    for slot in network.slots:
        if slot.name in found:
            part = found[slot.name]
            if part.dim() == 5:  # convolution weights lie channels-last in the vector
                part = part.permute(0, 1, 3, 4, 2)
            whole[:, slot.start : slot.stop] = part.reshape(len(batch), -1)
    return whole


def clipped_sum(network: Network, batch: Batch, clip: float) -> Tensor:
    """(trained,): the sum of the points' gradients, none of them longer than `clip`.

    One that is no number counts as 0: in the sum it would show through all noise.
    """
    total = torch.zeros(network.trained, device=network.device)
    for start in range(0, len(batch), GRADIENT_CHUNK):
        gradients = point_gradients(network, batch[start : start + GRADIENT_CHUNK])
        gradients = gradients.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        lengths = gradients.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        total += (clip / lengths).clamp(max=1) @ gradients
    return total


class NoisyGradient:
    """Objective: the clipped gradients of a batch with noise, divided by the expected size of a batch."""

    def __init__(self, clip: float, deviation: float, batch_size: float, rng: np.random.Generator):
        self.clip, self.deviation, self.batch_size, self.rng = clip, deviation, batch_size, rng

    def __call__(self, network: Network, batch: Batch) -> None:
        """Adds it to the network's gradient; of an empty batch, the noise alone."""
        noise = self.rng.normal(0, self.deviation, network.trained).astype(np.float32)
        network.grad.add_((clipped_sum(network, batch, self.clip) + network.put(noise)) / self.batch_size)


class PoissonBatches:
    """Every point is in each batch with the same chance; the number of batches is fixed."""

    def __init__(self, points: int, batch_size: int):
        self.rate = min(1.0, batch_size / max(points, 1))
        self.steps = math.ceil(points / batch_size)
        """In an epoch."""

    def __call__(self, rng: np.random.Generator, points: int) -> Iterator[NDArray[np.intp]]:
        """The batches of an epoch."""
        for _ in range(self.steps):
            yield np.flatnonzero(rng.random(points) < self.rate)
