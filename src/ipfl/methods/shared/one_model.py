"""The base of methods whose server keeps one global model: FedAvg's round, and its client side by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ipfl.client.client import Client
from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Fact, Method, Phases, Record, Roster, Round, Setup, Vector
from ipfl.methods.shared.steps import average_models, expect_update, random_seats, select_clients
from ipfl.training.sgd import Predictor


@dataclass(frozen=True)
class GlobalModel:
    """State of a method whose server keeps one model."""

    params: Vector
    per_round: int
    seed: int
    rule: AggregateConfig
    clients: frozenset[ClientId] = field(default=frozenset(), repr=False, metadata={"local": True})
    """Clients of the run, for methods that treat others differently; not in a checkpoint."""

    @property
    def named(self) -> dict[str, Vector]:
        """The model as it travels and is evaluated: `global`."""
        return {"global": self.params}


class OneModelMethod(Method[GlobalModel]):
    """Random clients train the global model, and the mean of their updates replaces it.

    Subclasses change what a client does (`on_train`, `personalize`) or what it is sent beside the model
    (`instructions`).
    """

    needs_probe: ClassVar[bool] = False
    sent: ClassVar[str] = "global"
    """What the server's vector is called when it travels."""

    def init(self, setup: Setup) -> GlobalModel:
        """All start from the same parameters."""
        return GlobalModel(setup.params, setup.per_round, setup.seed, setup.config.aggregate)

    def round(self, state: GlobalModel, roster: Roster, round: int) -> Phases[GlobalModel]:
        """Random clients train the global model; their mean replaces it."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        instructions = self.instructions(state, chosen, round)
        named = {self.sent: state.params}
        to = {client: Record(named, instructions.get(client, {})) for client in chosen}
        replies = yield Ask("train", to, expect_update({self.sent: len(state.params)}))
        params = average_models(replies, self.sent, state.params, state.rule)
        return Round(replace(state, params=params), random_seats(chosen, replies))

    def instructions(
        self, state: GlobalModel, chosen: list[ClientId], round: int
    ) -> Mapping[ClientId, Mapping[str, Fact]]:
        """Facts that single clients are sent with the model; none by default."""
        return {}

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training from the global model."""
        return self.update(me.train(ask.params["global"]), me), mine

    def update(self, model: Vector, me: Client) -> Record:
        """A client's reply: its copy of the model, weighed by its number of samples."""
        return Record({self.sent: model}, {"n": len(me.data("train"))})

    def offer(self, state: GlobalModel, client: ClientId) -> Record:
        """The global model, for everyone."""
        return Record({self.sent: state.params})

    def personalize(self, offer: Record, mine: Record, me: Client) -> Predictor:
        """Every client predicts with the global model as it is."""
        return offer.params["global"]

    def models(self, state: GlobalModel) -> dict[str, Vector]:
        """The global model."""
        return state.named
