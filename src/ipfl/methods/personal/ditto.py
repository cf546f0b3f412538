"""Ditto: FedAvg, and beside it a personal model of each client that is held near the global one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1. A
chosen client k receives the global model w^t. It trains a copy of it, which goes back to the server (FedAvg
solves the global problem), and its personal model v_k, which stays with it, by steps on

    h_k(v_k; w^t) = F_k(v_k) + λ/2·‖v_k − w^t‖²

from where v_k was. The anchor is w^t as received, not the client's trained copy. Both accuracies are
measured: `personalized_accuracy` is that of the v_k, `global_accuracy` that of w.

A client trains two models per round, as in the paper; only one of them counts as its training for the server.

Departures:
- The paper leaves v_k^0 open (its code starts at w^0). Here v_k starts at the first w^t that the client
  receives. A client that was never chosen solves h_k from the global model on the spot, for as many epochs.
- λ is the same for all clients. The paper takes λ = 1 unless clients are under attack, or lets each client
  choose in 0.1, 1, 2 on validation data.
- s is counted in epochs.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Record, Vector
from ipfl.methods.shared.one_model import OneModelMethod
from ipfl.training.sgd import Pull


@dataclass(frozen=True)
class Ditto(OneModelMethod):
    """A global model, and a personal one near it for each client (Li et al. 2021)."""

    name: ClassVar[str] = "ditto"
    summary: ClassVar[str] = "personal models held near a global one, trained beside it (Li et al. 2021)"

    lam: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="λ, strength of the pull towards the global model"
    )
    epochs: int | None = Field(
        None, ge=1, description="s, epochs on the personal model per round; omitted: train.epochs"
    )

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training of the global model for the server, and of the personal one for the client."""
        shared = ask.params["global"]
        update = self.update(me.train(shared), me)
        return update, Record({"personal": self._personal(mine.params.get("personal", shared), shared, me)})

    def _personal(self, start: Vector, shared: Vector, me: Client) -> Vector:
        """Steps on h_k(v; w^t) from `start`."""
        return me.train(start, epochs=self.epochs, pull=Pull(shared, self.lam))

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The personal model as it is, or what a client that has none makes of the global one."""
        own, shared = mine.params.get("personal"), offer.params["global"]
        return self._personal(shared, shared, me) if own is None else own
