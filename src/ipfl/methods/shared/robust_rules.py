"""Rules that make one model of many replies and tolerate some attackers.

- `trimmed_mean`: coordinate-wise, without the smallest and largest values (Yin et al. 2018).
- `geometric_median`: the point with the least summed distance to all, by Weiszfeld's steps (Pillutla et al.
  2022).
- `multi_krum`: the mean of those that lie closest to their neighbours (Blanchard et al. 2017).

Clipping shortens updates before any of them, so that a long one counts no more than others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.config.sections import AggregateConfig
from ipfl.core import Vector

UpdateMatrix = NDArray[np.float64]
"""(n, parameters): one update a row."""

MAX_MEDIAN_STEPS = 50
"""Weiszfeld's steps at most."""
MEDIAN_TOLERANCE = 1e-7
"""They end once the point moves by less than this share of its median distance to the updates."""


def robust_model(
    models: Sequence[Vector], weights: Sequence[float], before: Vector, rule: AggregateConfig
) -> Vector:
    """The new model of enough replies; the arguments are those of `aggregate`."""
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    if rule.rule == "mean" and rule.clip is not None:
        return _clipped_mean(models, shares, before, rule.clip)
    updates = np.stack([model.astype(np.float64) - before for model in models])
    if rule.clip is not None:
        lengths = np.linalg.norm(updates, axis=1)
        updates *= clipping_factors(lengths, rule.clip)[:, None]
    attackers = int(rule.attacker_share * len(models))
    match rule.rule:
        case "trimmed_mean":
            step = trimmed_mean(updates, attackers)
        case "geometric_median":
            step = geometric_median(updates, shares)
        case "multi_krum":
            kept = multi_krum(updates, attackers)
            step = (shares[kept] / shares[kept].sum()) @ updates[kept]
    return np.asarray(before + step, np.float32)


def clipping_factors(lengths: NDArray[np.float64], limit: float | str) -> NDArray[np.float64]:
    """(n,) what makes updates no longer than a limit, or than the median of their lengths."""
    most = float(np.median(lengths)) if isinstance(limit, str) else limit
    return np.where(lengths > most, most / np.where(lengths > most, lengths, 1.0), 1.0)


def _clipped_mean(
    models: Sequence[Vector], shares: NDArray[np.float64], before: Vector, limit: float | str
) -> Vector:
    """The mean of clipped updates, one at a time: many large ones need not be in memory as float64.

    All are made in the same memory, twice each: that takes a third less time than with memory of their own.
    """
    start = before.astype(np.float64)
    update, step = np.empty(len(before)), np.zeros(len(before))
    lengths = np.empty(len(models))
    for i, model in enumerate(models):
        update[:] = model
        update -= start
        lengths[i] = np.linalg.norm(update)
    for model, factor in zip(models, shares * clipping_factors(lengths, limit), strict=True):
        update[:] = model
        update -= start
        update *= factor
        step += update
    return np.asarray(start + step, np.float32)


def trimmed_mean(updates: UpdateMatrix, attackers: int) -> NDArray[np.float64]:
    """Mean of each coordinate without its `attackers` smallest and largest values; one stays at least."""
    cut = min(attackers, (len(updates) - 1) // 2)
    ordered = np.sort(updates, axis=0)
    return np.asarray(ordered[cut : len(updates) - cut].mean(axis=0))


def geometric_median(updates: UpdateMatrix, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """argmin_z Σ share_i ‖z − update_i‖, from the mean on.

    Where the point meets an update, Weiszfeld's step would be 0 for ever; there it is shortened by the share
    of that update instead (Vardi and Zhang 2000).
    """
    point = shares @ updates
    for _ in range(MAX_MEDIAN_STEPS):
        far = np.linalg.norm(updates - point, axis=1)
        # Of the median, not of the largest: an outlier must not decide how near is near.
        width = MEDIAN_TOLERANCE * float(np.median(far))
        met = far <= width
        pull = np.where(met, 0.0, shares / np.maximum(far, np.finfo(float).tiny))
        if not pull.any():
            break
        drag = float(np.linalg.norm(pull @ (updates - point)))
        free = max(0.0, 1 - shares[met].sum() / drag) if drag > 0 else 0.0
        step = free * ((pull / pull.sum()) @ updates - point)
        point = point + step
        if np.linalg.norm(step) <= width:
            break
    return np.asarray(point)


def multi_krum(updates: UpdateMatrix, attackers: int) -> NDArray[np.intp]:
    """Rows of the n − attackers updates with the least summed squared distances to their nearest ones.

    Summed are the n − attackers − 2 smallest of each.
    """
    n = len(updates)
    squares = (updates**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * updates @ updates.T, 0)
    np.fill_diagonal(apart, 0)
    near = max(1, n - attackers - 2)
    # Column 0 of each sorted row is the update itself, at distance 0.
    scores = np.sort(apart, axis=1)[:, 1 : near + 1].sum(axis=1)
    return np.sort(np.argsort(scores, kind="stable")[: max(1, n - attackers)])
