"""Sharing: cluster models share as much of a round's steps as chance explains of their differences.

The paper's clusters share nothing.

Where one model can serve everybody, clusters split data that all could use. The theory says when a cluster
pays (remark R1): if the distributions differ by more than an estimate from fewer clients does by chance. Both
can be measured on the updates of a round, and nobody needs to be asked.

Cluster k moves by Δ_k, the mean of its providers' updates. Steps of different clusters differ because their
data does, and because each is a mean of few clients. The variance of that mean is v_k = σ²·Σ_i λ_i², with σ²
the mean squared distance of an update from the mean of all updates to the same cluster. So (empirical Bayes,
the estimator of James and Stein)

    Δ_k ← (1 − s)·Δ_k + s·Δ̄,    s = V / B,

where Δ̄ is the mean of the clusters' steps, B their mean squared distance from it, and V the mean of v_k.

One round says little. What is systematic adds up over rounds and chance does not: instead of steps, B takes
the running directions M_k ← 0.8·(M_k + Δ_k), and V_k ← 0.8²·(V_k + v_k).

In a round in which all updates go to one cluster nothing can be compared, and s is that of the round before:
the other models follow as far as they did, instead of staying behind where nobody would train them again. But
only once every model has moved in some rounds: models that follow from the beginning never part, and a few
clients that all want one cluster could keep them one (docs/adversaries.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.core import Vector
from ipfl.core.arrays import Floats
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.updates import (
    MOMENTUM,
    PUBLIC_STEPS,
    Clusters,
    ClusterUpdates,
    Updates,
    next_direction,
)

MIN_OWN = 0.55
"""Weight of a cluster's own step in what it moves by, at least. Models that share everything stay equal for
ever: clients could not prefer one, their clusters would stay mixed, and no difference would ever show."""


@dataclasses.dataclass(frozen=True)
class SharingRecord:
    """What chance does to the clusters' directions, and how much they shared of the last step."""

    chance: NDArray[np.float64]
    """(K,) V_k, the variance of the running directions by chance."""
    share: float = 0.0
    """s of the last round."""

    @classmethod
    def start(cls, k: int) -> SharingRecord:
        """Nothing has moved."""
        return cls(np.zeros(k))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Sharing:
    """How far cluster models move together."""

    rule: Literal["chance", "paper"] = Field(
        default="chance",
        description="chance: clusters share as much of their steps as chance explains of what sets them "
        "apart; paper: nothing",
    )

    def move(
        self, clusters: Clusters, record: SharingRecord, updates: Updates, run: RunFacts, *, clip: bool
    ) -> tuple[Clusters, SharingRecord]:
        """M_k = FedAvg(U_k), and what clusters share of it.

        A cluster with too few updates does not move by itself; who delivered them is paid nevertheless.

        Args:
            clusters: The models before the round.
            record: Of earlier rounds.
            updates: Those that count.
            run: Facts of the run.
            clip: Whether no update counts for more than the median length of its cluster.
        """
        enough = {k: found for k, found in updates.items() if len(found.clients) >= run.rule.fewest}
        new = {k: found.mean(run.rule, clip=clip) for k, found in enough.items()}
        return self.share_steps(clusters, record, new, variances(enough, clip=clip))

    def share_steps(
        self,
        clusters: Clusters,
        record: SharingRecord,
        new: Mapping[int, Vector],
        variance: Mapping[int, float],
    ) -> tuple[Clusters, SharingRecord]:
        """Moves the cluster models.

        A cluster without updates of its own takes part in the common step of the others.

        Args:
            clusters: The models before the round.
            record: Of earlier rounds.
            new: Where each cluster that got updates would move alone.
            variance: v_k of this round (`variances`), of the clusters where it is known.
        """
        old = [model.astype(np.float64) for model in clusters.models]
        directions, chance = list(clusters.directions), record.chance.copy()
        steps = {k: model.astype(np.float64) - old[k] for k, model in new.items()}
        for k, step in steps.items():
            directions[k] = next_direction(directions[k], step)
            chance[k] = MOMENTUM**2 * (chance[k] + variance.get(k, 0.0))
        share = self._share(clusters, record, directions, chance, list(variance))
        models = [new.get(k, model) for k, model in enumerate(clusters.models)]
        if share > 0 and steps and len(models) > 1:
            common = share * np.mean(list(steps.values()), axis=0)
            for k, moved in enumerate(old):
                moved += (1 - share) * steps.get(k, 0.0) + common
                models[k] = moved.astype(np.float32)
        return clusters.moved(models, directions), SharingRecord(chance, share)

    def _share(
        self,
        clusters: Clusters,
        record: SharingRecord,
        directions: Sequence[Vector | None],
        chance: Floats,
        known: Sequence[int],
    ) -> float:
        """S of this round; that of the round before where nothing can be compared."""
        if self.rule == "paper":
            return 0.0
        share = explained_by_chance(directions, chance, known)
        if share is None:
            have_moved = all(len(steps) >= PUBLIC_STEPS for steps in clusters.last_steps)
            return record.share if have_moved else 0.0
        return share


def explained_by_chance(
    directions: Sequence[Vector | None], chance: Floats, clusters: Sequence[int]
) -> float | None:
    """The share V / B of what sets these clusters apart, `max_share` at most; None of fewer than two."""
    known = [(k, direction) for k in clusters if (direction := directions[k]) is not None]
    if len(known) < 2:
        return None
    vectors = np.array([direction for _, direction in known], np.float64)
    vectors -= vectors.mean(axis=0)
    apart = float(np.square(vectors, out=vectors).sum()) / (len(known) - 1)
    expected = float(np.mean([chance[k] for k, _ in known]))
    return min(max_share(len(known)), expected / apart) if apart > 0 else 0.0


def max_share(clusters: int) -> float:
    """The share s with which a cluster's own step weighs 1 − s + s/K = `MIN_OWN`."""
    return (1 - MIN_OWN) * clusters / (clusters - 1)


def variances(updates: Updates, *, clip: bool) -> dict[int, float]:
    """v_k of every cluster with an update; empty if no cluster has two, because then σ² is unknown.

    Args:
        updates: Those that count.
        clip: Whether no update counts for more than the median length of its cluster (see `aggregation`).
    """
    found = {k: one for k, one in updates.items() if one.clients}
    scatter = [value for one in found.values() if (value := _scatter(one, clip=clip)) is not None]
    if not scatter:
        return {}
    return {k: float(np.mean(scatter)) * _concentration(one.weights) for k, one in found.items()}


def _scatter(updates: ClusterUpdates, *, clip: bool) -> float | None:
    """σ² of one cluster: mean squared distance of its updates from their mean; None of a single one."""
    if len(updates.clients) < 2:
        return None
    factors = updates.clipping_factors if clip else np.ones(len(updates.clients))
    among = updates.products.among * np.outer(factors, factors)
    share = updates.weights / updates.weights.sum()
    spread = float(share @ among.diagonal() - share @ among @ share)
    return max(spread, 0.0) / (1 - _concentration(updates.weights))


def _concentration(weights: Floats) -> float:
    """Σ_i λ_i²: 1 if one weight is all, 1/n if n are equal."""
    share = weights / weights.sum()
    return float(share @ share)
