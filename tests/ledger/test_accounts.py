"""Random rounds in any order: the accounts add up, nobody overdraws, pools are empty after each round."""

from __future__ import annotations

from typing import Literal

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ipfl.ledger.accounts import Kind, Transfers, statement
from ipfl.methods.ipfl import scheduler, tokens


def table(draw: np.random.Generator, shape: tuple[int, int], share: float) -> np.ndarray:
    return draw.random(shape) < share


class RandomMarket(RuleBasedStateMachine):
    """Rounds with random bids, drop-outs, clusters without updates and random contributions."""

    @initialize(n=st.integers(1, 8), k=st.integers(1, 3), price=st.integers(1, 12), prices=st.integers(1, 4))
    def open(self, n: int, k: int, price: int, prices: int) -> None:
        self.n, self.k, self.price = n, k, price
        self.bank, self.opened = tokens.open_accounts(n, k, price * prices)
        self.best = [float("nan")] * k

    @rule(amount=st.integers(0, 5))
    def income(self, amount: int) -> None:
        before = self.bank
        self.bank, given = tokens.allowance(before, amount)
        assert (self.bank.balances - before.balances == amount).all()
        assert len(set(given.amount.tolist())) <= 1

    @rule(
        seed=st.integers(0, 2**32),
        n_p=st.integers(0, 4),
        n_r=st.integers(0, 6),
        dropout=st.sampled_from([0.0, 0.3, 1.0]),
        order=st.sampled_from(["draw", "top"]),
        explore_in=st.sampled_from(["preferred", "random"]),
        willing=st.sampled_from([0.0, 0.5, 1.0]),
        eta=st.floats(0, 1),
        gamma=st.floats(0, 1),
    )
    def round(
        self,
        seed: int,
        n_p: int,
        n_r: int,
        dropout: float,
        order: scheduler.BidderOrder,
        explore_in: Literal["preferred", "random"],
        willing: float,
        eta: float,
        gamma: float,
    ) -> None:
        draw = np.random.default_rng(seed)
        start, shape = self.bank, (self.n, self.k)
        wanted = np.where(table(draw, shape, 0.6), draw.integers(0, 5, shape), -1)
        self.bank, bids, paid = tokens.auction(self.bank, wanted, self.price)
        psi = np.where(table(draw, shape, 0.8), draw.normal(size=shape), np.nan)
        available, seats_before = draw.random(self.n) < 0.9, draw.integers(0, 9, self.n)
        known = scheduler.Bidders(
            paid, wanted, draw.random(shape), psi, seats_before, available, self.bank.balances
        )
        chosen = scheduler.select(
            known,
            scheduler.BidderRule(order, ration=0.5),
            price=self.price,
            places=np.full(self.k, n_p),
            n_r=n_r,
            rng=draw,
            explore_in=explore_in,
        )
        performance, random = chosen.seats(self.n)
        served = draw.random(self.n) < willing
        self.bank, charged = tokens.charge(self.bank, paid, performance, random, self.price, served)
        seats = performance | random
        payments = seats | (paid & served[:, None])
        assert self.bank.pool.tolist() == (payments.sum(axis=0) * self.price).tolist()

        lost = seats & table(draw, shape, dropout)
        self.bank, returned = tokens.refund(self.bank, lost, self.price)
        moved = [bids, charged, returned]
        for cluster in range(self.k):
            payers, providers = (
                np.flatnonzero(rows[:, cluster]) for rows in (payments & ~lost, seats & ~lost)
            )
            moved += self.settle(cluster, payers, providers, psi[:, cluster], draw, eta, gamma)
        self.check(start, Transfers.concat(*moved))

    def settle(
        self,
        cluster: int,
        payers: np.ndarray,
        stayed: np.ndarray,
        psi: np.ndarray,
        draw: np.random.Generator,
        eta: float,
        gamma: float,
    ) -> list[Transfers]:
        """Reimburses and rewards one cluster; now and then nobody's update is usable."""
        collected = int(self.bank.pool[cluster])
        providers = stayed[: len(stayed) * int(draw.random() < 0.8)]
        accuracy = float(draw.random())
        share = tokens.utility(accuracy, self.best[cluster], eta, gamma)
        self.best[cluster] = float(np.fmax(accuracy, self.best[cluster]))
        self.bank, back = tokens.reimburse(self.bank, cluster, payers, share)
        self.bank, won = tokens.reward(
            self.bank, cluster, providers, psi[providers], np.ones(len(providers), int), payers
        )
        assert back.amount.sum() + won.amount.sum() == collected
        assert abs(int(back.amount.sum()) - share * collected) <= 0.5 + 1e-6
        return [back, won]

    def check(self, start: tokens.Bank, moved: Transfers) -> None:
        """The round's ledger explains every balance, and every fee was the one price."""
        account = statement(moved, self.n)
        assert (self.bank.balances == start.balances + account.net).all()
        assert set(moved.amount[np.isin(moved.kind, [Kind.BID, Kind.FEE])].tolist()) <= {self.price}
        assert not self.bank.pool.any()
        assert not self.bank.escrow.any()
        assert self.bank.issued == start.issued

    @invariant()
    def books_balance(self) -> None:
        bank = self.bank
        assert bank.balances.sum() + bank.escrow.sum() + bank.pool.sum() == bank.issued
        assert bank.balances.min() >= 0
        assert len(set(self.opened.amount.tolist())) == 1


TestRandomMarket = RandomMarket.TestCase
TestRandomMarket.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
