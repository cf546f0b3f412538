"""Statistics of the market: wealth, and whether one cluster takes all (docs/reading.md, 1 and 4).

Rank rewards move wealth upwards, and where one model becomes the best for all, all bids can go to it: neither
may happen unseen, so these numbers go into every round's record.
"""

from __future__ import annotations

import numpy as np

from ipfl.core import Event, Fact
from ipfl.core.arrays import Floats, Ints


def gini(balances: Ints) -> float:
    """Gini coefficient of wealth: 0 all have the same (or nothing), towards 1 one has everything.

    With balances x_1 ≤ … ≤ x_N: G = Σ_i (2i − N − 1)·x_i / (N·Σx).
    """
    n, total = len(balances), float(np.sum(balances, dtype=np.float64))
    if total == 0:
        return 0.0
    place = 2.0 * np.arange(1, n + 1) - n - 1
    return float(place @ np.sort(balances).astype(np.float64)) / (n * total)


def market_stats(balances: Ints, price: int, empty_seats: int) -> dict[str, float]:
    """Wealth and seats after a round, as its line reports them; who is broke cannot pay a single bid."""
    broke = int((balances < price).sum())
    return {"gini": gini(balances), "broke": broke, "empty_seats": empty_seats}


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


def is_collapsed(bids: Ints, limit: float = 0.9) -> bool:
    """Whether one of several clusters draws nearly all bids.

    Args:
        bids: (K,) bids per cluster.
        limit: Share of all bids from which on it is a collapse.
    """
    return len(bids) > 1 and bool(bids.max() >= limit * bids.sum() > 0)


def market_events(bid_ranks: Ints, empty_seats: int, was_collapsed: bool) -> tuple[bool, tuple[Event, ...]]:
    """Whether the market has collapsed, and events for empty seats, and for a collapse when it begins.

    Args:
        bid_ranks: (N, K) rank of each bid, below 0 where there is none.
        empty_seats: Seats of the round that nobody had.
        was_collapsed: Whether it had collapsed before the round.
    """
    events = []
    if empty_seats:
        text = f"{empty_seats} of the seats stayed empty: too few clients bid, were there or could pay"
        events.append(Event("empty_seats", None, text))
    collapsed = is_collapsed((bid_ranks >= 0).sum(axis=0))
    if collapsed and not was_collapsed:
        events.append(Event("collapse", None, "collapse: one cluster gets nearly all bids"))
    return collapsed, tuple(events)


def bid_report(bid_ranks: Ints, collapsed: bool) -> dict[str, Fact]:
    """The spread of the bids over the clusters at the end of a run."""
    bids = (bid_ranks >= 0).sum(axis=0)
    shares = [float(share) for share in bids / max(1, bids.sum())]
    return {"clusters": list(range(len(bids))), "collapsed": collapsed, "bid_share": shares}
