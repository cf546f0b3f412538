"""The profiler: how much each client contributed to its cluster's model (appendix Shapley approximation).

`estimate_contributions` is the approximation of the paper, one dot product per client. Exact Shapley values
over all coalitions are here as well, for rounds small enough to afford them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.core.vectors import mean
from ipfl.errors import InputError
from ipfl.market.market_arrays import Floats, Ints

MAX_PLAYERS = 12
"""Exact values take 2^n coalitions: 4096 at this size."""


def estimate_contributions(
    gradient: Floats,
    aggregate: Floats,
    locals_: Floats | Sequence[Floats],
    weights: Floats | Ints,
    normalised: bool = True,
) -> NDArray[np.float64]:
    """Algorithm "Estimated Shapley value of any client in an FL": ψ_ki of the clients of one cluster.

    Normalised aggregation: ψ_ki = −g_kᵀ λ_i (W_i − W_M), the first-order drop of the loss by client i
    against the mean of all (so they sum to 0). Unnormalised: ψ_ki = −g_kᵀ λ_i W_i.

    Args:
        gradient: (P,) g_k, mean gradient of the loss at the aggregated model.
        aggregate: (P,) W_M = Σ λ_i W_i.
        locals_: n local models W_i of (P,).
        weights: (n,) λ_i, or the sample counts n_i they come from: λ_i = n_i/Σn.
        normalised: Which version.

    Returns:
        (n,) contributions, summed in float64; NaN (unknown, ranked lowest) where it is not finite.
    """
    g = np.asarray(gradient, np.float64)
    base = np.asarray(aggregate, np.float64) if normalised else 0.0
    share = _shares(weights)
    with np.errstate(all="ignore"):  # a client may send anything; it must not stop the others
        psi = np.array([-(g @ (np.asarray(local, np.float64) - base)) for local in locals_]) * share
    return np.where(np.isfinite(psi), psi, np.nan)


def coalitions(n: int) -> list[tuple[int, ...]]:
    """All subsets of n players; the one at position b holds the players whose bit is set in b.

    Raises:
        InputError: more than `MAX_PLAYERS` players.
    """
    if n > MAX_PLAYERS:
        raise InputError(f"exact Shapley values are for at most {MAX_PLAYERS} clients per cluster, not {n}")
    return [tuple(player for player in range(n) if mask >> player & 1) for mask in range(2**n)]


def coalition_models(locals_: Sequence[Vector], weights: Floats | Ints, previous: Vector) -> Iterator[Vector]:
    """The model θ_C that each coalition would have made, one at a time in the order of `coalitions`.

    Normalised aggregation (Eq. eq_6); the empty coalition leaves the previous model θ_{t−1}. One at a
    time, because all 2^n of them may not fit into memory.
    """
    for members in coalitions(len(locals_)):
        keep = np.isin(np.arange(len(locals_)), members)
        yield coalition_model(locals_, weights, previous, keep)


def coalition_model(
    locals_: Sequence[Vector], weights: Floats | Ints, previous: Vector, keep: NDArray[np.bool_]
) -> Vector:
    """θ_C of one coalition; the previous model if its weights are 0."""
    counts = np.asarray(weights, np.float64)[keep]
    members = [model for model, kept in zip(locals_, keep, strict=True) if kept]
    return mean(members, counts.tolist()) if counts.sum() > 0 else previous


def shapley_from_values(values: Floats) -> NDArray[np.float64]:
    """Eq. eq_Shapley: Σ_S |S|!(n−1−|S|)!/n! · (v(S ∪ {m}) − v(S)) for every player m.

    Args:
        values: (2^n,) v(C) in the order of `coalitions`; Eq. eq_value2: v(C) = L(θ_{t−1}) − L(θ_C).

    Returns:
        (n,) values, which sum to v(all) − v(∅).
    """
    n = len(values).bit_length() - 1
    if len(values) != 2**n:
        raise ValueError(f"{len(values)} values are not one for every coalition")
    masks = np.arange(2**n)
    weight = np.array([factorial(size) * factorial(n - 1 - size) / factorial(n) for size in range(n)])
    shapley = np.empty(n)
    for player in range(n):
        without = masks[masks >> player & 1 == 0]
        gain = np.asarray(values, np.float64)[without | 1 << player] - values[without]
        shapley[player] = weight[np.bitwise_count(without)] @ gain
    return shapley


def remember(
    memory: Floats, clients: Ints, cluster: int, psi: Floats, decay: float, count: Ints | None = None
) -> NDArray[np.float64]:
    """Contributions as remembered per (client, cluster): an average over a client's rounds.

    Args:
        memory: (N, K), NaN = unknown.
        clients: (n,) who contributed.
        cluster: To which cluster.
        psi: (n,) ψ_ki; NaN leaves what was remembered.
        decay: Weight of the past.
        count: (n,) values so far, this one included: the first 1/(1 − decay) of them count alike. None: an
            exponential average from the first one on.

    Returns:
        The new memory: decay·old + (1 − decay)·ψ, or ψ where nothing was known.
    """
    after = np.array(memory, np.float64)
    old = after[clients, cluster]
    past = decay if count is None else np.minimum(decay, 1 - 1 / np.maximum(count, 1))
    new = np.where(np.isnan(old), psi, past * old + (1 - past) * psi)
    after[clients, cluster] = np.where(np.isnan(psi), old, new)
    return after


def standard_scores(psi: Floats) -> NDArray[np.float64]:
    """(n,) contributions of a round relative to each other: (ψ − mean)/deviation; 0 where they are alike.

    Unknown ones stay unknown, and so does a single one: there is nothing to compare it with.
    """
    known = psi[np.isfinite(psi)]
    if len(known) < 2:
        return np.full(len(psi), np.nan)
    deviation = float(known.std())
    spread = deviation if deviation > 1e-12 * max(abs(float(known.mean())), 1e-300) else np.inf
    return np.asarray((psi - known.mean()) / spread)


def _shares(weights: Floats | Ints) -> NDArray[np.float64]:
    total = float(np.sum(weights))
    if not total > 0:
        raise ValueError("aggregation weights must have a positive sum")
    return np.asarray(weights, np.float64) / total
