"""Local training: no federation at all. The other threshold for PMA (the paper's Limitations).

A client that never took part trains alone as well, when its model is asked for: as often as the mean client
of the run has, with the learning rates of as many rounds, evenly spread.
"""

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
from ipfl.methods.shared.one_model import GlobalModel
from ipfl.methods.shared.steps import expect_update, random_seats, refuse_strangers, select_clients

TRAININGS_PER_ROUND = "trainings_per_round"
"""Fact of an offer to an unseen client: how often the mean client of the run trains in a round."""


@dataclass(frozen=True)
class Local(Method[GlobalModel]):
    """Each client trains a model of its own, with the same budget as in the other methods."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "no federation: each client trains its own model on its own data"
    needs_probe: ClassVar[bool] = False

    def init(self, setup: Setup) -> GlobalModel:
        """The common start; it never changes."""
        return GlobalModel(
            setup.params, setup.per_round, setup.seed, setup.config.aggregate, frozenset(setup.clients)
        )

    def round(self, state: GlobalModel, roster: Roster, round: int) -> Phases[GlobalModel]:
        """Random clients go on training their own models; nothing of them comes back."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        replies = yield Ask(
            "train", {client: self.offer(state, client) for client in chosen}, expect_update({})
        )
        return Round(state, random_seats(chosen, replies))

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains what the client has, or the common start; the result stays with the client."""
        return Record({}, {"n": len(me.data("train"))}), Record(
            {"own": me.train(mine.params.get("own", me.initial))}
        )

    def offer(self, state: GlobalModel, client: ClientId) -> Record:
        """Nothing: everyone can make the common start from the seed. It is no model for a newcomer.

        A client of the data that never takes part is told how often others train.
        """
        if client == NEWCOMER:
            refuse_strangers(client, (), "a model of its own has to be trained first")
        if client in state.clients:
            return EMPTY
        return Record({}, {TRAININGS_PER_ROUND: state.per_round / len(state.clients)})

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or the common start if it has not trained yet; see above for the unseen."""
        model = mine.params.get("own", me.initial)
        for round in rounds_alone(offer.facts.get(TRAININGS_PER_ROUND, 0.0), me.round + 1):
            share = me.settings.share_of_lr(round) / me.settings.share_of_lr(me.round)
            model = me.train(model, lr=me.settings.lr * share)
        return model


def rounds_alone(per_round: float, rounds: int) -> list[int]:
    """The rounds in which an unseen client trains: as many as the mean client, one at least.

    Args:
        per_round: How often the mean client trains in a round; 0: the client is not an unseen one.
        rounds: How many were played.
    """
    count = max(1, round(per_round * rounds)) if per_round else 0
    return [int((number + 0.5) * rounds / count) for number in range(count)]
