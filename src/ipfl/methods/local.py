"""Local training: no federation at all. The other threshold for PMA (the paper's Limitations)."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import (
    EMPTY,
    NEWCOMER,
    Ask,
    ClientId,
    Method,
    Phases,
    Record,
    Roster,
    Round,
    Setup,
    Vector,
)
from ipfl.core.method import Sums, weigh_by_samples
from ipfl.methods.one_model import GlobalModel
from ipfl.methods.steps import expect_update, random_seats, refuse_strangers, select_clients


@dataclass(frozen=True)
class Local(Method[GlobalModel]):
    """Each client trains a model of its own, with the same budget as in the other methods."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "no federation: each client trains its own model on its own data"
    needs_probe: ClassVar[bool] = False

    def init(self, setup: Setup) -> GlobalModel:
        """The common start; it never changes."""
        return GlobalModel(setup.params, setup.per_round, setup.seed, setup.aggregate)

    def round(self, state: GlobalModel, roster: Roster, round: int) -> Phases[GlobalModel]:
        """Random clients go on training their own models; nothing of them comes back."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        replies = yield Ask(
            "train", {client: self.offer(state, client) for client in chosen}, expect_update({})
        )
        return Round(state, random_seats(chosen, replies))

    def sums(self) -> Sums:
        """Nothing of the replies is used."""
        return Sums(updates={"train": weigh_by_samples})

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains what the client has, or the common start; the result stays with the client."""
        return Record({}, {"n": len(me.data("train"))}), Record(
            {"own": me.train(self.personalize(ask, mine, me))}
        )

    def offer(self, state: GlobalModel, client: ClientId) -> Record:
        """Nothing: everyone can make the common start from the seed. It is no model for a newcomer."""
        if client == NEWCOMER:
            refuse_strangers(client, (), "a model of its own has to be trained first")
        return EMPTY

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or the common start if it has not trained yet."""
        return mine.params.get("own", me.initial)
