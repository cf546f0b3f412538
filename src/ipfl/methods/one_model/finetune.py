"""Fine-tuning: FedAvg's global model, trained a little further by each client before it predicts with it.

The simplest method that personalized ones are compared with, studied by Wang et al., Federated Evaluation of
On-device Personalization, 2019, and by Yu et al., Salvaging Federated Learning by Local Adaptation, 2020. The
rounds are FedAvg's to the last bit. A client predicts with what a few epochs of SGD on its `train` part make
of the global model; it remembers nothing, so that clients never met get the same as all others.

Epochs and steps were tuned on digits, see docs/methods.md: 2, 5, 10 and 20 epochs with 0.1, 0.3 and 1 times
the learning rate of the rounds (1, 2, 5, … 50 epochs on some seeds, and 3 times).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Record, Vector
from ipfl.methods.shared.one_model import OneModelMethod

LR_SHARE = 0.3
"""Learning rate of fine-tuning by default, as a share of that in the rounds."""


@dataclass(frozen=True)
class FineTune(OneModelMethod):
    """One model for all, fine-tuned by each."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "FedAvg, then each client trains the global model a little further for itself"

    epochs: int = Field(5, ge=1, description="epochs of fine-tuning before a client predicts")
    lr: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="learning rate of fine-tuning; omitted: 0.3 · train.lr"
    )

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The global model, fine-tuned on the client's `train` part."""
        lr = LR_SHARE * me.settings.lr if self.lr is None else self.lr
        return me.train(offer.params["global"], epochs=self.epochs, lr=lr)
