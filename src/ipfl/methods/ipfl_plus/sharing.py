"""How much of a round's steps cluster models share: as much of their differences as chance explains.

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
the running directions M_k ← 0.8·(M_k + Δ_k) of `agreement`, and V_k ← 0.8²·(V_k + v_k).

In a round in which all updates go to one cluster nothing can be compared, and s is that of the round before:
the other models follow as far as they did, instead of staying behind where nobody would train them again. But
only once every model has moved in some rounds: models that follow from the beginning never part, and a few
clients that all want one cluster could keep them one (docs/adversaries.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.market.market_arrays import Floats
from ipfl.methods.ipfl_plus.agreement import MOMENTUM, PUBLIC_STEPS, next_direction
from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.updates import ClusterUpdates, Updates

MIN_OWN = 0.55
"""Weight of a cluster's own step in what it moves by, at least. Models that share everything stay equal for
ever: clients could not prefer one, their clusters would stay mixed, and no difference would ever show."""


@dataclass(frozen=True)
class SharedSteps:
    """What becomes of the clusters' steps in a round."""

    models: tuple[Vector, ...]
    """M_k after the round."""
    directions: tuple[Vector | None, ...]
    """(K) the running direction of each cluster's own steps, before they are shared."""
    chance: NDArray[np.float64]
    """(K,) V_k, the variance of these directions by chance."""
    share: float
    """s."""


def share_steps(
    state: MarketState, new: Mapping[int, Vector], variance: Mapping[int, float], fixed: float | None = None
) -> SharedSteps:
    """Moves the cluster models.

    A cluster without updates of its own takes part in what the others share.

    Args:
        state: The state before the round.
        new: Where each cluster that got updates would move alone.
        variance: v_k of this round (`variances`), of the clusters where it is known.
        fixed: s; None: as much as chance explains.
    """
    directions, chance = list(state.directions), state.chance.copy()
    steps = {k: model.astype(np.float64) - state.models[k].astype(np.float64) for k, model in new.items()}
    for k, step in steps.items():
        directions[k] = next_direction(directions[k], step)
        chance[k] = MOMENTUM**2 * (chance[k] + variance.get(k, 0.0))
    share = fixed if fixed is not None else explained_by_chance(directions, chance, list(variance))
    if share is None:
        share = state.shared if _have_moved(state) else 0.0
    models = [new.get(k, model) for k, model in enumerate(state.models)]
    if share > 0 and steps and len(state.clusters) > 1:
        common = share * np.mean(list(steps.values()), axis=0)
        for k in state.clusters:
            moved = state.models[k].astype(np.float64)
            moved += (1 - share) * steps.get(k, 0.0) + common
            models[k] = moved.astype(np.float32)
    return SharedSteps(tuple(models), tuple(directions), chance, share)


def _have_moved(state: MarketState) -> bool:
    """Whether every cluster in use has moved in as many rounds as the server remembers steps of."""
    return all(len(state.last_steps[k]) >= PUBLIC_STEPS for k in state.clusters)


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
