"""Whole numbers of points from shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_QUOTA_DECIMALS = 9
"""Quotas are rounded to this, so that 0.1 · 30 = 3.0000000000000004 is a tie where it should be one."""


def largest_remainder(totals: ArrayLike, shares: ArrayLike) -> NDArray[np.int64]:
    """Splits each row's total in proportion to its shares; every count differs from its quota by less than 1.

    Args:
        totals: What to split, one whole number per row.
        shares: Non-negative weights (rows, columns), with a positive sum in each row.

    Returns:
        Counts (rows, columns) whose rows sum to the totals; equal remainders go to the lower column.
    """
    whole = np.asarray(totals, dtype=np.int64).reshape(-1)
    weights = np.atleast_2d(np.asarray(shares, dtype=np.float64))
    quotas = np.round(weights / weights.sum(axis=1, keepdims=True) * whole[:, None], _QUOTA_DECIMALS)
    counts: NDArray[np.int64] = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    missing = whole - counts.sum(axis=1)
    counts += ranks < missing[:, None]
    return counts


def probe_size(samples: NDArray[np.int64] | int, share: float) -> NDArray[np.int64]:
    """Number of points held back to score models: the share, at least 1, with at least 1 left to train on."""
    total = np.asarray(samples, dtype=np.int64)
    # Half rounds up; the small constant keeps 0.29 · 50 = 14.499999999999998 a half.
    rounded = np.floor(share * total + 0.5 + 1e-9).astype(np.int64)
    size: NDArray[np.int64] = np.clip(rounded, 1, total - 1)
    return size
