"""What the ledger needs of IP-FL: rules, opening, what stays of a round rolled back, replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ipfl.core import ClientId, Fact
from ipfl.market import bids
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Market, Transfer
from ipfl.methods.ipfl_plus.market_state import MarketState, fairness_report
from ipfl.methods.ipfl_plus.server_steps import ServerSteps

if TYPE_CHECKING:
    from ipfl.market.replay import MarketReplay


class AuditedMarket(ServerSteps):
    """The part of IP-FL that makes it an `ipfl.core.HasMarket`."""

    def rules(self, state: MarketState) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger."""
        return {
            "price": self.price,
            "opening": state.opening,
            "allowance": self.allowance if self.moves_tokens else 0,
            "eta": self.eta,
            "gamma": self.gamma,
            "clusters": len(state.models),
            "incentive": self.moves_tokens,
            "positive": self.rewarded == "positive",
            "reimburse": self.reimburse,
            "forfeit": self.forfeit,
            "subsidy": self.subsidy_tokens if self.moves_tokens else 0,
            **({"brought": {str(c): b for c, b in sorted(state.brought.items())}} if state.brought else {}),
        }

    def opening_transfers(self, state: MarketState) -> tuple[Transfer, ...]:
        """The same balance for everyone who brings none along from an earlier run."""
        return opening_transfers(state.ids.tolist(), state.opening, state.brought)

    def roll_back(self, state: MarketState, market: Market) -> Market:
        """All bids go back, and no allowance is issued: clients that could pay only out of it did not bid."""
        return bids.roll_back(state.bank, self.price, state.ids, market)

    def report(self, state: MarketState) -> dict[str, Fact]:
        """The fairness summary."""
        return fairness_report(state, self.price)

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> MarketReplay:
        """The market once more, from its record."""
        # Not at the top: with it comes the database, which clients do not need.
        from ipfl.market.replay import MarketReplay

        return MarketReplay(rules, clients)
