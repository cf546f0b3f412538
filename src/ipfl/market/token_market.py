"""The ledger's side of a method whose tokens move by the rules of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ipfl.core import ClientId, Fact
from ipfl.market.bank import TokenManager, opening_transfers
from ipfl.market.bids import rank_table
from ipfl.market.market_rows import Market, Transfer

if TYPE_CHECKING:
    from ipfl.market.replay import MarketReplay


class TokenMarket:
    """A method with `TokenAccounts` in its state as `accounts` (see `HasMarket`); it adds `rules`."""

    price: int

    def opening_transfers(self, state: Any) -> tuple[Transfer, ...]:
        """The same balance for everyone who brings none along from an earlier run."""
        accounts = state.accounts
        return opening_transfers(accounts.ids.tolist(), accounts.opening, accounts.brought)

    def roll_back(self, state: Any, market: Market) -> Market:
        """The record of a round below the quorum: bids go into escrow and back."""
        if market.bids is None:
            return Market(())
        manager = TokenManager(state.accounts, self.price)
        manager.return_bids(rank_table(state.accounts.ids, market.bids, state.accounts.net.shape[1]))
        return Market(tuple(manager.transfers), market.bids)

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> MarketReplay:
        """The market once more, from its record."""
        from ipfl.market.replay import MarketReplay  # not at the top: with it comes the database

        return MarketReplay(rules, clients)
