"""Fine-tuning: FedAvg's global model, trained a little further by each client before it deploys it.

The plain rival of every personalized method, studied by Wang et al., Federated Evaluation of On-device
Personalization, 2019, and by Yu et al., Salvaging Federated Learning by Local Adaptation, 2020. The rounds
are FedAvg's to the last bit. A client deploys what a few epochs of SGD on its `train` part make of the global
model; it remembers nothing, so that clients never met get the same as all others.

By default a client fine-tunes for as long and with the same steps as in one training of a round.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client import Client
from ipfl.core import Ask, ClientId, Method, Record, Replies, Roster, Round, Setup, Vector
from ipfl.methods.steps import OneModel, fedavg_round, global_update, training_passes


@dataclass(frozen=True)
class FineTune(Method[OneModel]):
    """One model for all, fine-tuned by each."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "FedAvg, then each client trains the global model a little further for itself"

    epochs: int | None = Field(
        None, ge=1, description="epochs of fine-tuning before a client deploys; omitted: train.epochs"
    )
    lr: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="learning rate of fine-tuning; omitted: train.lr"
    )

    def init(self, setup: Setup) -> OneModel:
        """All start from the same parameters."""
        return OneModel.of(setup)

    def round(self, state: OneModel, roster: Roster, round: int) -> Generator[Ask, Replies, Round[OneModel]]:
        """FedAvg's round."""
        return fedavg_round(state, roster, round)

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training from the global model; fine-tuned models are no part of it."""
        return global_update(me.train(ask.params["global"]), me), mine

    def offer(self, state: OneModel, client: ClientId) -> Record:
        """The global model, for everyone."""
        return Record(state.named)

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The global model, fine-tuned on the client's `train` part."""
        return me.train(offer.params["global"], epochs=self.epochs, lr=self.lr)

    def models(self, state: OneModel) -> dict[str, Vector]:
        """The global model."""
        return state.named

    def scorings(self, state: OneModel) -> int:
        """The epochs of fine-tuning."""
        return training_passes(self.epochs)
