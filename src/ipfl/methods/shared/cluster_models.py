"""The base of methods whose server keeps K models that all clients get: IFCA, FedEM, FedSoft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client, Part
from ipfl.config.sections import AggregateConfig
from ipfl.core import ClientId, Method, Record, Replies, Setup, Vector, cluster_name, stream
from ipfl.methods.shared.steps import average_models, mean_losses


@dataclass(frozen=True)
class ClusterModels:
    """K models of a server: the state of a method, or what its state extends."""

    models: tuple[Vector, ...]
    per_round: int
    seed: int
    rule: AggregateConfig

    @classmethod
    def start(cls, setup: Setup, count: int, **others: Any) -> Self:
        """So many models with different random parameters; the other fields of a subclass by name."""
        models = tuple(setup.start(k) for k in range(count))
        return cls(models, setup.per_round, setup.seed, setup.config.aggregate, **others)

    @property
    def named(self) -> dict[str, Vector]:
        """The models as they travel and are evaluated: `cluster_0`, `cluster_1` and so on."""
        return {cluster_name(k): model for k, model in enumerate(self.models)}

    @property
    def size(self) -> int:
        """Number of parameters of one model."""
        return len(self.models[0])

    def updated(self, updates: Sequence[Replies], name: str | None = None, *, equal: bool = False) -> Self:
        """Every model replaced by the mean of its updates; one without updates stays.

        Args:
            updates: Per cluster the replies that count for it.
            name: What the trained model is called in all of them; None: as the cluster's model was sent.
            equal: Whether all replies of a cluster weigh the same, whatever their numbers of samples.
        """
        models = (
            average_models(replies, name or cluster_name(k), self.models[k], self.rule, equal=equal)
            for k, replies in enumerate(updates)
        )
        return replace(self, models=tuple(models))


S = TypeVar("S", bound=ClusterModels)


class ClusterModelsMethod(Method[S], Generic[S]):
    """Everyone gets all K models, and makes its own choice or mixture of them."""

    def offer(self, state: S, client: ClientId) -> Record:
        """All K models, for everyone."""
        return Record(state.named)

    def models(self, state: S) -> dict[str, Vector]:
        """The K models."""
        return state.named


def read_models(record: Record) -> list[Vector]:
    """The K models of a record, in the order of their clusters."""
    return [record.params[cluster_name(k)] for k in range(len(record.params))]


def best_model(models: Sequence[Vector], me: Client, part: Part) -> tuple[int, Vector]:
    """The cluster whose model has the lowest mean loss (the first of several), and the model."""
    cluster = int(mean_losses(models, me, part).argmin())
    return cluster, models[cluster]


def draw_per_cluster(shares: NDArray[np.float64], per_round: int, seed: int, round: int) -> list[list[int]]:
    """Rows of the clients drawn for each cluster, by their shares; no cluster draws a client twice.

    The clusters draw in turn, another one first in each round: `per_round` times in all, and then until
    `per_round` different clients (or everyone) are drawn, as several clusters may draw the same one.

    Args:
        shares: (N, K) how likely a client is drawn for a cluster, relative to the others; above 0.
        per_round: Different clients in all.
        seed: Of the run.
        round: Number of the round.
    """
    n, clusters = shares.shape
    # Sorted by such times, each next one is drawn in proportion to the shares of those left.
    with np.errstate(divide="ignore", over="ignore"):
        times = stream(seed, "select", round).exponential(size=shares.shape) / shares
    orders = times.argsort(axis=0, kind="stable").T.tolist()
    drawn: list[list[int]] = [[] for _ in range(clusters)]
    different: set[int] = set()
    for turn in range(n * clusters):
        if turn >= per_round and len(different) >= min(per_round, n):
            break
        place, behind = divmod(turn, clusters)
        cluster = (round + behind) % clusters
        drawn[cluster].append(orders[cluster][place])
        different.add(orders[cluster][place])
    return drawn
