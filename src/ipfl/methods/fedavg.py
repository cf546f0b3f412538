"""FedAvg: one global model, the sample-weighted mean of locally trained copies.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1. Its accuracy per client is the paper's threshold ρ_i for PMA.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipfl.client import Client
from ipfl.core import Ask, ClientId, Method, Record, Replies, Roster, Round, Setup, Vector
from ipfl.methods.steps import OneModel, fedavg_round, global_update


@dataclass(frozen=True)
class FedAvg(Method[OneModel]):
    """One model for all (McMahan et al. 2017)."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "one global model, the mean of local copies (McMahan et al. 2017)"

    def init(self, setup: Setup) -> OneModel:
        """All start from the same parameters."""
        return OneModel.of(setup)

    def round(self, state: OneModel, roster: Roster, round: int) -> Generator[Ask, Replies, Round[OneModel]]:
        """Random clients train the global model; their mean replaces it."""
        return fedavg_round(state, roster, round)

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training from the global model."""
        return global_update(me.train(ask.params["global"]), me), mine

    def offer(self, state: OneModel, client: ClientId) -> Record:
        """The global model, for everyone."""
        return Record(state.named)

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Every client deploys the global model as it is."""
        return offer.params["global"]

    def models(self, state: OneModel) -> dict[str, Vector]:
        """The global model."""
        return state.named
