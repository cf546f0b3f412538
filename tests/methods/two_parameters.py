"""Real clients whose model has two parameters, so that their training can be done by hand.

The logits of a point x are (w_0·x, w_1·x). The gradient of its cross entropy is (p − onehot(y))·x with
p_1 = σ((w_1 − w_0)·x); its Hessian is x²·p_0·p_1·[[1, −1], [−1, 1]]. At w = 0 a point (2, class 0) has the
gradient (−1, 1), and a point at x = 0 never has any. From w = 0 all training keeps w_1 = −w_0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from ipfl.client.client import Client
from ipfl.client.network import Network
from ipfl.client.settings import TrainConfig
from ipfl.core import Method, Record, Replies, Roster, Round, Setup
from ipfl.data.federated import Parts, Samples

ZERO = np.zeros(2, np.float32)


def sigma(t: float) -> float:
    """The logistic function σ."""
    return 1 / (1 + math.exp(-t))


def points(*pairs: tuple[float, int]) -> Samples:
    """Points (x, class)."""
    x, y = zip(*pairs, strict=True)
    return Samples(np.array(x, np.float32)[:, None], np.array(y, np.int64))


def client(*pairs: tuple[float, int], id: int = 0, action: str = "train", **settings: Any) -> Client:
    """A client with these points to train on; steps of 0.1, one epoch, one batch unless told otherwise."""
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


def setup(clients: int, per_round: int | None = None, seed: int = 0) -> Setup:
    """A federation of so many clients that start at w = 0."""
    return Setup(ZERO, tuple(range(clients)), per_round or clients, rounds=5, classes=2, seed=seed)


def play(
    method: Method[Any], state: Any, clients: list[Client], minds: Mapping[int, Record] | None = None
) -> tuple[Round[Any], Replies, dict[int, Record]]:
    """One round in which everyone trains: what it hands back, the replies, and what the clients remember."""
    minds = minds or {}
    talk = method.round(state, Roster(tuple(range(len(clients)))), 0)
    ask = next(talk)
    assert ask.action == "train"
    empty = Record()
    said = {i: method.on_train(ask.to[i], minds.get(i, empty), clients[i]) for i in sorted(ask.to)}
    try:
        talk.send({i: reply for i, (reply, _) in said.items()})
    except StopIteration as end:
        return end.value, {i: r for i, (r, _) in said.items()}, {i: m for i, (_, m) in said.items()}
    raise AssertionError("the round asked for more")
