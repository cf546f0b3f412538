"""Steps that methods share: choosing clients, what an update must hold, averaging, models of single clients."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import numpy as np

from ipfl.client.settings import TrainConfig
from ipfl.core import NO_CLUSTER, ClientId, ClientModels, Replies, Roster, Seat, Setup, Vector
from ipfl.core.replies import Count, ReplySchema, VectorSizes
from ipfl.core.sections import AggregateConfig
from ipfl.errors import NotSupportedError
from ipfl.methods.aggregation import aggregate


def expect_update(vectors: VectorSizes) -> ReplySchema:
    """A valid update: these vectors, and the number of samples that they were trained on."""
    return ReplySchema({"n": Count}, vectors)


def choose(roster: Roster, count: int, rng: np.random.Generator) -> list[ClientId]:
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


def average(replies: Replies, name: str, before: Vector, rule: AggregateConfig) -> Vector:
    """One model of the replies' vectors: their mean by sample counts `n`, or what the rule says.

    Replies are taken in ascending id; the model before stays if there are none.
    """
    if not replies:
        return before
    kept = [replies[client] for client in sorted(replies)]
    counts = [float(reply.facts["n"]) for reply in kept]
    return aggregate([reply.params[name] for reply in kept], counts, before, rule)


def client_models(setup: Setup) -> ClientModels:
    """The server's store of single clients' models, for methods that cannot do without."""
    if setup.client_models is None:
        raise ValueError("this setup has no store for models of single clients")
    return setup.client_models


def refuse_strangers(client: ClientId, known: Container[ClientId], why: str) -> None:
    """Says that a method has no model for a client that never belonged to the federation."""
    if client not in known:
        raise NotSupportedError(f"not supported by this method: a model for a client it never met ({why})")


def training_passes(epochs: int | None) -> int:
    """What `personalize_cost` says of so many epochs; None for as many as in a training.

    The server does not know the length of the clients' training; the default stands for it.
    """
    return 3 * (TrainConfig().epochs if epochs is None else epochs)
