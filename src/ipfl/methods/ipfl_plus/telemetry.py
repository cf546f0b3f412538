"""What a round and a run report: seats, contributions, figures, warnings, fairness. Nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ipfl.core import Event, Fact, Seat
from ipfl.market import market_stats
from ipfl.market.bids import finite_or_none
from ipfl.market.market_arrays import Bools, Floats
from ipfl.market.market_rows import Contribution, Figure
from ipfl.methods.ipfl_plus.contribution import Psi
from ipfl.methods.ipfl_plus.importance import Preferences
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import SeatRecord, Selection
from ipfl.methods.ipfl_plus.state import MarketState


def seat_rows(run: RunFacts, selection: Selection, delivered: Bools, excused: Bools) -> tuple[Seat, ...]:
    """All seats of a round."""
    return tuple(
        Seat(int(run.ids[row]), cluster, how, bool(delivered[row, cluster]), bool(excused[row, cluster]))
        for cluster in range(delivered.shape[1])
        for how, chosen in selection.by_reason(cluster)
        for row in np.sort(chosen)
    )


def contribution_rows(
    run: RunFacts, delivered: Bools, psi: Psi, after: SeatRecord
) -> tuple[Contribution, ...]:
    """ψ_ki and Ω_ki of all providers, the round included."""
    return tuple(
        Contribution(int(run.ids[row]), k, finite_or_none(value), int(after.omega[row, k]))
        for k, values in psi.items()
        for row, value in zip(np.flatnonzero(delivered[:, k]), values, strict=True)
    )


def figures(values: Mapping[int, float]) -> tuple[Figure, ...]:
    """A number for each cluster."""
    return tuple(Figure(cluster, finite_or_none(value)) for cluster, value in values.items())


def is_collapsed(known: Preferences) -> bool:
    """Whether one cluster gets nearly all bids."""
    return bool(market_stats.is_collapsed((known.ranks >= 0).sum(axis=0)))


def warnings(before: MarketState, after: MarketState, empty_seats: int) -> tuple[Event, ...]:
    """An event for empty seats, and for a collapse when it begins."""
    events = []
    if empty_seats:
        text = f"{empty_seats} of the seats stayed empty: too few clients bid, were there or could pay"
        events.append(Event("empty_seats", None, text))
    if after.collapsed and not before.collapsed:
        events.append(Event("collapse", None, "collapse: one cluster gets nearly all bids"))
    return tuple(events)


def fairness_report(state: MarketState, price: int) -> dict[str, Fact]:
    """Who has what, and whether rewards follow contributions (section Fairness)."""
    psi, accounts = state.contributions.psi, state.accounts
    known = np.isfinite(psi)
    total = np.where(known, psi, 0).sum(axis=1)
    contribution: Floats = np.where(known.any(axis=1), total, np.nan)
    bids = (state.preferences.ranks >= 0).sum(axis=0)
    return {
        "clusters": list(range(len(bids))),
        "collapsed": state.collapsed,
        "shared": state.sharing.share,
        "bid_share": [float(b) for b in bids / max(1, bids.sum())],
        "gini": market_stats.gini(accounts.bank.balances),
        "broke": [int(i) for i in state.run.ids[accounts.bank.balances < price]],
        "contribution_reward_correlation": market_stats.rank_correlation(
            contribution, accounts.earned.astype(np.float64)
        ),
        "balances": [int(b) for b in accounts.bank.balances],
        "issued": int(accounts.bank.issued),
    }
