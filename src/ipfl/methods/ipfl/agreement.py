"""Contributions by agreement: how far an update points where the others' updates point (`momentum`).

cos(M_k + Σ_{j≠i} λ_j Δ_j, Δ_i), then M_k ← 0.8·(M_k + Σ_j λ_j Δ_j): Δ_j are the updates of the round, M_k is
the running direction of the cluster. No client is compared with its own update of the round, nothing is
asked of anybody, and on networks it follows the quality of a client's data better than the loss does
(docs/reading.md, 3).

M_k may be wrong: a round of attackers, or a model that overshot. If the median update of a round contradicts
it, it is left out of that round's comparison. Else the many who are right would count as wrong from then on.

Every buyer of the models knows M_k as well, and could send the cluster's last steps instead of training,
with noise added so that it looks like an update of its own. So ψ_i is at most 0 where nothing of the update
is new: taken are all updates without their projection onto what everybody knows (the last `PUBLIC_STEPS`
steps of the cluster, M_k, and the ways to the other clusters' models). What is left of an honest update has
to do with what is left of some other one, this way or that; noise has nothing to do with anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.methods.ipfl.arrays import Floats

MOMENTUM = 0.8
"""How much of the running direction stays from round to round."""
MAX_STRUCTURE = 0.5
"""The same for very small models, as a squared cosine."""
PUBLIC_STEPS = 5
"""Steps of a cluster that are taken out of an update to see what is new in it."""
MIN_NEW = 1e-6
"""Share of an update's squared length below which nothing of it is new."""
MIN_INDEPENDENT = 1e-10
"""Least λ, of unit vectors, of a direction of its own; below it what is public is the same up to rounding."""
MIN_STRUCTURE = 16.0
"""How many times the squared cosine of random directions what is new in two updates must have in common."""


def agreement(steps: Floats, weights: Floats, direction: Floats | None = None) -> NDArray[np.float64]:
    """(n,) cos(direction + Σ_{j≠i} λ_j Δ_j, Δ_i) of n updates; λ_j = weights_j/Σ weights.

    Args:
        steps: (n, P) updates Δ_i.
        weights: (n,) of the mean.
        direction: (P,) what the others' updates are added to; None: nothing.

    Returns:
        0 for an update of length 0; NaN where there is nothing to compare it with.
    """
    share = np.asarray(weights, np.float64) / np.sum(weights)
    total = share @ steps if direction is None else direction + share @ steps
    along, square = steps @ total, np.einsum("ij,ij->i", steps, steps)
    # |total − λ_i Δ_i|² and (total − λ_i Δ_i)·Δ_i, without an (n, P) table of what the others did.
    rest = np.maximum(total @ total - 2 * share * along + share**2 * square, 0.0)
    known = rest > 1e-12 * max(float(total @ total), float((share**2 * square).max(initial=0.0)))
    length = np.sqrt(np.where(known, rest, 1.0) * np.where(square > 0, square, 1.0))
    cosine = np.where(square > 0, (along - share * square) / length, 0.0)
    return np.where(known | (square == 0), cosine, np.nan)


def products_beyond_public(steps: Floats, public: Sequence[Vector]) -> NDArray[np.float64]:
    """(n, n) scalar products of what is left of the updates without their projection onto what is public.

    With unit vectors b of what is public, and λ and v of the table of their products: an update's coordinates
    in the orthonormal basis Σ_j v_j·b_j / √λ are those of Δ·b. Only tables of products are needed, no
    basis of long vectors.
    """
    products = np.asarray(steps @ steps.T, np.float64)
    if not public:
        return products
    known = np.stack(public).astype(np.float64)
    among = known @ known.T
    length = np.sqrt(among.diagonal())
    among, along = among / np.outer(length, length), (steps @ known.T) / length
    values, directions = np.linalg.eigh(among)
    is_basis = values > MIN_INDEPENDENT
    coordinates = along @ directions[:, is_basis] / np.sqrt(values[is_basis])
    return np.asarray(products - coordinates @ coordinates.T)


def is_new(steps: Floats, public: Sequence[Vector]) -> NDArray[np.bool_]:
    """(n,) whether what an update holds beyond what is public is more than noise; true for a single one.

    The squared cosine of two random directions is 1/P on average. That of an update with one of the others,
    both without their public part, has to be `MIN_STRUCTURE` times that.
    """
    products = products_beyond_public(steps, public)
    left = products.diagonal()
    has_rest = left > MIN_NEW * np.einsum("ij,ij->i", steps, steps)
    length = np.sqrt(np.where(has_rest, left, 1.0))
    square = (products / np.outer(length, length)) ** 2 * np.outer(has_rest, has_rest)
    np.fill_diagonal(square, 0.0)
    shared = square.max(axis=1) if has_rest.sum() > 1 else np.full(len(steps), np.inf)
    return np.asarray(has_rest & (shared > min(MIN_STRUCTURE / steps.shape[1], MAX_STRUCTURE)))


def contributions_by_agreement(
    steps: Floats,
    weights: Floats,
    direction: Floats | None,
    public: Sequence[Vector],
    *,
    is_noisy: bool = False,
) -> NDArray[np.float64]:
    """(n,) ψ of one cluster's updates; NaN where there is nothing to compare an update with.

    Args:
        steps: (n, P) updates Δ_i.
        weights: (n,) of the mean.
        direction: (P,) M_k; None: there is none yet.
        public: What everybody knows.
        is_noisy: Whether honest clients put noise on their updates: then nothing can be said of what is new.
    """
    psi = agreement(steps, weights, direction)
    if direction is not None and np.isfinite(psi).any() and np.nanmedian(psi) < 0:
        psi = agreement(steps, weights)
    if is_noisy:
        return psi
    return np.where(is_new(steps, public), psi, np.minimum(psi, 0.0))


def next_direction(direction: Vector | None, step: Floats) -> Vector:
    """M_k after a round in which the cluster's model moved by `step`."""
    before = 0.0 if direction is None else direction.astype(np.float64)
    return np.asarray(MOMENTUM * (before + step), np.float32)
