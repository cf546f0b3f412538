"""The cluster models, their training, and the updates that come back (Algorithm 1, lines 4, 7 and 8).

Who is a copy, who is too long, who agrees with whom, and what is new in an update: all of it follows from one
table of scalar products, of a cluster's updates among themselves and with directions that everybody knows.
The long vectors are read once, block by block, in float64. A known direction is the way from one model to
another; their difference is taken block by block too, as vectors of differences would have to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Replies, Vector, cluster_name
from ipfl.core.arrays import Bools, Floats
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.shared.aggregation import aggregate
from ipfl.methods.shared.cluster_training import TRAINED, ask_seats, collect_updates
from ipfl.methods.shared.robust_rules import clipping_factors

WITH_PROBE = "with_probe"
"""Fact of an ask: the client may train on held-back points too."""
PUBLIC_STEPS = 5
"""Steps of a cluster that the server remembers, and that every buyer of its models knows."""
MOMENTUM = 0.8
"""How much of a running direction stays from round to round."""
STRETCH = 8192
"""Parameters that are read at a time: a dozen rows of them in float64 stay in the processor's cache."""
MIN_INDEPENDENT = 1e-10
"""Least λ, of unit vectors, of a direction of its own; below it what is known is the same up to rounding."""
Way = tuple[Vector, Vector]
"""From one model to another: the direction is their difference, in the precision of the models."""


@dataclass(frozen=True)
class Clusters:
    """The K cluster models and their latest movements."""

    models: tuple[Vector, ...]
    """M_k."""
    directions: tuple[Vector | None, ...]
    """The running direction of each cluster's own steps; None before the first."""
    last_steps: tuple[tuple[Way, ...], ...]
    """The last steps of each model, newest last."""

    @classmethod
    def start(cls, params: Vector, clusters: int) -> Clusters:
        """K equal models."""
        return cls((params,) * clusters, (None,) * clusters, ((),) * clusters)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the clusters."""
        return list(range(len(self.models)))

    @property
    def named(self) -> dict[str, Vector]:
        """The models by name."""
        return {cluster_name(k): model for k, model in enumerate(self.models)}

    def moved(self, models: Sequence[Vector], directions: Sequence[Vector | None]) -> Clusters:
        """The same clusters with new models."""
        for model in models:
            model.flags.writeable = False  # kept for some rounds; a checkpoint writes once what cannot change
        steps = [
            known if new is old else (*known, (old, new))[-PUBLIC_STEPS:]
            for known, old, new in zip(self.last_steps, self.models, models, strict=True)
        ]
        return Clusters(tuple(models), tuple(directions), tuple(steps))

    def public_directions(self, cluster: int) -> list[Way]:
        """Directions that every buyer knows: the cluster's last steps, and the ways to other models."""
        here = self.models[cluster]
        others = (model for k, model in enumerate(self.models) if k != cluster)
        return [*self.last_steps[cluster], *((here, model) for model in others)]


def next_direction(direction: Vector | None, step: Floats) -> Vector:
    """A cluster's running direction after a round in which its model moved by `step`."""
    after = np.zeros(len(step)) if direction is None else direction.astype(np.float64)
    after += step
    after *= MOMENTUM
    return after.astype(np.float32)


def ask_training(run: RunFacts, clusters: Clusters, seats: Bools, round: int) -> Ask:
    """Every client with a seat gets the model of each cluster it has a seat in.

    From the release round on clients may train on held-back points; never where they add noise to their
    reports of these.
    """
    facts = {WITH_PROBE: True} if round >= run.release_round and not run.is_noisy else {}
    return ask_seats("train", TRAINED, run.ids, clusters.models, seats, **facts)


@dataclass(frozen=True)
class UpdateProducts:
    """Products of n updates Δ_i and of m known directions."""

    among: NDArray[np.float64]
    """(n, n) Δ_i·Δ_j."""
    along: NDArray[np.float64]
    """(n, m) of updates and known directions."""
    known: NDArray[np.float64]
    """(m, m) of known directions."""
    has_direction: bool
    """Whether the last known direction is M_k, the running direction of the cluster."""
    size: int
    """P, the length of the vectors."""

    @classmethod
    def of(
        cls, models: Sequence[Vector], before: Vector, known: Sequence[Way], direction: Vector | None
    ) -> UpdateProducts:
        """Of trained models W_i: Δ_i = W_i − before.

        Args:
            models: W_i.
            before: What they were trained from.
            known: Directions that everybody knows, M_k excepted.
            direction: M_k; None: there is none yet.
        """
        n, m = len(models), len(known)
        rows = n + m + (direction is not None)
        table, part = np.zeros((rows, rows)), np.empty((rows, min(STRETCH, len(before))))
        for start in range(0, len(before), STRETCH):
            where = slice(start, min(start + STRETCH, len(before)))
            stretch = part[:, : where.stop - start]
            for row, model in enumerate(models):
                stretch[row] = model[where]
            stretch[:n] -= before[where].astype(np.float64)
            for row, (first, last) in enumerate(known, n):
                stretch[row] = last[where] - first[where]
            if direction is not None:
                stretch[n + m] = direction[where]
            table += stretch @ stretch.T
        return cls(table[:n, :n], table[:n, n:], table[n:, n:], direction is not None, len(before))

    def only(self, which: NDArray[np.bool_]) -> UpdateProducts:
        """Those of some of the updates."""
        among, along = self.among[np.ix_(which, which)], self.along[which]
        return UpdateProducts(among, along, self.known, self.has_direction, self.size)

    @property
    def lengths(self) -> NDArray[np.float64]:
        """(n,) of the updates."""
        return np.asarray(np.sqrt(self.among.diagonal()))

    @property
    def beyond_known(self) -> NDArray[np.float64]:
        """(n, n) products of what is left of the updates without their projection onto what is known.

        With unit vectors b of what is known, and λ and v of the table of their products: an update's
        coordinates in the orthonormal basis Σ_j v_j·b_j / √λ are those of Δ·b.
        """
        square = self.known.diagonal()
        moves = square > 0
        if not moves.any():
            return self.among
        length = np.sqrt(square[moves])
        among = self.known[np.ix_(moves, moves)] / np.outer(length, length)
        values, directions = np.linalg.eigh(among)
        is_basis = values > MIN_INDEPENDENT
        coordinates = (self.along[:, moves] / length) @ directions[:, is_basis] / np.sqrt(values[is_basis])
        return np.asarray(self.among - coordinates @ coordinates.T)


@dataclass(frozen=True)
class ClusterUpdates:
    """U_k: what the providers of one cluster sent, in ascending client id."""

    before: Vector
    """The model that all were trained from."""
    clients: tuple[ClientId, ...]
    models: tuple[Vector, ...]
    """W_i."""
    weights: NDArray[np.float64]
    """n_i, as far as they are believed."""
    is_fair: NDArray[np.bool_]
    """Which of them may count: all, but for copies and extremes in a robust market."""
    products: UpdateProducts
    """Of Δ_i = W_i − ω, among themselves and with what everybody knows."""

    @classmethod
    def of(
        cls,
        before: Vector,
        clients: Sequence[ClientId],
        models: Sequence[Vector],
        weights: NDArray[np.float64],
        known: Sequence[Way] = (),
        direction: Vector | None = None,
    ) -> ClusterUpdates:
        """Updates that all may count; `known` and `direction` are those of `UpdateProducts.of`."""
        products = UpdateProducts.of(models, before, known, direction)
        fair = np.ones(len(clients), bool)
        return cls(before, tuple(clients), tuple(models), weights, fair, products)

    def only(self, which: NDArray[np.bool_]) -> ClusterUpdates:
        """Those of them."""
        kept = np.flatnonzero(which).tolist()
        clients = tuple(self.clients[i] for i in kept)
        models = tuple(self.models[i] for i in kept)
        return ClusterUpdates(
            self.before,
            clients,
            models,
            self.weights[which],
            self.is_fair[which],
            self.products.only(which),
        )

    @property
    def clipping_factors(self) -> NDArray[np.float64]:
        """(n,) what makes each update no longer than their median."""
        return clipping_factors(self.products.lengths, "median")

    def shares(self, *, clip: bool) -> NDArray[np.float64]:
        """(n,) λ_i, what each update is multiplied by in their mean; `clip`: none longer than the median."""
        shares = self.weights / self.weights.sum()
        return np.asarray(shares * self.clipping_factors if clip and self.clients else shares)

    def mean(self, rule: AggregateConfig, *, clip: bool = False) -> Vector:
        """M_k = FedAvg(U_k); the model as it was if there is nothing to make the mean of.

        Args:
            rule: How updates become a model.
            clip: Whether no update may be longer than their median.
        """
        if not self.clients:
            return self.before
        rule = rule.model_copy(update={"clip": "median"}) if clip and rule.clip is None else rule
        return aggregate(self.models, self.weights.tolist(), self.before, rule)


Updates = Mapping[int, ClusterUpdates]
"""By cluster, of those with any update."""


def read_updates(run: RunFacts, clusters: Clusters, seats: Bools, replies: Replies) -> tuple[Updates, Bools]:
    """U_k of every cluster that got any, and the (N, K) seats that delivered.

    Args:
        run: Facts of the run.
        clusters: The models that were trained.
        seats: (N, K) who had a seat where.
        replies: The valid updates.
    """
    received, delivered = collect_updates(run.ids, seats, replies)
    updates = {}
    for k, found in received.items():
        known, direction = clusters.public_directions(k), clusters.directions[k]
        before, weights = clusters.models[k], np.asarray(found.samples)
        updates[k] = ClusterUpdates.of(before, found.clients, found.models, weights, known, direction)
    return updates, delivered
