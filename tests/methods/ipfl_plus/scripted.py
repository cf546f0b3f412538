"""Scripted clients of IP-FL, and rounds played with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from tests import federation
from tests.federation import Answer, KeptModels, Played, ScriptedEngine, play_round

from ipfl.core import ClientId, Record, Setup
from ipfl.methods import method
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.state import MarketState

SIZE = 3


UNDISTURBED: dict[str, dict[str, Any]] = {
    "payment": {"trial_rounds": 0, "subsidy": 0},
    "contribution": {"rule": "paper"},
    "guards": {"rule": "paper"},
    "sharing": {"rule": "paper"},
}
"""Settings that make a round's tokens easy to derive by hand."""
PARTS = ("importance", "seats", "payment", "contribution", "guards", "sharing", "mix")


def put_together(base: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> IPFLPlus:
    """The method with these settings of its parts instead of those of the base."""
    own = {
        key: {**base.get(key, {}), **value} if isinstance(value, Mapping) else value
        for key, value in settings.items()
    }
    made = method("ipfl-plus", **{**base, **own})
    assert isinstance(made, IPFLPlus)
    return made


def paper(**settings: Any) -> IPFLPlus:
    """All parts by the paper's rules."""
    return put_together({part: {"rule": "paper"} for part in PARTS}, settings)


def market(**settings: Any) -> IPFLPlus:
    """The default, with contributions that can be read off the updates.

    Client i adds i to every coordinate, and a model is the better the larger it is (`appraise`): who adds
    more than the mean of the providers contributes something, and who adds less takes something away.
    Without screening, which would take updates in one direction for copies, without a subsidy (all that is
    earned was paid by somebody) and without free rounds.
    """
    return put_together(UNDISTURBED, settings)


def train(client: ClientId, ask: Record) -> Record:
    """Every model moves by the client's number in every coordinate; all have 10 samples."""
    return Record({name: model + np.float32(client) for name, model in ask.params.items()}, {"n": 10})


def appraise(client: ClientId, ask: Record) -> Record:
    """Half of 10 points right, gradient −1: the larger a client's update, the larger its contribution."""
    wanted = ask.params.items() if ask.facts["gradient"] else ()
    gradients = {name: -np.ones_like(model) for name, model in wanted}
    return Record(gradients, {name: [5.0, 10.0] for name in ask.params})


def prefer_parity(client: ClientId, ask: Record) -> Record:
    """Even clients are good at cluster 0, odd ones at cluster 1; who gets no models cannot say how good."""
    mine = client % 2
    hits = [9.0 if k == mine else 1.0 for k in ask.facts["clusters"]] if ask.params else []
    return Record({}, {"bids": [mine], "hits": hits, "n": 10})


HONEST: dict[str, Answer] = {
    "train": train,
    "appraise": appraise,
    "preference": prefer_parity,
}


def no_answer(client: ClientId, ask: Record) -> None:
    """No reply."""


def no_bid(client: ClientId, ask: Record) -> Record:
    """Scores the models, if it got any, and wants none."""
    return Record({}, {"bids": [], "hits": [5.0] * len(ask.params), "n": 10})


def unless(clients: Collection[ClientId], answer: Answer, instead: Answer) -> Answer:
    """Another answer from some clients."""
    return lambda client, ask: (instead if client in clients else answer)(client, ask)


def setup(clients: int = 8, per_round: int = 6, size: int = SIZE, **others: Any) -> Setup:
    """A federation of models with three parameters, or more."""
    start = np.zeros(size, np.float32)
    return federation.setup(clients, per_round, params=start, make_client_models=KeptModels, **others)


def play(
    method: IPFLPlus,
    rounds: int,
    script: Mapping[str, Answer] = HONEST,
    clients: int = 8,
    state: MarketState | None = None,
    *,
    size: int = SIZE,
    first: int = 0,
    lost: Collection[ClientId] = (),
) -> tuple[MarketState, list[Played], ScriptedEngine]:
    """Plays some rounds; returns the last state, the rounds and the engine.

    Args:
        method: IP-FL.
        rounds: How many.
        script: What clients answer.
        clients: How many of them.
        state: Where to start; None: at the beginning.
        size: Length of a model, if it is at the beginning.
        first: Number of the first round.
        lost: Clients whose trainings get lost at the server.
    """
    state = method.init(setup(clients, size=size)) if state is None else state
    engine = ScriptedEngine(script, lost)
    played = []
    for number in range(first, first + rounds):
        played.append(play_round(method, state, engine, clients, number))
        state = played[-1].state
    return state, played, engine


def moved(done: Played, kind: str) -> list[tuple[ClientId, int]]:
    """Client and amount of all transfers of a kind."""
    return [(row.client, row.amount) for row in done.done.market.transfers if row.kind == kind]


def queries(engine: ScriptedEngine) -> list[Mapping[ClientId, Record]]:
    """What was sent with each query for preferences."""
    return [ask.to for ask in engine.asks if ask.action == "preference"]
