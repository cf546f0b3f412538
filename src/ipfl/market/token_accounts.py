"""The clients' tokens between rounds, and what the ledger asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ipfl.core import ClientId, Fact
from ipfl.market import bids, payments
from ipfl.market.bank import Bank, opening_balances, opening_transfers
from ipfl.market.market_arrays import Bools, Floats
from ipfl.market.market_rows import Market, Transfer
from ipfl.market.market_stats import gini, rank_correlation
from ipfl.market.token_manager import TokenManager

if TYPE_CHECKING:
    from ipfl.market.replay import MarketReplay

LEAST_PRICES = 100
"""Prices that every client starts with at least, in a short run."""


def default_opening(price: int, rounds: int) -> int:
    """What every client opens with if nothing else is said: a price for every round."""
    return max(LEAST_PRICES, rounds) * price


@dataclass(frozen=True)
class TokenAccounts:
    """Balances, and what they are made of; a row per client in ascending id, a column per cluster."""

    ids: NDArray[np.int64]
    """Client of each row."""
    bank: Bank
    net: NDArray[np.int64]
    """(N, K) tokens that each cluster has brought the client, less what it cost."""
    earned: NDArray[np.int64]
    """(N,) rewards so far."""
    opening: int
    """Tokens that every client started with."""
    brought: Mapping[ClientId, int]
    """Tokens that clients brought along from an earlier run, instead of the opening."""

    @classmethod
    def open(
        cls, clients: Sequence[ClientId], clusters: int, opening: int, brought: Mapping[ClientId, int]
    ) -> TokenAccounts:
        """The same balance for everyone who brings none along."""
        ids, table = sorted(clients), (len(clients), clusters)
        bank, _ = payments.open_accounts(*table, opening_balances(ids, opening, brought))
        nothing = np.zeros(table, np.int64)
        return cls(np.asarray(ids, np.int64), bank, nothing, nothing[:, 0].copy(), opening, dict(brought))

    def after(self, manager: TokenManager, counted: Bools | None = None) -> TokenAccounts:
        """The accounts after a round; `counted`: (N, K) where `net` counts, everywhere by default."""
        net = manager.net if counted is None else np.where(counted, manager.net, 0)
        return replace(self, bank=manager.bank, net=self.net + net, earned=self.earned + manager.earned)

    def rules(self) -> dict[str, Fact]:
        """What an audit must know of the opening."""
        brought = {str(client): balance for client, balance in sorted(self.brought.items())}
        return {"opening": self.opening, **({"brought": brought} if brought else {})}

    def report(self, price: int, psi: Floats) -> dict[str, Fact]:
        """Who has what, and whether rewards follow contributions (section Fairness).

        Args:
            price: τ_p.
            psi: (N, K) remembered contributions, NaN = unknown.
        """
        known = np.isfinite(psi)
        contribution = np.where(known.any(axis=1), np.where(known, psi, 0).sum(axis=1), np.nan)
        return {
            "gini": gini(self.bank.balances),
            "broke": self.ids[self.bank.balances < price].tolist(),
            "contribution_reward_correlation": rank_correlation(contribution, self.earned.astype(float)),
            "balances": self.bank.balances.tolist(),
            "issued": int(self.bank.issued),
        }


class HasTokenAccounts(Protocol):
    """A state with accounts."""

    @property
    def accounts(self) -> TokenAccounts:
        """The clients' tokens."""
        ...


class TokenMarket:
    """A method whose tokens move by the rules of this package (`ipfl.core.HasMarket`).

    The method adds `rules`.
    """

    price: int

    def opening_transfers(self, state: HasTokenAccounts) -> tuple[Transfer, ...]:
        """The same balance for everyone who brings none along from an earlier run."""
        accounts = state.accounts
        return opening_transfers(accounts.ids.tolist(), accounts.opening, accounts.brought)

    def roll_back(self, state: HasTokenAccounts, market: Market) -> Market:
        """What is recorded of a round below the quorum: all bids go back."""
        return bids.roll_back(state.accounts.bank, self.price, state.accounts.ids, market)

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> MarketReplay:
        """The market once more, from its record."""
        from ipfl.market.replay import MarketReplay  # not at the top: with it comes the database

        return MarketReplay(rules, clients)
