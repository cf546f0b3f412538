"""Proposition 1: clients choose the cluster with the least loss, clusters move to the mean of their clients.

The loss is Σ_i Σ_j (β_{k(i)} − z_ij)². With a client's mean μ̂_i it is Σ_i n_i (β_{k(i)} − μ̂_i)² plus a
constant that no choice changes. A client's choice cannot increase its part; the new centre, the mean of
its clients' μ̂_i weighted by n_i, is the minimum of its cluster's part. So the loss never rises, and a choice
that changes lowers it (a client stays where it is unless another cluster is strictly better). There are at
most K^m choices and none returns: the iteration stops. What it reaches is a local minimum, which depends
on the start; the proposition says nothing more.

The loss that the appendix prints weights Σ_j (β − z_ij)² once more by n_i/n. Its minimum has the weights
n_i², not the printed n_i, and with clients of unequal size the printed step can raise it
(tests/theory/test_clustering.py has the smallest example).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipfl.core.arrays import Floats, Ints


@dataclass(frozen=True)
class Iterations:
    """The course of the iteration."""

    losses: list[float]
    """After every choice of the clients and after every move of the centres, in turn."""
    choices: list[Ints]
    """The cluster of each client, by iteration; the last two are equal."""
    centres: Floats
    """At the end."""

    @property
    def steps(self) -> int:
        """Iterations until no client wanted to change; the one that found this out is not counted."""
        return len(self.choices) - 1


def clustering_loss(means: Floats, sizes: Ints, centres: Floats, choice: Ints) -> float:
    """Σ_i n_i (β_{k(i)} − μ̂_i)²."""
    return float((sizes * (centres[choice] - means) ** 2).sum())


def choose_clusters(means: Floats, centres: Floats, now: Ints | None) -> Ints:
    """The nearest centre of each client; of equally near ones its present one, else the first."""
    distances = (means[:, None] - centres[None, :]) ** 2
    nearest: Ints = distances.argmin(axis=1)
    if now is None:
        return nearest
    rows = np.arange(len(means))
    return np.where(distances[rows, now] <= distances[rows, nearest], now, nearest)


def move_centres(means: Floats, sizes: Ints, centres: Floats, choice: Ints) -> Floats:
    """The weighted mean of each cluster's clients; a cluster that nobody chose stays where it is."""
    moved = centres.copy()
    for k in np.unique(choice):
        chosen = choice == k
        moved[k] = np.average(means[chosen], weights=sizes[chosen])
    return moved


def iterate(means: Floats, sizes: Ints, centres: Floats) -> Iterations:
    """Choices and moves in turn, until no client changes."""
    choice = choose_clusters(means, centres, None)
    losses, choices = [clustering_loss(means, sizes, centres, choice)], [choice]
    while True:
        centres = move_centres(means, sizes, centres, choice)
        losses.append(clustering_loss(means, sizes, centres, choice))
        choice = choose_clusters(means, centres, choice)
        choices.append(choice)
        if np.array_equal(choices[-1], choices[-2]):
            return Iterations(losses, choices, centres)
        losses.append(clustering_loss(means, sizes, centres, choice))
