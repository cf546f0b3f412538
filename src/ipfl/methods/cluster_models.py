"""The base of methods whose server keeps K models that all clients get: IFCA, FedEM, FedSoft."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client, Part
from ipfl.core import ClientId, Method, Record, Setup, Vector, cluster_name
from ipfl.core.sections import AggregateConfig

S = TypeVar("S")
WORST_LOSS = 1e30
"""Stands for a loss that is not a number: worse than any other, and still good for arithmetic."""


@dataclass(frozen=True)
class ClusterModels:
    """K models of a server, as a method's state or a part of it."""

    models: tuple[Vector, ...]
    per_round: int
    seed: int
    rule: AggregateConfig

    @classmethod
    def start(cls, setup: Setup, count: int, first: int = 0) -> ClusterModels:
        """As many models that start differently, from the setup's start number `first` on."""
        starts = tuple(setup.start(first + k) for k in range(count))
        return cls(starts, setup.per_round, setup.seed, setup.aggregate)

    @property
    def named(self) -> dict[str, Vector]:
        """The models as they travel and are evaluated: `cluster_0`, `cluster_1` and so on."""
        return {cluster_name(k): model for k, model in enumerate(self.models)}

    @property
    def size(self) -> int:
        """Number of parameters of one model."""
        return len(self.models[0])


class ClusterModelsMethod(Method[S], Generic[S]):
    """Everyone gets all K models, and makes its own choice or mixture of them."""

    @abstractmethod
    def cluster_models(self, state: S) -> ClusterModels:
        """The K models of a state."""

    def offer(self, state: S, client: ClientId) -> Record:
        """All K models, for everyone."""
        return Record(self.cluster_models(state).named)

    def models(self, state: S) -> dict[str, Vector]:
        """The K models."""
        return self.cluster_models(state).named

    def personalize_cost(self, state: S) -> int:
        """Every model is scored once."""
        return len(self.cluster_models(state).models)


def loss_table(models: Mapping[str, Vector], me: Client, part: Part) -> NDArray[np.float64]:
    """(K, n): cross entropy of every point of one part under `cluster_0`, `cluster_1` and so on."""
    table = np.stack([me.losses(models[cluster_name(k)], part) for k in range(len(models))])
    return np.nan_to_num(table, nan=WORST_LOSS, posinf=WORST_LOSS)


def best_model(models: Mapping[str, Vector], me: Client, part: Part) -> tuple[int, str]:
    """The cluster whose model has the lowest mean loss (the first of several), and the model's name."""
    cluster = int(loss_table(models, me, part).mean(axis=1).argmin())
    return cluster, cluster_name(cluster)
