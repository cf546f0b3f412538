"""Steps that methods share: choosing clients, averaging their replies."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

import numpy as np

from ipfl.aggregation import aggregate
from ipfl.config import AggregateConfig
from ipfl.core import ClientId, Fact, Replies, Roster, Setup, Vector
from ipfl.market.ledger import NO_CLUSTER
from ipfl.params import sound

MEAN = AggregateConfig()


@dataclass(frozen=True)
class OneModel:
    """State of a method whose server keeps one model."""

    params: Vector
    per_round: int
    seed: int
    rule: AggregateConfig = MEAN

    @classmethod
    def of(cls, setup: Setup) -> OneModel:
        """The common start."""
        return cls(setup.params, setup.per_round, setup.seed, setup.aggregate or MEAN)

    def trained(self, params: Vector) -> OneModel:
        """The same with new parameters."""
        return replace(self, params=params)


def choose(roster: Roster, count: int, rng: np.random.Generator) -> list[ClientId]:
    """`count` clients at random without repetition, or all if there are fewer; ascending."""
    count = min(count, len(roster.clients))
    return sorted(int(client) for client in rng.choice(roster.clients, count, replace=False))


def usable(replies: Replies, name: str, size: int) -> Replies:
    """The replies fit for averaging, in ascending id."""
    return {client: replies[client] for client in sorted(replies) if sound(replies[client], name, size)}


def left_out(asked: Iterable[ClientId], kept: Container[ClientId]) -> tuple[str, ...]:
    """An event for everyone who was asked to train and sent nothing that could be used."""
    return tuple(
        f"client {client} sent no usable update; it was left out" for client in asked if client not in kept
    )


def average(replies: Replies, name: str, before: Vector, rule: AggregateConfig = MEAN) -> Vector:
    """One model of the replies' vectors: their mean by sample counts `n`, or what the rule says.

    Broken replies are left out, the others taken in ascending id; the model before stays if there are none.
    """
    kept = usable(replies, name, len(before)).values()
    if not kept:
        return before
    models = [reply.params[name] for reply in kept]
    return aggregate(models, [float(reply.facts["n"]) for reply in kept], before, rule)


def random_seats(chosen: Iterable[ClientId], kept: Container[ClientId]) -> list[list[Fact]]:
    """Who was asked to train and whether it delivered, as rows [client, no cluster, how, delivered]."""
    return [[client, NO_CLUSTER, "random", client in kept] for client in chosen]
