"""The server's state between rounds: the cluster models, and a record for each part of the method."""

from __future__ import annotations

from dataclasses import dataclass

from ipfl.market.bank import TokenAccounts
from ipfl.methods.ipfl_plus.contribution import ContributionRecord
from ipfl.methods.ipfl_plus.guards import GuardRecord
from ipfl.methods.ipfl_plus.importance import Preferences
from ipfl.methods.ipfl_plus.payment import Access
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import SeatRecord
from ipfl.methods.ipfl_plus.sharing import SharingRecord
from ipfl.methods.ipfl_plus.updates import Clusters


@dataclass(frozen=True)
class MarketState:
    """The state of a market; arrays have a row per client in ascending id, a column per cluster."""

    run: RunFacts
    clusters: Clusters
    preferences: Preferences
    seats: SeatRecord
    accounts: TokenAccounts
    access: Access
    contributions: ContributionRecord
    guards: GuardRecord
    sharing: SharingRecord
    collapsed: bool = False
    """Whether one cluster got nearly all bids in the last round."""
