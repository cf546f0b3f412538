"""The token manager: the accounts on their way through one round, and every transfer that moved them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Transfer
from ipfl.ledger.accounts import Bank, Transfers, statement
from ipfl.methods.ipfl import tokens
from ipfl.methods.ipfl.arrays import Bools, Floats, Ints
from ipfl.methods.ipfl.scheduler import Selection


class TokenManager:
    """Applies the rules of `tokens` one after the other; the method's round and the replay both use it."""

    def __init__(self, bank: Bank, price: int):
        self.bank = bank
        self.price = price
        self._posted: list[Transfers] = []

    @property
    def transfers(self) -> Transfers:
        """All transfers so far."""
        return Transfers.concat(*self._posted)

    def rows(self, ids: NDArray[np.int64]) -> tuple[Transfer, ...]:
        """All transfers so far, with client ids instead of row numbers."""
        return self.transfers.rows(ids)

    def _post(self, step: tuple[Bank, Transfers]) -> None:
        self.bank, transfers = step
        self._posted.append(transfers)

    def issue_allowance(self, amount: int) -> None:
        """Issues the same income to all, if there is one."""
        if amount:
            self._post(tokens.allowance(self.bank, amount))

    def collect_bids(self, bid_ranks: Ints) -> Bools:
        """Eq. consumer_cost; returns which bids lie in escrow."""
        bank, transfers, paid = tokens.auction(self.bank, bid_ranks, self.price)
        self._post((bank, transfers))
        return paid

    def return_bids(self, bid_ranks: Ints) -> None:
        """A round that is rolled back: every bid goes into escrow and back, and nobody has a seat."""
        paid = self.collect_bids(bid_ranks)
        nobody = np.zeros_like(paid)
        self._post(tokens.charge(self.bank, paid, nobody, nobody, self.price, nobody[:, 0]))

    def charge(self, paid: Bools, selection: Selection, served: Bools) -> tuple[Bools, Bools]:
        """Consumers pay; returns the (N, K) seats, and the (N, K) payments that lie in the pools."""
        chosen, random = selection.seats(len(paid))
        self._post(tokens.charge(self.bank, paid, chosen, random, self.price, served))
        seats = chosen | random
        return seats, seats | (paid & served[:, None])

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
        return statement(self.transfers, len(self.bank.balances)).earned

    def net(self, clusters: int) -> NDArray[np.int64]:
        """(N, K) what this round brought each client in each cluster: earned + reimbursed − paid."""
        transfers = self.transfers
        n = len(self.bank.balances)
        return np.stack([statement(transfers, n, cluster).net for cluster in range(clusters)], axis=1)
