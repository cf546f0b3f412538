"""FedALA: each client blends the global model into its own, element by element, before it trains.

Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, Algorithm 1.
A chosen client i that has trained before does not start from the global model Θ but from

    Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i

with weights W_i in [0, 1] for every element of the top p layers; the lower layers are the global ones (their
weight is 1). W_i is learned on a random share s of the client's data, by steps

    W_i ← clip(W_i − η·∇_Θ̂ L(Θ̂_i) ⊙ (Θ − Θ_i), 0, 1)

from all ones: until its losses settle at the first time (the initial stage), for one epoch at each later one.
Then the client trains Θ̂_i and sends it; the server takes the mean, as FedAvg does. A client remembers its
model Θ_i and W_i. In its first training there is no Θ_i: it starts from the global model.

A client predicts with Algorithm 1's result, its model Θ_i as it was after its last training (the authors'
code scores Θ̂_i, before the training). One that never trained predicts with the global model, from which its
first training would start.

The hyper-parameters are those of the authors' code.

Departures:
- The losses that must settle are those of whole epochs on the sampled data (the authors' code takes the last
  batch of each), and the initial stage ends after 100 epochs if they never do.
- The share is a random subset, drawn anew for each training; the authors' code takes a contiguous part.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.config.train_section import TrainConfig
from ipfl.core import Record, Vector
from ipfl.methods.shared.one_model import OneModelMethod
from ipfl.training.network import Network
from ipfl.training.sgd import Batch, losses, mean_loss, sgd

MAX_INITIAL_EPOCHS = 100
"""Epochs of the initial stage at most."""


@dataclass(frozen=True)
class FedALA(OneModelMethod):
    """A global model that each client blends into its own with learned weights (Zhang et al. 2023)."""

    name: ClassVar[str] = "fedala"
    summary: ClassVar[str] = "each client learns how much of the global model it takes (Zhang et al. 2023)"

    layers: int = Field(
        1, ge=1, description="p, top layers that are blended; those below are the global model's"
    )
    share: float = Field(0.8, gt=0, le=1, description="s, share of the client's data that W is learned on")
    eta: float = Field(1.0, gt=0, allow_inf_nan=False, description="η, learning rate of W")
    threshold: float = Field(
        0.1,
        gt=0,
        allow_inf_nan=False,
        description="the initial stage ends when the recent losses deviate by less",
    )
    recent: int = Field(10, ge=1, description="number of recent losses, one per epoch")

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local initialization Θ̂_i, then local training from there."""
        shared, own = ask.params["global"], mine.params.get("own")
        if own is None:
            trained = me.train(shared)
            return self.update(trained, me), Record({"own": trained})
        blend = Blend(own, shared, me.network.top(self.layers), mine.params.get("weights"), self.eta)
        self._fit_weights(blend, "weights" not in mine.params, me)
        trained = me.train(blend.model)
        return self.update(trained, me), Record({"own": trained, "weights": blend.weights})

    def _fit_weights(self, blend: Blend, initial_stage: bool, me: Client) -> None:
        """Steps on W_i: an epoch, or as many as it takes for the losses to settle."""
        train = me.data("train")
        rows = me.rng.permutation(len(train))[: max(1, round(self.share * len(train)))]
        samples = me.network.points(train[rows])
        settings = TrainConfig(lr=1, epochs=1, batch_size=me.settings.batch_size)
        epoch_losses: list[float] = []
        for _ in range(MAX_INITIAL_EPOCHS if initial_stage else 1):
            sgd(me.network, blend.model, samples, settings, me.rng, objective=blend)
            if initial_stage:
                epoch_losses.append(float(losses(me.network, blend.model, samples).mean()))
                if len(epoch_losses) > self.recent and np.std(epoch_losses[-self.recent :]) < self.threshold:
                    break

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or the global one if it has none yet."""
        return mine.params.get("own", offer.params["global"])


class Blend:
    """Θ̂_i and its weights; as an objective of the SGD loop, a step on W_i per batch.

    The loop moves the parameters by minus the gradient at learning rate 1, so what is written there is the
    way from where the new weights put Θ̂_i back to where it is.
    """

    def __init__(self, own: Vector, shared: Vector, top: slice, weights: Vector | None, eta: float):
        self.own, self.shared, self.top, self.eta = own[top], shared, top, eta
        self.gap = shared[top] - self.own
        self.weights: Vector = np.ones_like(self.gap) if weights is None else weights

    @property
    def model(self) -> Vector:
        """Θ̂_i: the global model, with the top layers blended."""
        model = self.shared.copy()
        model[self.top] = self.own + self.gap * self.weights
        return model

    def __call__(self, network: Network, batch: Batch) -> None:
        """W_i ← clip(W_i − η·∇L ⊙ (Θ − Θ_i), 0, 1)."""
        mean_loss(network, batch)
        slope = network.grad[self.top].cpu().numpy() * self.gap
        self.weights = np.clip(self.weights - np.float32(self.eta) * slope, 0, 1)
        network.grad.zero_()
        network.grad[self.top] = network.flat[self.top] - network.put(self.model[self.top])
