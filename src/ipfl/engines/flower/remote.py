"""The server's view of data that stays on its nodes: who takes part, shape, classes, and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipfl.core import ClientId
from ipfl.data.federated import FederatedData, Parts, Samples

UNKNOWN = {"train": 1, "probe": 1, "goal": 1, "test": 1}
"""Counts of a client that has not said any: they only weigh how often `evaluate.every = "auto"` evaluates."""


@dataclass(frozen=True)
class View:
    """What the server knows of data that it cannot see; a resumed run must begin with the same."""

    clients: tuple[ClientId, ...]
    input_shape: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, data: FederatedData) -> View:
        """What there is to know of some data."""
        return cls(data.clients, data.input_shape, data.classes)


class RemoteData:
    """`FederatedData` without a single sample.

    Args:
        view: Who takes part, and what their points look like.
        said: Number of samples per part, as far as the clients have said.
    """

    name = "remote"
    partition = "own"
    distributions = 0
    """Nobody knows any; so there is none to hold models against."""
    unseen: tuple[ClientId, ...] = ()

    def __init__(self, view: View, said: Mapping[ClientId, Mapping[str, int]] | None = None):
        self.clients, self.input_shape, self.classes = view.clients, view.input_shape, view.classes
        self.said = said or {}

    def parts(self, client: int, round: int = 0) -> Parts:
        """Never: the data stays where it is."""
        raise LookupError(f"the data of client {client} is on its node")

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part."""
        return self.said.get(client, UNKNOWN)

    def majority(self, client: int, round: int = 0) -> int | None:
        """Nobody knows."""
        return None

    def holdout(self, distribution: int) -> Samples:
        """None: an empty pool."""
        return Samples(np.empty((0, *self.input_shape), np.float32), np.empty(0, np.int64))

    def server_holdout(self, distribution: int) -> Samples | None:
        """The server has none."""
        return None
