"""Scripted clients of IP-FL, and rounds played with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tests import federation
from tests.federation import Answer, Played, ScriptedEngine, play_round

from ipfl.core import ClientId, Record, Setup
from ipfl.methods.ipfl.method import IPFL
from ipfl.methods.ipfl.state import MarketState

SIZE = 3


def train(client: ClientId, ask: Record) -> Record:
    """Every model moves by the client's number in every coordinate; all have 10 samples."""
    return Record({name: model + np.float32(client) for name, model in ask.params.items()}, {"n": 10})


def appraise(client: ClientId, ask: Record) -> Record:
    """Half of 10 points right, gradient −1: the larger a client's update, the larger its contribution."""
    gradients = {name: -np.ones(SIZE, np.float32) for name in ask.params} if ask.facts["gradient"] else {}
    return Record(gradients, {name: [5.0, 10.0] for name in ask.params})


def prefer_parity(client: ClientId, ask: Record) -> Record:
    """Even clients are good at cluster 0, odd ones at cluster 1."""
    mine = client % 2
    hits = [9.0 if k == mine else 1.0 for k in ask.facts["clusters"]]
    return Record({}, {"bids": [mine], "hits": hits, "n": 10})


HONEST: dict[str, Answer] = {"train": train, "appraise": appraise, "preference": prefer_parity}


def setup(clients: int = 8, per_round: int = 6) -> Setup:
    """A federation of models with three parameters."""
    return federation.setup(clients, per_round, params=np.zeros(SIZE, np.float32))


def play(
    method: IPFL,
    rounds: int,
    script: Mapping[str, Answer] = HONEST,
    clients: int = 8,
    state: MarketState | None = None,
) -> tuple[MarketState, list[Played], ScriptedEngine]:
    """Plays some rounds; returns the last state, the rounds and the engine."""
    state = method.init(setup(clients)) if state is None else state
    engine = ScriptedEngine(script)
    played = []
    for number in range(rounds):
        played.append(play_round(method, state, engine, clients, number))
        state = played[-1].state
    return state, played, engine
