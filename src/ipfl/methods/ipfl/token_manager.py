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
        self._post(tokens.seat(self.bank, paid, nobody, nobody, self.price))

    def pay_seats(self, paid: Bools, selection: Selection) -> Bools:
        """Eq. update_available_tokens; returns the (N, K) seats."""
        chosen, random = selection.seats(len(paid))
        self._post(tokens.seat(self.bank, paid, chosen, random, self.price))
        return chosen | random

    def refund_seats(self, seats: Bools) -> None:
        """Refunds (N, K) seats, such as those of clients that did not deliver."""
        self._post(tokens.refund(self.bank, seats, self.price))

    def settle(
        self, cluster: int, providers: Ints, psi: Floats, omega: Ints, share: float, *, positive: bool = False
    ) -> None:
        """Eq. reimbursement and Eq. reward_distribution; the pool is empty afterwards."""
        self._post(tokens.reimburse(self.bank, cluster, providers, share))
        self._post(tokens.reward(self.bank, cluster, providers, psi, omega, providers, positive=positive))

    @property
    def earned(self) -> NDArray[np.int64]:
        """(N,) rewards of this round."""
        return statement(self.transfers, len(self.bank.balances)).earned

    def receipts(self, seats: Bools) -> dict[int, list[tuple[int, int]]]:
        """(cluster, net tokens) of every seat of this round, by row: each client's receipts."""
        receipts: dict[int, list[tuple[int, int]]] = {}
        transfers = self.transfers
        for cluster in range(seats.shape[1]):
            net = statement(transfers, len(seats), cluster).net
            for row in np.flatnonzero(seats[:, cluster]):
                receipts.setdefault(int(row), []).append((cluster, int(net[row])))
        return receipts
