"""Steps that methods share: choosing clients, averaging their replies, FedAvg's round as a whole."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ipfl.aggregation import aggregate
from ipfl.client import Client, Part
from ipfl.config import AggregateConfig, TrainConfig
from ipfl.core import Ask, ClientId, Fact, Record, Replies, Roster, Round, Setup, Vector, stream
from ipfl.errors import NotSupportedError
from ipfl.market.economy import cluster_name
from ipfl.market.ledger import NO_CLUSTER
from ipfl.params import sound
from ipfl.shelf import Shelf

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

    @property
    def named(self) -> dict[str, Vector]:
        """The model as it travels and is evaluated: `global`."""
        return {"global": self.params}


@dataclass(frozen=True)
class SeveralModels:
    """State of a method whose server keeps K models, or a part of it."""

    models: tuple[Vector, ...]
    per_round: int
    seed: int
    rule: AggregateConfig = MEAN

    @classmethod
    def of(cls, setup: Setup, count: int, first: int = 0) -> SeveralModels:
        """As many models that start differently, from the setup's start number `first` on."""
        starts = tuple(setup.start(first + k) for k in range(count))
        return cls(starts, setup.per_round, setup.seed, setup.aggregate or MEAN)

    @property
    def named(self) -> dict[str, Vector]:
        """The models as they travel and are evaluated: `cluster_0`, `cluster_1` and so on."""
        return {cluster_name(k): model for k, model in enumerate(self.models)}

    @property
    def size(self) -> int:
        """Number of parameters of one model."""
        return len(self.models[0])


WORST = 1e30
"""Stands for a loss that is not a number: worse than any other, and still good for arithmetic."""


def loss_table(models: Mapping[str, Vector], me: Client, part: Part) -> NDArray[np.float64]:
    """(K, n): cross entropy of every point of one part under `cluster_0`, `cluster_1` and so on."""
    table = np.stack([me.losses(models[cluster_name(k)], part) for k in range(len(models))])
    return np.nan_to_num(table, nan=WORST, posinf=WORST)


def shelf_of(setup: Setup) -> Shelf:
    """The server's shelf, for methods that cannot do without."""
    if setup.shelf is None:
        raise ValueError("this setup has no shelf for models of single clients")
    return setup.shelf


def refuse_strangers(client: ClientId, known: Container[ClientId], why: str) -> None:
    """Says that a method has no model for a client that never belonged to the federation."""
    if client not in known:
        raise NotSupportedError(f"not supported by this method: a model for a client it never met ({why})")


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


def random_seats(
    chosen: Iterable[ClientId], kept: Container[ClientId], clusters: Mapping[ClientId, int] | None = None
) -> list[list[Fact]]:
    """Who was asked to train and whether it delivered, as rows [client, cluster, how, delivered].

    The cluster is the one that a client trained for, if it did; else it is `NO_CLUSTER`.
    """
    trained = clusters or {}
    return [[client, trained.get(client, NO_CLUSTER), "random", client in kept] for client in chosen]


Facts = Mapping[str, Fact]
"""Named facts of one record."""


def fedavg_round(
    state: OneModel,
    roster: Roster,
    round: int,
    facts: Callable[[list[ClientId]], Mapping[ClientId, Facts]] = lambda chosen: {},
) -> Generator[Ask, Replies, Round[OneModel]]:
    """A round of FedAvg: random clients train the model `global`, the mean of their replies replaces it.

    Args:
        state: The model before.
        roster: Who can be asked.
        round: Number of the round.
        facts: What else each of the chosen is told.
    """
    chosen = choose(roster, state.per_round, stream(state.seed, "select", round))
    told = facts(chosen)
    replies = yield Ask("train", {client: Record(state.named, told.get(client, {})) for client in chosen})
    kept = usable(replies, "global", len(state.params))
    after = state.trained(average(kept, "global", state.params, state.rule))
    return Round(after, {"seats": random_seats(chosen, kept)}, left_out(chosen, kept))


def global_update(model: Vector, me: Client) -> Record:
    """A client's reply in `fedavg_round`: its copy of the model, weighed by its number of samples."""
    return Record({"global": model}, {"n": len(me.data("train"))})


def training_passes(epochs: int | None) -> int:
    """What `Method.scorings` says of so many epochs in `personalize`; None for as many as in a training.

    The server does not know the length of the clients' training; the default stands for it.
    """
    return 3 * (TrainConfig().epochs if epochs is None else epochs)
