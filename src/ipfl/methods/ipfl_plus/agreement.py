"""Contributions by agreement: how far an update points where the others' updates point (`momentum`).

cos(M_k + Σ_{j≠i} λ_j Δ_j, Δ_i), then M_k ← 0.8·(M_k + Σ_j λ_j Δ_j): Δ_j are the updates of the round, M_k is
the running direction of the cluster. No client is compared with its own update of the round, nothing is
asked of anybody, and on networks it follows the quality of a client's data better than the loss does
(docs/reading.md, 3).

λ_j is what Δ_j is multiplied by in the cluster's step. Where long updates are clipped there, they are clipped
here as well: two clients that send their updates reversed and two and a half times as long would otherwise
be the majority beside three that send theirs, and honest ones would count as wrong.

M_k may be wrong: a round of attackers, or a model that overshot. If the median update of a round contradicts
it, it is left out of that round's comparison. Otherwise right updates would count as wrong from then on.

Every buyer of the models knows M_k as well, and could send the cluster's last steps instead of training, with
noise added so that it looks like an update of its own. So ψ_i is at most 0 where nothing of the update is
new: taken are all updates without their projection onto what everybody knows (the last `PUBLIC_STEPS` steps
of the cluster, M_k, and the differences to the other clusters' models). What is left of an honest update is
correlated with what is left of some other one, with either sign; noise is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.market.market_arrays import Floats
from ipfl.methods.ipfl_plus.products import UpdateProducts

MOMENTUM = 0.8
"""How much of the running direction stays from round to round."""
PUBLIC_STEPS = 5
"""Steps of a cluster that are taken out of an update to see what is new in it."""
MIN_NEW = 1e-6
"""Share of an update's squared length below which nothing of it is new."""
MIN_STRUCTURE = 16.0
"""How many times the squared cosine of random directions what is new in two updates must have in common."""
MAX_STRUCTURE = 0.5
"""The same for very small models, as a squared cosine."""


def agreement(products: UpdateProducts, share: Floats, *, with_direction: bool) -> NDArray[np.float64]:
    """(n,) cos(M_k + Σ_{j≠i} λ_j Δ_j, Δ_i) of n updates.

    Args:
        products: Of the updates Δ_i, and with M_k.
        share: (n,) λ_j, what each is multiplied by in the step of the cluster.
        with_direction: Whether M_k counts; else nothing is in its place.

    Returns:
        0 for an update of length 0; NaN where there is nothing to compare it with.
    """
    square = products.among.diagonal()
    along = products.among @ share  # Δ_i·total, with total = M_k + Σ_j λ_j Δ_j
    total = float(share @ along)  # |total|²
    if with_direction:
        total += 2 * float(share @ products.along[:, -1]) + float(products.known[-1, -1])
        along = along + products.along[:, -1]
    # |total − λ_i Δ_i|² and (total − λ_i Δ_i)·Δ_i.
    rest = np.maximum(total - 2 * share * along + share**2 * square, 0.0)
    known = rest > 1e-12 * max(total, float((share**2 * square).max(initial=0.0)))
    length = np.sqrt(np.where(known, rest, 1.0) * np.where(square > 0, square, 1.0))
    cosine = np.where(square > 0, (along - share * square) / length, 0.0)
    return np.where(known | (square == 0), cosine, np.nan)


def is_new(products: UpdateProducts) -> NDArray[np.bool_]:
    """(n,) whether what an update holds beyond what is known is more than noise; true for a single one.

    The squared cosine of two random directions is 1/P on average. That of an update with one of the others,
    both without their known part, has to be `MIN_STRUCTURE` times that.
    """
    beyond = products.beyond_known
    left = beyond.diagonal()
    has_rest = left > MIN_NEW * products.among.diagonal()
    length = np.sqrt(np.where(has_rest, left, 1.0))
    square = (beyond / np.outer(length, length)) ** 2 * np.outer(has_rest, has_rest)
    np.fill_diagonal(square, 0.0)
    shared = square.max(axis=1) if has_rest.sum() > 1 else np.full(len(left), np.inf)
    return np.asarray(has_rest & (shared > min(MIN_STRUCTURE / products.size, MAX_STRUCTURE)))


def contributions_by_agreement(
    products: UpdateProducts, share: Floats, *, is_noisy: bool = False
) -> NDArray[np.float64]:
    """(n,) ψ of one cluster's updates; NaN where there is nothing to compare an update with.

    Args:
        products: Of the updates Δ_i, and with what everybody knows.
        share: (n,) λ_j, what each is multiplied by in the step of the cluster.
        is_noisy: Whether honest clients put noise on their updates: then nothing can be said of what is new.
    """
    psi = agreement(products, share, with_direction=products.has_direction)
    if products.has_direction and np.isfinite(psi).any() and np.nanmedian(psi) < 0:
        psi = agreement(products, share, with_direction=False)
    if is_noisy:
        return psi
    return np.where(is_new(products), psi, np.minimum(psi, 0.0))


def next_direction(direction: Vector | None, step: Floats) -> Vector:
    """M_k after a round in which the cluster's model moved by `step`."""
    after = np.zeros(len(step)) if direction is None else direction.astype(np.float64)
    after += step
    after *= MOMENTUM
    return after.astype(np.float32)
