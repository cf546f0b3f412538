"""Small federations for tests: setups, engines without processes, rounds played through the driver.

Three kinds of clients:
- `ScriptedEngine`: a function per action answers; for full control of the replies.
- `MethodClients` with `client(…)`: real clients whose model has two parameters, so that their training can be
  done by hand. The logits of a point x are (w_0·x, w_1·x). The gradient of its cross entropy is
  (p − onehot(y))·x with p_1 = σ((w_1 − w_0)·x); its Hessian is x²·p_0·p_1·[[1, −1], [−1, 1]]. At w = 0 a
  point (2, class 0) has the gradient (−1, 1), and a point at x = 0 never has any. From w = 0 all training
  keeps w_1 = −w_0.
- `engine_for`: the local engine in this process, on a real task.

`play_round` goes through `ipfl.play.driver`, as every run does: a method sees valid replies only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import ipfl
from ipfl.client.client import Client
from ipfl.config.run_config import RunConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import (
    Ask,
    ClientId,
    Engine,
    Event,
    Method,
    Record,
    Replies,
    Roster,
    Round,
    Setup,
    TaskFacts,
    Vector,
)
from ipfl.data.federated import Parts, Samples
from ipfl.engines import EngineContext
from ipfl.engines.local_engine import LocalEngine
from ipfl.market.market_rows import MarketSetup
from ipfl.play.driver import Traffic, drive
from ipfl.results.result import Result
from ipfl.training.network import Network
from ipfl.training.task import Task

ZERO = np.zeros(2, np.float32)

Answer = Callable[[ClientId, Record], Record | None]
"""A client's reply to a record; None: no reply."""


def sigma(t: float) -> float:
    """The logistic function σ."""
    return 1 / (1 + math.exp(-t))


def points(*pairs: tuple[float, int]) -> Samples:
    """Points (x, class)."""
    x, y = zip(*pairs, strict=True)
    return Samples(np.array(x, np.float32)[:, None], np.array(y, np.int64))


def client(*pairs: tuple[float, int], id: int = 0, action: str = "train", **settings: Any) -> Client:
    """A client with these points to train on; steps of 0.1, one epoch, one batch by default."""
    nothing = Samples(np.empty((0, 1), np.float32), np.empty(0, np.int64))
    return Client(
        id=id,
        round=0,
        action=action,
        seed=0,
        classes=2,
        parts=Parts(points(*pairs), nothing, nothing, nothing),
        network=Network(nn.Linear(1, 2, bias=False), (1,)),
        settings=TrainConfig(**{"lr": 0.1, "epochs": 1} | settings),
        initial=ZERO,
    )


def setup(
    clients: int,
    per_round: int | None = None,
    *,
    task: TaskFacts | None = None,
    config: Mapping[str, Any] | None = None,
    balances: Mapping[ClientId, int] | None = None,
    **others: Any,
) -> Setup:
    """A federation of so many clients of two classes that start at w = 0; five rounds."""
    known = {
        "params": ZERO,
        "clients": tuple(range(clients)),
        "per_round": per_round or clients,
        "seed": 0,
        "task": task or TaskFacts(2),
        "config": RunConfig(**{"rounds": 5} | dict(config or {})),
    }
    if balances is not None:
        return MarketSetup(**known | others, balances=balances)
    return Setup(**known | others)


def engine_for(
    task: Task, method: Method[Any], train: TrainConfig | None = None, seed: int = 0
) -> LocalEngine:
    """The local engine in this process."""
    return LocalEngine(EngineContext(task, method, train or TrainConfig(), seed))


def run_here(
    task: Task,
    method: Method[Any],
    *,
    out: Path | None = None,
    reference: Result | None = None,
    **config: Any,
) -> Result:
    """A whole run in this process; the other keywords are those of `ipfl.RunConfig`."""
    settings = ipfl.RunConfig(**config)
    return ipfl.run(task, method, settings, engine=ipfl.local_engine(workers=0), out=out, reference=reference)


class KeptModels(dict[ClientId, Vector]):
    """Models of single clients in memory: an `ipfl.core.ClientModels`."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Whose models are there."""
        return tuple(sorted(self))

    def put(self, vectors: Mapping[ClientId, Vector], round: int) -> KeptModels:
        """With these models as well."""
        return KeptModels({**self, **vectors})


class RecordingEngine:
    """Keeps every ask and what came back; asks another engine unless a subclass answers itself."""

    def __init__(self, engine: Engine | None = None):
        self.engine = engine
        self.events: list[Event] = []
        self.asks: list[Ask] = []
        self.replies: list[Replies] = []

    def ask(self, ask: Ask, round: int) -> Replies:
        """Replies of all clients that answer."""
        replies = self.answer(ask, round)
        self.asks.append(ask)
        self.replies.append(replies)
        return replies

    def answer(self, ask: Ask, round: int) -> Replies:
        """What the other engine replies."""
        assert self.engine is not None
        return self.engine.ask(ask, round)

    @property
    def actions(self) -> list[str]:
        """What was asked, in order."""
        return [ask.action for ask in self.asks]


class ScriptedEngine(RecordingEngine):
    """Answers by script.

    Args:
        script: A function per action.
        lost: Clients whose trainings get lost with a process of the server's.
    """

    def __init__(self, script: Mapping[str, Answer], lost: Collection[ClientId] = ()):
        super().__init__()
        self.script, self.lost = script, lost

    def answer(self, ask: Ask, round: int) -> Replies:
        """Calls the action's function for every client."""
        lost = [client for client in ask.to if ask.action == "train" and client in self.lost]
        self.events += [Event("worker_died", client, "its process died") for client in lost]
        asked = sorted(set(ask.to) - set(lost))
        replies = {client: self.script[ask.action](client, ask.to[client]) for client in asked}
        return {client: reply for client, reply in replies.items() if reply is not None}


class MethodClients(RecordingEngine):
    """Plays real clients in this process; client i is the one at place i."""

    def __init__(
        self, method: Method[Any], clients: Sequence[Client], memories: Mapping[int, Record] | None = None
    ):
        super().__init__()
        self.method, self.clients = method, clients
        self.memories = dict.fromkeys(range(len(clients)), Record()) | dict(memories or {})
        """What every client remembers."""

    def answer(self, ask: Ask, round: int) -> Replies:
        """Calls the method's `on_<action>` for every client."""
        replies = {}
        for i in sorted(ask.to):
            act = getattr(self.method, f"on_{ask.action}")
            replies[i], self.memories[i] = act(ask.to[i], self.memories[i], self.clients[i])
        return replies


@dataclass
class Played:
    """A round that was played."""

    done: Round[Any]
    traffic: Traffic
    engine: RecordingEngine = field(repr=False)

    @property
    def state(self) -> Any:
        """The state after the round."""
        return self.done.state

    @property
    def replies(self) -> Replies:
        """What came back in the last phase, valid or not."""
        return self.engine.replies[-1]

    @property
    def events(self) -> list[Event]:
        """Of the method, and of the boundary."""
        return [*self.done.events, *self.traffic.events()]

    @property
    def kinds(self) -> list[tuple[str, ClientId | None]]:
        """Kind and client of every event."""
        return [(event.kind, event.client) for event in self.events]

    @property
    def seats(self) -> list[tuple[Any, ...]]:
        """Client, cluster, how and whether it delivered, of all seats."""
        return [(seat.client, seat.cluster, seat.how, seat.delivered) for seat in self.done.seats]


def play_round(
    method: Method[Any],
    state: Any,
    engine: RecordingEngine,
    clients: int | Sequence[ClientId],
    round: int = 0,
    max_weight: float | None = None,
) -> Played:
    """One round through the driver."""
    roster = Roster(tuple(range(clients)) if isinstance(clients, int) else tuple(clients))
    traffic = Traffic()
    done = drive(method.round(state, roster, round), engine, round, traffic, max_weight=max_weight)
    return Played(done, traffic, engine)


def train_round(
    method: Method[Any],
    state: Any,
    clients: Sequence[Client],
    memories: Mapping[int, Record] | None = None,
) -> tuple[Played, dict[int, Record]]:
    """One round of real clients that are all there: what it brought, and what they remember afterwards."""
    engine = MethodClients(method, clients, memories)
    return play_round(method, state, engine, len(clients)), engine.memories


def answer_round(
    method: Method[Any],
    state: Any,
    replies: Mapping[ClientId, Record],
    clients: int | Sequence[ClientId] | None = None,
    round: int = 0,
    **other_actions: Mapping[ClientId, Record],
) -> Played:
    """One round with these replies to `train`, and with these to other actions; by default from all asked."""
    script = {"train": replies} | other_actions
    engine = ScriptedEngine({action: _reply_with(given) for action, given in script.items()})
    return play_round(method, state, engine, len(replies) if clients is None else clients, round)


def _reply_with(replies: Mapping[ClientId, Record]) -> Answer:
    return lambda client, _: replies.get(client)


def first_ask(method: Method[Any], state: Any, clients: int | Sequence[ClientId], round: int = 0) -> Ask:
    """What a round asks first."""
    roster = Roster(tuple(range(clients)) if isinstance(clients, int) else tuple(clients))
    return next(method.round(state, roster, round))
