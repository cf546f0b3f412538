"""The server's state between rounds: the cluster models, and a record for each part of the method."""

from __future__ import annotations

from dataclasses import dataclass

from ipfl.core import ClientId, ClientModels
from ipfl.market.token_accounts import TokenAccounts
from ipfl.methods.ipfl_plus.contribution import ContributionRecord
from ipfl.methods.ipfl_plus.guards import GuardRecord
from ipfl.methods.ipfl_plus.importance import Preferences
from ipfl.methods.ipfl_plus.payment import Access
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import SeatRecord
from ipfl.methods.ipfl_plus.sharing import SharingRecord
from ipfl.methods.ipfl_plus.updates import ClusterModels


@dataclass(frozen=True)
class MarketState:
    """The state of a market; arrays have a row per client in ascending id, a column per cluster."""

    run: RunFacts
    clusters: ClusterModels
    preferences: Preferences
    seats: SeatRecord
    accounts: TokenAccounts
    access: Access
    contributions: ContributionRecord
    guards: GuardRecord
    sharing: SharingRecord
    collapsed: bool = False
    """Whether one cluster got nearly all bids in the last round."""

    @classmethod
    def start(
        cls, run: RunFacts, clusters: ClusterModels, accounts: TokenAccounts, held: ClientModels | None
    ) -> MarketState:
        """The market before the first round: no bids, no seats, nothing known of anybody."""
        n, k = len(run.ids), len(clusters.models)
        return cls(
            run=run,
            clusters=clusters,
            preferences=Preferences.start(n, k),
            seats=SeatRecord.start(n, k),
            accounts=accounts,
            access=Access.start(n, k, held),
            contributions=ContributionRecord.start(n, k),
            guards=GuardRecord.start(n, k),
            sharing=SharingRecord.start(k),
        )

    def preferred(self) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        favourites = self.preferences.favourites
        bid = favourites >= 0
        return dict(zip(self.run.ids[bid].tolist(), favourites[bid].tolist(), strict=True))
