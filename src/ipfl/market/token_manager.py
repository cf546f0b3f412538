"""The token manager: the accounts on their way through one round, and every transfer that moved them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ipfl.market import payments as tokens
from ipfl.market.bank import Bank, Kind, TransferRows, Transfers, TransferTable, client_totals
from ipfl.market.market_arrays import Bools, Floats, Ints


class TokenManager:
    """Applies the rules of `tokens` one after the other; the method's round and the replay both use it."""

    def __init__(self, bank: Bank, price: int):
        self.bank = bank
        self.price = price
        self._posted: list[Transfers | TransferTable] = []

    @property
    def transfers(self) -> Transfers:
        """All transfers so far, as columns."""
        return Transfers.concat(*self._posted)

    def rows(self, ids: NDArray[np.int64]) -> TransferRows:
        """All transfers so far, with client ids instead of row numbers."""
        return TransferRows(self._posted, ids)

    def _post(self, step: tuple[Bank, Transfers | TransferTable]) -> None:
        self.bank, transfers = step
        self._posted.append(transfers)

    def collect_bids(self, bid_ranks: Ints, bidders: Bools | None = None) -> Bools:
        """Eq. consumer_cost, for the bids of these clients or of all; returns which of them lie in escrow."""
        bank, transfers, paid = tokens.auction(self.bank, bid_ranks, self.price, bidders)
        self._post((bank, transfers))
        return paid

    def return_bids(self, bid_ranks: Ints) -> None:
        """A round that is rolled back: every bid goes into escrow and back, and nobody has a seat."""
        paid = self.collect_bids(bid_ranks)
        nobody = np.zeros_like(paid)
        self.charge(paid, nobody, nobody, nobody[:, 0])

    def charge(self, paid: Bools, selected: Bools, explorers: Bools, served: Bools) -> Bools:
        """Consumers pay, as in `payments.charge`; returns the (N, K) payments that lie in the pools."""
        self.bank, steps = tokens.charge(self.bank, paid, selected, explorers, self.price, served)
        self._posted += steps
        return selected | explorers | (paid & served[:, None])

    def refund(self, payments: Bools) -> None:
        """Refunds (N, K) payments, such as those of seats that were lost through no fault of the client."""
        self._post(tokens.refund(self.bank, payments, self.price))

    def settle(
        self,
        cluster: int,
        earning: Ints,
        psi: Floats,
        omega: Ints,
        *,
        refunded: Ints,
        reimbursed: Ints,
        share: float,
        subsidy: int = 0,
    ) -> None:
        """Eq. reimbursement and Eq. reward_distribution; the pool is empty afterwards.

        Args:
            cluster: k.
            earning: The providers that are rewarded, ascending.
            psi: Their contributions.
            omega: Their participation.
            refunded: Who gets the pool back if nobody earns it.
            reimbursed: Whom the share U_k goes to.
            share: U_k.
            subsidy: Tokens issued for each of those that earn.
        """
        self._post(tokens.reimburse(self.bank, cluster, reimbursed, share))
        if subsidy and len(earning):
            self._post(tokens.subsidise(self.bank, cluster, earning, subsidy))
        self._post(tokens.reward(self.bank, cluster, earning, psi, omega, refunded))

    @property
    def earned(self) -> NDArray[np.int64]:
        """(N,) rewards of this round."""
        paid_out = Transfers.concat(*self._columns())  # no reward is in a table
        return client_totals(paid_out, len(self.bank.balances)).earned

    @property
    def net(self) -> NDArray[np.int64]:
        """(N, K) what this round brought each client in each cluster: earned + reimbursed − paid."""
        net = np.zeros((len(self.bank.balances), len(self.bank.pool)), np.int64)
        for table in self._posted:
            if isinstance(table, TransferTable):
                gain = table.amount * ((table.kind == Kind.REFUND) - (table.source == "client"))
                np.add(net, gain, out=net, where=table.entries)
        for part in self._columns():
            is_gain = np.isin(part.kind, (Kind.REFUND, Kind.REIMBURSEMENT, Kind.REWARD))
            for sign, moved in ((1, is_gain), (-1, part.source >= 0)):
                np.add.at(net, (part.client[moved], part.cluster[moved]), sign * part.amount[moved])
        return net

    def _columns(self) -> Iterator[Transfers]:
        """The transfers that are not in tables."""
        return (part for part in self._posted if isinstance(part, Transfers))
