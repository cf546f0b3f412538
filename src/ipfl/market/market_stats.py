"""Statistics of the market: wealth, collapse, clusters that do the same work (docs/reading.md, 1 and 4).

Rank rewards move wealth upwards, and where one model becomes the best for all, all bids can go to it: neither
may happen unseen, so these numbers go into every round's record.
"""

from __future__ import annotations

import warnings

import numpy as np

from ipfl.core import Event
from ipfl.market.market_arrays import Bools, Floats, Ints


def gini(balances: Ints) -> float:
    """Gini coefficient of wealth: 0 all have the same (or nothing), towards 1 one has everything.

    With balances x_1 ≤ … ≤ x_N: G = Σ_i (2i − N − 1)·x_i / (N·Σx).
    """
    n, total = len(balances), float(np.sum(balances, dtype=np.float64))
    if total == 0:
        return 0.0
    place = 2.0 * np.arange(1, n + 1) - n - 1
    return float(place @ np.sort(balances).astype(np.float64)) / (n * total)


def count_broke(balances: Ints, price: int) -> int:
    """Clients that cannot pay a single bid."""
    return int((balances < price).sum())


def market_stats(balances: Ints, price: int, empty_seats: int) -> dict[str, float]:
    """Wealth and seats after a round, as its line reports them."""
    return {"gini": gini(balances), "broke": count_broke(balances, price), "empty_seats": empty_seats}


def rank_correlation(one: Floats, other: Floats) -> float | None:
    """Spearman's ρ over the pairs known in both; None if undefined (fewer than two pairs, or no spread)."""
    known = np.isfinite(one) & np.isfinite(other)
    one, other = one[known], other[known]
    if not len(one) or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    ranks = np.column_stack([_ranks(one), _ranks(other)])
    return float(np.corrcoef(ranks, rowvar=False)[1, 0])


def _ranks(values: Floats) -> Floats:
    """Place of each value, from 1; equal ones share the mean of theirs. To import scipy takes 0.7 s."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def is_collapsed(bids: Ints | Floats, limit: float = 0.9) -> bool | None:
    """Whether one cluster draws nearly all bids.

    Args:
        bids: (K,) bids per cluster, as counts or shares.
        limit: Share of all bids from which on it is a collapse.

    Returns:
        None where there is nothing to tell: a single cluster, or no bids.
    """
    total = bids.sum()
    return None if len(bids) < 2 or total == 0 else bool(bids.max() / total >= limit)


def market_events(bids: Ints, empty_seats: int, was_collapsed: bool) -> tuple[bool, tuple[Event, ...]]:
    """Whether the market has collapsed, and events for empty seats, and for a collapse when it begins.

    Args:
        bids: (K,) bids per cluster.
        empty_seats: Seats of the round that nobody had.
        was_collapsed: Whether it had collapsed before the round.
    """
    events = []
    if empty_seats:
        text = f"{empty_seats} of the seats stayed empty: too few clients bid, were there or could pay"
        events.append(Event("empty_seats", None, text))
    collapsed = bool(is_collapsed(bids))
    if collapsed and not was_collapsed:
        events.append(Event("collapse", None, "collapse: one cluster gets nearly all bids"))
    return collapsed, tuple(events)


def merge_candidates(bids: Bools, importance: Floats, limit: float = 0.9) -> list[tuple[int, int]]:
    """Pairs of clusters (keep, drop) whose models serve the same clients, for `clusters = "auto"`.

    Two clusters are alike by the larger of: the Jaccard overlap of their bidders (bid for both / bid for
    either), and the correlation over clients of their importance weights. Pairs that reach the limit are
    taken most alike first (ties: lower numbers first), each cluster in one pair at most. Kept is the one
    with more bidders (ties: the lower number). Every dropped cluster has one kept for it, so that at least
    one always remains. While all models are still alike so are all clusters: ask after some rounds only.

    Args:
        bids: (N, K) who bids for what.
        importance: (N, K) υ; rows with NaN (clients never asked) are left out.
        limit: Likeness in (0, 1] from which on two clusters are one.
    """
    clusters = bids.shape[1]
    count = bids.sum(axis=0)
    likeness = np.maximum(_overlap(bids), _correlation(importance))
    pairs = [
        (a, b) for a in range(clusters) for b in range(a + 1, clusters) if likeness[a, b] >= limit - 1e-9
    ]
    merged: list[tuple[int, int]] = []
    taken: set[int] = set()
    for a, b in sorted(pairs, key=lambda pair: -likeness[pair]):
        if not taken & {a, b}:
            taken |= {a, b}
            merged.append((a, b) if count[a] >= count[b] else (b, a))
    return merged


def _overlap(bids: Bools) -> Floats:
    """(K, K) Jaccard overlap of the clusters' bidders; 0 where neither has any."""
    table = bids.astype(np.float32)
    both = (table.T @ table).astype(np.float64)
    either = np.diag(both)[:, None] + np.diag(both)[None, :] - both
    return np.divide(both, either, out=np.zeros_like(both), where=either > 0)


def _correlation(importance: Floats) -> Floats:
    """(K, K) correlation of the columns; 0 for columns without spread."""
    known = importance[np.isfinite(importance).all(axis=1)]
    if len(known) < 2:
        return np.zeros((importance.shape[1],) * 2)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        matrix: Floats = np.atleast_2d(np.corrcoef(known, rowvar=False))
    return np.where(np.isfinite(matrix), matrix, 0.0)
