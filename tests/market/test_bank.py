"""Random rounds in any order: the accounts add up, nobody overdraws, pools are empty after each round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ipfl.ledger.canonical import digest
from ipfl.market import bank as accounts
from ipfl.market import payments as tokens
from ipfl.market.bank import Bank, Kind, TransferRows, Transfers, TransferTable, client_totals, post
from ipfl.market.market_rows import Transfer
from ipfl.market.token_manager import TokenManager


def table(draw: np.random.Generator, shape: tuple[int, int], share: float) -> np.ndarray:
    return draw.random(shape) < share


class RandomMarket(RuleBasedStateMachine):
    """Rounds with random bids, drop-outs, clusters without updates and random contributions."""

    @initialize(n=st.integers(1, 8), k=st.integers(1, 3), price=st.integers(1, 12), prices=st.integers(1, 4))
    def open(self, n: int, k: int, price: int, prices: int) -> None:
        self.n, self.k, self.price = n, k, price
        self.bank, self.opened = tokens.open_accounts(n, k, price * prices)
        self.best = [float("nan")] * k

    @rule(
        seed=st.integers(0, 2**32),
        dropout=st.sampled_from([0.0, 0.3, 1.0]),
        willing=st.sampled_from([0.0, 0.5, 1.0]),
        eta=st.floats(0, 1),
        gamma=st.floats(0, 1),
    )
    def round(
        self,
        seed: int,
        dropout: float,
        willing: float,
        eta: float,
        gamma: float,
    ) -> None:
        draw = np.random.default_rng(seed)
        start, shape = self.bank, (self.n, self.k)
        wanted = np.where(table(draw, shape, 0.6), draw.integers(0, 5, shape), -1)
        self.bank, bids, paid = tokens.auction(self.bank, wanted, self.price)
        psi = np.where(table(draw, shape, 0.8), draw.normal(size=shape), np.nan)
        performance = paid & table(draw, shape, 0.5)
        able = (self.bank.balances >= self.price)[:, None] & (np.arange(self.k) == draw.integers(self.k))
        random = ~performance & (paid | able) & table(draw, shape, 0.3)  # one seat each beyond paid bids
        served = draw.random(self.n) < willing
        self.bank, charged = tokens.charge(self.bank, paid, performance, random, self.price, served)
        seats = performance | random
        payments = seats | (paid & served[:, None])
        assert self.bank.pool.tolist() == (payments.sum(axis=0) * self.price).tolist()

        lost = seats & table(draw, shape, dropout)
        self.bank, returned = tokens.refund(self.bank, lost, self.price)
        moved = [bids, *charged, returned]
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
        account = client_totals(moved, self.n)
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


SIDES = {
    Kind.BID: ("client", "escrow"),
    Kind.FEE: ("escrow", "pool"),
    Kind.REFUND: ("pool", "client"),
}


@pytest.mark.parametrize("kind", SIDES)
def test_a_table_moves_what_its_transfers_would_move_one_by_one(kind: Kind) -> None:
    # The slow way is the same entries as columns, posted transfer by transfer.
    entries = np.random.default_rng(0).random((40, 3)) < 0.4
    before = Bank(np.full(40, 30), np.full(3, 500), np.full(3, 500), 40 * 30 + 3000)
    table = TransferTable(kind, *SIDES[kind], 10, entries)  # type: ignore[arg-type]
    slow, fast = post(before, Transfers.concat(table)), post(before, table)
    for name in ("balances", "escrow", "pool", "issued"):
        assert np.array_equal(getattr(slow, name), getattr(fast, name)), name
    assert len(table) == len(Transfers.concat(table)) == entries.sum()


def test_a_table_cannot_overdraw() -> None:
    poor = Bank(np.array([9]), np.zeros(1, np.int64), np.zeros(1, np.int64), 9)
    with pytest.raises(ValueError, match="overdraft: balance 0"):
        post(poor, TransferTable(Kind.BID, "client", "escrow", 10, np.array([[True]])))
    with pytest.raises(ValueError, match="negative amount"):
        post(poor, TransferTable(Kind.BID, "client", "escrow", -1, np.array([[True]])))


class TestTransferRows:
    """Two bids of 10 for cluster 1, by rows 0 and 2; 20 from its pool to row 2. Rows are clients 5, 6, 9."""

    ROWS = (
        Transfer("bid", 5, -4, 10, 1, 5),
        Transfer("bid", 9, -4, 10, 1, 9),
        Transfer("reward", -5, 9, 20, 1, 9),
    )

    def made(self) -> TransferRows:
        entries = np.array([[False, True], [False, False], [False, True]])
        bids = TransferTable(Kind.BID, "client", "escrow", 10, entries)
        reward = Transfers.of(Kind.REWARD, -5, np.array([2]), 20, 1, np.array([2]))
        return TransferRows([bids, reward], np.array([5, 6, 9]))

    def test_they_are_the_rows_that_a_round_reports(self) -> None:
        made = self.made()
        assert made == self.ROWS
        assert self.ROWS == made  # noqa: SIM300
        assert made != self.ROWS[:2]
        assert (made[0], made[-1], made[1:], len(made)) == (*self.ROWS[::2], self.ROWS[1:], 3)

    def test_few_are_made_once_and_many_whenever_they_are_read(self, monkeypatch) -> None:
        few = self.made()
        assert [one is same for one, same in zip(few, few, strict=True)] == [True] * 3
        monkeypatch.setattr(accounts, "_FEW", 2)
        many = self.made()
        assert [one is same for one, same in zip(many, many, strict=True)] == [False] * 3
        assert tuple(few) == tuple(many) == self.ROWS

    def test_they_have_the_same_hash(self) -> None:
        for rows, others in ((self.made(), self.ROWS), (TransferRows([], np.array([5])), ())):
            content = {"round": 3, "line": {"b": [1], "transfers": rows, "a": {}}, "é": None}
            assert digest(content) == digest({**content, "line": {"b": [1], "transfers": others, "a": {}}})


def test_what_a_round_brought_each_client_in_each_cluster() -> None:
    # The slow way is a statement per cluster.
    draw, shape = np.random.default_rng(1), (30, 3)
    bank, _ = tokens.open_accounts(*shape, 50)
    manager = TokenManager(bank, 10)
    paid = manager.collect_bids(np.where(draw.random(shape) < 0.5, 0, -1), draw.random(30) < 0.8)
    selected = paid & (paid.cumsum(axis=0) <= 4)
    explorers = ~paid & ((~paid).cumsum(axis=0) <= 2)
    payments = manager.charge(paid, selected, explorers, draw.random(30) < 0.5)
    manager.refund((selected | explorers) & (draw.random(shape) < 0.2))
    payers = np.flatnonzero(payments[:, 0])
    manager.settle(
        0, payers[:3], np.arange(3.0), np.ones(3, int), refunded=payers, reimbursed=payers, share=0.2
    )
    slow = [client_totals(manager.transfers, 30, cluster) for cluster in range(3)]
    assert manager.net.tolist() == np.stack([one.net for one in slow], axis=1).tolist()
    assert manager.earned.tolist() == sum(one.earned for one in slow).tolist()  # type: ignore[union-attr]
    assert {kind for kind in Kind if (manager.transfers.kind == kind).any()} >= {
        Kind.BID, Kind.FEE, Kind.REFUND, Kind.REIMBURSEMENT, Kind.REWARD,
    }  # fmt: skip
