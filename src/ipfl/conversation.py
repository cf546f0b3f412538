"""The conversation of one round: what goes over the wire, who fell silent, and what is fit to be read.

Every reply is looked at here, before any method sees it: a number that is not finite, or beyond all measure,
makes the whole reply unreadable, as if it had not come. Methods check what only they can know (shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ipfl.core import Ask, Bytes, ClientId, Engine, Fact, Record, Replies, Round
from ipfl.params import measured

S = TypeVar("S")
Fit = Callable[[Record], bool]

MOST = 2**53
"""Largest fact: up to here a float64 counts without gaps; what is beyond was not counted."""


@dataclass
class Traffic(Bytes):
    """What went over the wire in a round, seen from the server."""

    silent: set[ClientId] = field(default_factory=set)
    """Clients that were asked and did not answer."""
    unreadable: set[ClientId] = field(default_factory=set)
    """Clients that sent a number which is not finite, or beyond all measure."""

    def take(self, ask: Ask, replies: Replies, fit: Fit) -> Replies:
        """Counts a phase and returns the replies that can be read."""
        broken = {client for client, reply in replies.items() if client >= 0 and not fit(reply)}
        self.down += sum(record.nbytes for client, record in ask.to.items() if client >= 0)
        self.up += sum(record.nbytes for client, record in replies.items() if client >= 0)
        self.silent |= {client for client in ask.to if client >= 0 and client not in replies}
        self.unreadable |= broken
        return {c: reply for c, reply in replies.items() if c not in broken} if broken else replies

    def events(self) -> list[str]:
        """What a person should know of it."""
        return [
            *(f"client {client} did not answer" for client in sorted(self.silent)),
            *(f"client {client} sent a broken reply; it was not read" for client in sorted(self.unreadable)),
        ]


def readable(reply: Record) -> bool:
    """Whether all vectors and facts of a reply are finite and within measure."""
    vectors = all(
        isinstance(vector, np.ndarray)
        and vector.dtype == np.float32
        and vector.ndim == 1
        and measured(vector)
        for vector in reply.params.values()
    )
    return vectors and all(map(_counted, reply.facts.values()))


def _counted(fact: Fact) -> bool:
    if isinstance(fact, list | tuple):
        return all(map(_counted, fact))
    return not isinstance(fact, int | float) or abs(fact) <= MOST  # no comparison is true of NaN


def came_to_nothing(seats: Sequence[Sequence[Any]], least: int) -> bool:
    """Whether fewer than `least` clients delivered of those who were to train.

    A round in which nobody was to train has nothing to take back: a market in which nobody can pay for now
    must be able to go on.

    Args:
        seats: Rows [client, cluster, how, delivered] of a round's line.
        least: `train.min_clients`.
    """
    return bool(seats) and len({client for client, _, _, delivered in seats if delivered}) < least


def converse(
    talk: Generator[Ask, Replies, Round[S]],
    engine: Engine,
    round: int,
    traffic: Traffic,
    fit: Fit = lambda reply: True,
) -> Round[S]:
    """Carries one round's asks to the engine and the replies back, until the round is done.

    Args:
        talk: The method's round.
        engine: Who asks the clients.
        round: Its number.
        traffic: Where it is counted.
        fit: Whether the method is shown a reply: `readable`, or all of them.
    """
    try:
        ask = next(talk)
        while True:
            ask = talk.send(traffic.take(ask, engine.ask(ask, round), fit))
    except StopIteration as done:
        finished: Round[S] = done.value
        return finished
