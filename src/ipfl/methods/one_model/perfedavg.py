"""Per-FedAvg: a global model from which one gradient step on a client's own data leads to a good one.

Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020, Algorithm 1. It minimizes the mean over clients of f_i(w − α∇f_i(w)). A local step is

    w ← w − β·(I − α∇²f_i(w; D''))·∇f_i(w − α∇f_i(w; D); D')

with independent batches D, D', D''. Two variants avoid the Hessian (the paper's Section 4):
- `fo` (FO-MAML) leaves the term with it out;
- `hf` (HF-MAML) takes a central difference of gradients for it, ∇²f(w)u ≈ (∇f(w + δu) − ∇f(w − δu))/(2δ).

A client predicts with w − α∇f_i(w), the gradient taken over its whole `train` part. Clients weigh alike,
whatever their number of samples, as in the paper's objective.

Departures:
- Each batch of the SGD loop is split into D, D' (and D''), so that an epoch passes over the data once, as in
  every other method; the paper draws each of full size. Smaller parts make noisier gradients, which costs
  accuracy. A last batch with fewer points than parts stands for all of them.
- β is by default the run's learning rate. The paper's 0.001 goes with 1000 rounds.
- The default variant is `fo`: it is cheaper, and on digits and letters it was ahead in the first tens of
  rounds; after 80 rounds on digits there was little between them.
- δ is chosen so that the points lie ε^⅓·(1 + ‖w‖) from w, which balances the two errors of a central
  difference in floats of precision ε; the paper leaves it open.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipfl.client.client import Client
from ipfl.core import Record, Vector
from ipfl.core.vectors import mix
from ipfl.methods.shared.one_model import OneModelMethod
from ipfl.training.network import Network
from ipfl.training.sgd import Batch, mean_loss

DIFFERENCE_STEP = float(np.finfo(np.float32).eps) ** (1 / 3)
"""How far from w the gradients of a central difference are taken, in units of 1 + ‖w‖."""


@dataclass(frozen=True)
class PerFedAvg(OneModelMethod):
    """One model for all, made to be adapted by one step (Fallah et al. 2020)."""

    name: ClassVar[str] = "perfedavg"
    summary: ClassVar[str] = "a global model that one step adapts to each client (Fallah et al. 2020)"

    variant: Literal["fo", "hf"] = Field(
        "fo", description="without the Hessian (FO-MAML), or by differences of gradients (HF-MAML)"
    )
    alpha: float = Field(0.01, ge=0, allow_inf_nan=False, description="α, step of the adaptation")
    beta: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="β, step of the local training; omitted: train.lr"
    )

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training of the global model for its loss after adaptation."""
        objective = partial(meta_gradient, alpha=self.alpha, hessian=self.variant == "hf")
        model = me.train(ask.params["global"], lr=self.beta, objective=objective)
        return Record({"global": model}, {"n": min(1, len(me.data("train")))}), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The global model after one step on the client's `train` part."""
        shared = offer.params["global"]
        return mix([shared, me.gradient(shared, "train")], [1, -self.alpha])


def meta_gradient(network: Network, batch: Batch, *, alpha: float, hessian: bool) -> None:
    """The objective of local training: (I − α∇²f(w; D''))·∇f(w − α∇f(w; D); D'), or that without ∇²f."""
    inner, outer, *third = split(batch, 3 if hessian else 2)
    here = network.flat[: network.trained].clone()
    gradient = gradient_at(network, here - alpha * gradient_at(network, here, inner), outer)
    for part in third:
        gradient -= alpha * hessian_product(network, here, gradient, part)
    network.flat[: network.trained] = here
    network.grad.copy_(gradient)


def split(batch: Batch, parts: int) -> list[Batch]:
    """Disjoint parts of a batch, as equal as can be; the whole batch for each if it has too few points."""
    if len(batch) < parts:
        return [batch] * parts
    shares = np.array_split(np.arange(len(batch)), parts)
    return [batch[share[0] : share[-1] + 1] for share in shares]


def gradient_at(network: Network, weights: Tensor, batch: Batch) -> Tensor:
    """Gradient of the mean loss of a batch at some weights, which stay in the network."""
    network.flat[: network.trained] = weights
    network.grad.zero_()
    mean_loss(network, batch)
    return network.grad.clone()


def hessian_product(network: Network, here: Tensor, direction: Tensor, batch: Batch) -> Tensor:
    """∇²f(here)·direction by a central difference of gradients."""
    length = float(direction.norm())
    if length == 0:
        return direction
    delta = DIFFERENCE_STEP * (1 + float(here.norm())) / length
    with network.fork_rng():  # both sides must see the same dropout
        ahead = gradient_at(network, here + delta * direction, batch)
    behind = gradient_at(network, here - delta * direction, batch)
    return ahead.sub_(behind).div_(2 * delta)
