"""The profiler: how much each client contributed to its cluster's model (appendix Shapley approximation).

`contributions` is the approximation of the paper, one dot product per client. Exact Shapley values over
all coalitions are here as well, for rounds small enough to afford them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.core.vectors import mean
from ipfl.errors import InputError
from ipfl.methods.ipfl.arrays import Floats, Ints

MAX_PLAYERS = 12
"""Exact values take 2^n coalitions: 4096 at this size."""


def contributions(
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
        counts = np.asarray(weights, np.float64)[list(members)]
        whole = counts.sum() > 0
        yield mean([locals_[member] for member in members], counts.tolist()) if whole else previous


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
    memory: Floats, clients: Ints, cluster: Ints | int, psi: Floats, decay: float = 0.5
) -> NDArray[np.float64]:
    """Contributions as remembered per (client, cluster): an exponential average over a client's rounds.

    Args:
        memory: (N, K), NaN = unknown.
        clients: (n,) who contributed.
        cluster: To which cluster: one, or (n,) so that one call serves a whole round.
        psi: (n,) ψ_ki; NaN leaves what was remembered.
        decay: Weight of the past.

    Returns:
        The new memory: decay·old + (1 − decay)·ψ, or ψ where nothing was known.
    """
    after = np.array(memory, np.float64)
    after[clients, cluster] = blend(after[clients, cluster], psi, decay)
    return after


def blend(old: Floats, psi: Floats, decay: float) -> NDArray[np.float64]:
    """decay·old + (1 − decay)·ψ; whichever of the two is known where one is not."""
    new = np.where(np.isnan(old), psi, decay * old + (1 - decay) * psi)
    return np.asarray(np.where(np.isnan(psi), old, new), np.float64)


def _shares(weights: Floats | Ints) -> NDArray[np.float64]:
    total = float(np.sum(weights))
    if not total > 0:
        raise ValueError("aggregation weights must have a positive sum")
    return np.asarray(weights, np.float64) / total
