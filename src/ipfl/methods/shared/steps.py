"""Steps that methods share: choosing clients, valid updates, averaging, losses, models of single clients."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client, Part
from ipfl.config.sections import AggregateConfig
from ipfl.core import NO_CLUSTER, ClientId, Record, Replies, Roster, Seat, Vector, stream
from ipfl.core.replies import Count, ReplySchema, VectorSizes
from ipfl.errors import NotSupportedError
from ipfl.methods.shared.aggregation import aggregate

V = TypeVar("V")
WORST_LOSS = 1e30
"""Stands for a loss that is not a number: larger than any other, and still good for arithmetic."""


def expect_update(vectors: VectorSizes) -> ReplySchema:
    """A valid update: these vectors, and the number of samples that they were trained on, its weight."""
    return ReplySchema({"n": Count}, vectors, weight="n")


def select_clients(roster: Roster, per_round: int, seed: int, round: int) -> list[ClientId]:
    """The clients that train in a round: random ones, ascending."""
    return draw_clients(roster, per_round, stream(seed, "select", round))


def draw_clients(roster: Roster, count: int, rng: np.random.Generator) -> list[ClientId]:
    """`count` clients at random without repetition, or all if there are fewer; ascending."""
    count = min(count, len(roster.clients))
    return sorted(int(client) for client in rng.choice(roster.clients, count, replace=False))


def random_seats(
    chosen: Iterable[ClientId],
    delivered: Container[ClientId],
    clusters: Mapping[ClientId, int] | None = None,
) -> tuple[Seat, ...]:
    """Seats of clients that were chosen at random; the cluster is the one that each trained for, if any."""
    trained = clusters or {}
    return tuple(Seat(c, trained.get(c, NO_CLUSTER), "random", c in delivered) for c in chosen)


def average_models(
    replies: Replies, name: str, before: Vector, rule: AggregateConfig, *, equal: bool = False
) -> Vector:
    """One model of the replies' vectors: their mean by sample counts `n`, or what the rule says.

    Replies are taken in ascending id; the model before stays if there are none.

    Args:
        replies: What came back.
        name: Of the vector in each of them.
        before: The model that they were trained from.
        rule: How they become one model.
        equal: Whether all weigh the same, instead of by sample counts.
    """
    if not replies:
        return before
    ordered = [replies[client] for client in sorted(replies)]
    weights = [1.0 if equal else float(reply.facts["n"]) for reply in ordered]
    return aggregate([reply.params[name] for reply in ordered], weights, before, rule)


def merge(earlier: Mapping[ClientId, V], later: Mapping[ClientId, V]) -> dict[ClientId, V]:
    """What is known of clients, the later value of each, in ascending id."""
    return dict(sorted({**earlier, **later}.items()))


def loss_table(models: Sequence[Vector], me: Client, part: Part) -> NDArray[np.float64]:
    """(models, n): loss of every point of one part under every model."""
    table = np.stack([me.losses(model, part) for model in models])
    return np.nan_to_num(table, nan=WORST_LOSS, posinf=WORST_LOSS)


def mean_losses(models: Sequence[Vector], me: Client, part: Part) -> NDArray[np.float64]:
    """(models,): mean loss of one part under every model."""
    return np.asarray(loss_table(models, me, part).mean(axis=1))


class RecordsOnDemand(Mapping[ClientId, Record]):
    """Records of an ask that are made when they are looked at and not kept: one at a time is in memory."""

    def __init__(self, clients: Sequence[ClientId], make: Callable[[ClientId], Record]):
        self.clients, self.make = clients, make

    def __getitem__(self, client: ClientId) -> Record:
        return self.make(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def refuse_strangers(client: ClientId, known: Container[ClientId], why: str) -> None:
    """Raises an error for a client that never belonged to the federation: the method has no model for it."""
    if client not in known:
        raise NotSupportedError(f"not supported by this method: a model for a client it never met ({why})")
