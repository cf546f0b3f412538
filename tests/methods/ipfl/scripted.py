"""An engine without clients: a function per action answers. For tests that need full control of replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ipfl.core import Ask, ClientId, Record, Replies, Roster, Round, Setup
from ipfl.methods.ipfl.method import IPFL
from ipfl.methods.ipfl.state import MarketState
from ipfl.runs.loop import Traffic, drive

Answer = Callable[[ClientId, Record], Record | None]
SIZE = 3


def train(client: ClientId, ask: Record) -> Record:
    """Every model moves by the client's number in every coordinate; all have 10 samples."""
    return Record({name: model + np.float32(client) for name, model in ask.params.items()}, {"n": 10})


def appraise(client: ClientId, ask: Record) -> Record:
    """Half of 10 points right, gradient −1: the larger a client's update, the larger its contribution."""
    gradients = {name: -np.ones(SIZE, np.float32) for name in ask.params} if ask.facts["gradient"] else {}
    return Record(gradients, {name: [5.0, 10] for name in ask.params})


def prefer_parity(client: ClientId, ask: Record) -> Record:
    """Even clients are good at cluster 0, odd ones at cluster 1."""
    mine = client % 2
    return Record(
        {}, {"bids": [mine], "hits": [9.0 if k == mine else 1.0 for k in ask.facts["clusters"]], "n": 10}
    )


@dataclass
class ScriptedEngine:
    """Answers by script and keeps every ask."""

    script: Mapping[str, Answer]
    asks: list[Ask] = field(default_factory=list)

    def ask(self, ask: Ask, round: int) -> Replies:
        """Replies of all that answer."""
        self.asks.append(ask)
        said = {client: self.script[ask.action](client, ask.to[client]) for client in sorted(ask.to)}
        return {client: reply for client, reply in said.items() if reply is not None}

    @property
    def actions(self) -> list[str]:
        """What was asked, in order."""
        return [ask.action for ask in self.asks]


HONEST: dict[str, Answer] = {"train": train, "appraise": appraise, "preference": prefer_parity}


def setup(clients: int = 8, per_round: int = 6, seed: int = 0) -> Setup:
    """A federation of models with three parameters."""
    return Setup(np.zeros(SIZE, np.float32), tuple(range(clients)), per_round, 10, 2, seed)


def play(
    method: IPFL,
    rounds: int,
    script: Mapping[str, Answer] = HONEST,
    clients: int = 8,
    state: MarketState | None = None,
) -> tuple[MarketState, list[Round[MarketState]], ScriptedEngine]:
    """Plays some rounds; returns the last state, the rounds and the engine."""
    state = method.init(setup(clients)) if state is None else state
    engine = ScriptedEngine(script)
    done = []
    for number in range(rounds):
        done.append(
            drive(method.round(state, Roster(tuple(range(clients))), number), engine, number, Traffic())
        )
        state = done[-1].state
    return state, done, engine
