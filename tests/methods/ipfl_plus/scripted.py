"""Scripted clients of IP-FL, and rounds played with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from tests import federation
from tests.federation import Answer, KeptModels, Played, ScriptedEngine, play_round

from ipfl.core import ClientId, Record, Setup
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.market_state import MarketState

SIZE = 3


UNDISTURBED = {"robust": False, "contribution": "loo", "subsidy": 0, "trial_rounds": 0, "share": 0.0}
"""Settings that make a round's tokens easy to derive by hand."""


def paper(**settings: Any) -> IPFL:
    """IP-FL with the rules as they are printed."""
    return IPFL(preset="paper", **settings)


def market(**settings: Any) -> IPFL:
    """IP-FL as it is now, with contributions that can be read off the updates: by leaving one out.

    Client i adds i to every coordinate, and a model is the better the larger it is. So who adds more than the
    mean of the other providers contributes something, and who adds less takes something away. Without
    screening, which would take updates in one direction for copies, without a subsidy (all that is earned was
    paid by somebody) and without free rounds.
    """
    return IPFL(**{**UNDISTURBED, **settings})


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


def loss(client: ClientId, ask: Record) -> Record:
    """The larger a model, the better."""
    soft = [5 + float(model.mean()) / 1000 for model in ask.params.values()]
    return Record({}, {"loss": soft, "soft": soft, "n": 10})


HONEST: dict[str, Answer] = {
    "train": train,
    "appraise": appraise,
    "preference": prefer_parity,
    "loss": loss,
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
    return federation.setup(clients, per_round, params=start, client_models=KeptModels(), **others)


def play(
    method: IPFL,
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
