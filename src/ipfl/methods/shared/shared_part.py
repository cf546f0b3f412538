"""The base of methods of which one part of the network is averaged, and the rest never leaves its client."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ipfl.client.client import Client
from ipfl.core import Record, Setup, Vector
from ipfl.methods.shared.one_model import GlobalModel, OneModelMethod
from ipfl.training.parts import NOT


class SharedPartMethod(OneModelMethod):
    """FedAvg's round with a part of the network; a client trains it together with what it keeps.

    A client that has trained before goes on with the part that it kept; another begins with the run's initial
    parameters.
    """

    sent: ClassVar[str] = "shared"
    stays: ClassVar[str]
    """The part that stays at its client."""

    def init(self, setup: Setup) -> GlobalModel:
        """The part that travels, as all start with it."""
        return replace(super().init(setup), params=setup.part(NOT + self.stays))

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training of the whole network, of which one part is sent and the other is kept."""
        trained = me.train(self._network(ask, mine, me))
        kept = Record({"own": me.part(trained, self.stays)})
        return self.update(me.part(trained, NOT + self.stays), me), kept

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Both parts together; a client that never trained trains its own first, from the initial one."""
        model = self._network(offer, mine, me)
        return model if "own" in mine.params else me.train(model, only=self.stays)

    def _network(self, sent: Record, mine: Record, me: Client) -> Vector:
        """What was sent, with what the client keeps."""
        network = me.with_part(me.initial, NOT + self.stays, sent.params[self.sent])
        return me.with_part(network, self.stays, mine.params["own"]) if "own" in mine.params else network

    def models(self, state: GlobalModel) -> dict[str, Vector]:
        """No model: the server has a part of one."""
        return {}
