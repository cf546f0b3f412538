"""What a round and a run report of the market. Nothing here decides anything."""

from __future__ import annotations

from ipfl.core import Fact
from ipfl.market.bids import make_bids
from ipfl.market.market_arrays import Bools
from ipfl.market.market_rows import Market
from ipfl.market.market_stats import market_stats
from ipfl.market.seating import figures, make_contributions
from ipfl.market.token_manager import TokenManager
from ipfl.methods.ipfl_plus.payment import Outcome
from ipfl.methods.ipfl_plus.state import MarketState


def market_of_round(
    before: MarketState,
    after: MarketState,
    manager: TokenManager,
    outcome: Outcome,
    bidders: Bools,
    served: Bools,
    share: dict[int, float],
    empty_seats: int,
) -> Market:
    """The bids, contributions and tokens of a round, and its figures.

    Args:
        before: The state before the round.
        after: The state after it.
        manager: The tokens that moved.
        outcome: Seats, payments and contributions.
        bidders: (N,) who could bid.
        served: (N,) who paid for all its bids.
        share: U_k.
        empty_seats: Seats that nobody had.
    """
    ids, known = before.run.ids, after.preferences
    return Market(
        transfers=manager.rows(ids),
        bids=make_bids(ids, known.ranks, known.score, bidders, served),
        contributions=make_contributions(ids, after.seats.omega, outcome.seats.delivered, outcome.psi),
        cluster_probe_accuracy=figures(outcome.accuracy),
        best_before=figures({k: before.access.best[k] for k in outcome.accuracy}),
        reimbursed_share=figures(share),
        economy=market_stats(manager.bank.balances, manager.price, empty_seats),
    )


def fairness_report(state: MarketState, price: int) -> dict[str, Fact]:
    """Who has what, and whether rewards follow contributions (section Fairness)."""
    bids = (state.preferences.ranks >= 0).sum(axis=0)
    return {
        "clusters": list(range(len(bids))),
        "collapsed": state.collapsed,
        "shared": state.sharing.share,
        "bid_share": [float(b) for b in bids / max(1, bids.sum())],
        **state.accounts.report(price, state.contributions.psi),
    }
