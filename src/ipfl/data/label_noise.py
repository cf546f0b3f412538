"""Clients whose labels are partly wrong: data of graded quality, to see whether a market tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.federated import (
    FederatedData,
    Parts,
    Samples,
    class_names,
    client_names,
    notes,
    target_of,
    tokens_of,
)
from ipfl.errors import InputError


def assign_noise(shares: Sequence[float], clients: int, seed: int) -> NDArray[np.float64]:
    """(N,) share of wrong labels of each client: the given ones in turn, over clients in random order."""
    return stream(seed, "label noise").permutation(np.resize(np.asarray(shares, np.float64), clients))


class NoisyLabels:
    """`FederatedData` in which a share of every client's labels is random; its test data stays as it is.

    Args:
        data: The data with right labels.
        shares: Shares of wrong labels, dealt out to the clients.
        seed: Decides who gets which share, and which labels.
    """

    def __init__(self, data: FederatedData, shares: Sequence[float], seed: int):
        self.data, self.seed = data, seed
        self.name, self.partition, self.input_shape = data.name, data.partition, data.input_shape
        self.classes, self.distributions = data.classes, data.distributions
        self.target, self.tokens = target_of(data), tokens_of(data)
        if self.target.kind != "classes":
            raise InputError(f"task.label_noise draws wrong classes, but the target is {self.target.kind}")
        self.clients, self.unseen = data.clients, data.unseen
        self.client_names, self.class_names, self.notes = client_names(data), class_names(data), notes(data)
        self.encoding = getattr(data, "encoding", None)
        self.noise = assign_noise(shares, len(data.clients) + len(data.unseen), seed)
        self.sizes, self.majority = data.sizes, data.majority
        self.holdout, self.server_holdout = data.holdout, data.server_holdout

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data in that round; the same points have the same wrong labels in all rounds."""
        parts = self.data.parts(client, round)
        goal = "probe" if parts.goal is parts.probe else "goal"
        return Parts(
            self._with_wrong_labels(client, parts.train, "train"),
            self._with_wrong_labels(client, parts.probe, "probe"),
            self._with_wrong_labels(client, parts.goal, goal),
            parts.test,
        )

    def _with_wrong_labels(self, client: int, samples: Samples, part: str) -> Samples:
        rng = stream(self.seed, "wrong labels", client, part)
        is_wrong = rng.random(len(samples.y)) < self.noise[client]
        drawn = rng.integers(0, self.classes, len(samples.y))
        return Samples(samples.x, np.where(is_wrong, drawn, samples.y))
