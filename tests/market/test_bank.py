"""Tokens between rounds and on their way through one: by hand, and whatever happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.errors import InputError
from ipfl.market.bank import (
    ISSUER,
    TokenAccounts,
    TokenManager,
    account_name,
    client_balances,
    opening_transfers,
)
from ipfl.market.seating import Seating
from ipfl.market.settlement import Served, SettlementRule, settle

RULES = st.builds(
    SettlementRule,
    st.sampled_from(["shortfall", "printed"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 30),
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    RULES,
)
def test_no_token_comes_from_nowhere_or_gets_lost(
    seed: int, n: int, k: int, price: int, prices: int, dropout: float, willing: float, rule: SettlementRule
) -> None:
    """Rounds with random bids, seats, drop-outs and contributions."""
    draw, shape, ids = np.random.default_rng(seed), (n, k), 2 * np.arange(n) + 5
    accounts = TokenAccounts.open(ids.tolist(), k, price * prices)
    moved = list(opening_transfers(ids.tolist(), price * prices))
    for _ in range(4):
        manager = TokenManager(accounts, price)
        wanted = np.where(draw.random(shape) < 0.6, draw.integers(0, 5, shape), -1)
        paid = manager.collect_bids(wanted, draw.random(n) < 0.9)
        seats = Seating.empty(shape)
        seats.selected[:] = paid & (draw.random(shape) < 0.5)
        able = (manager.balances >= price)[:, None] & (np.arange(k) == draw.integers(k))
        random = ~seats.selected & (paid | able) & (draw.random(shape) < 0.3)  # one each beyond paid bids
        seats.explorers[:] = random
        served = draw.random(n) < willing
        payments = manager.charge(paid, seats, served)
        assert payments.tolist() == (seats.all | (paid & served[:, None])).tolist()
        assert manager.pool.tolist() == (payments.sum(axis=0) * price).tolist()
        assert not manager.escrow.any()

        lost = seats.all & (draw.random(shape) < dropout)
        manager.refund(lost)
        delivered = seats.all & ~lost & (draw.random(k) < 0.8)
        unsure = np.where(draw.random(shape) < 0.8, draw.normal(size=shape), np.nan)
        psi = {c: unsure[delivered[:, c], c] for c in range(k)}
        score, usual = draw.random((2, *shape))
        told = Served(payments & ~lost, seats.all, delivered, psi, np.ones(shape, int), score, usual)
        known = {c: (float(draw.random()), float(draw.random())) for c in range(k)}
        shares = settle(manager, rule, told, known)
        assert all(0 <= share <= rule.eta for share in shares.values())
        assert not manager.pool.any()

        after = accounts.after(manager)  # which refuses balances that do not add up
        assert (after.balances == accounts.balances + manager.net.sum(axis=1)).all()
        earned = np.bincount(
            [int(ids.searchsorted(row.client)) for row in manager.transfers if row.kind == "reward"],
            [row.amount for row in manager.transfers if row.kind == "reward"],
            minlength=n,
        )
        assert (after.earned - accounts.earned == earned).all()
        assert {row.amount for row in manager.transfers if row.kind in ("bid", "fee")} <= {price}
        accounts, moved = after, moved + manager.transfers
    assert client_balances(moved) == dict(zip(ids.tolist(), accounts.balances.tolist(), strict=True))


def manager(balances: list[int], clusters: int, price: int = 10) -> TokenManager:
    """Clients 0, 1 and so on with these tokens."""
    accounts = TokenAccounts.open(range(len(balances)), clusters, 0, dict(enumerate(balances)))
    return TokenManager(accounts, price)


def seated(selected: Any, explorers: Any) -> Seating:
    return dataclasses.replace(
        Seating.empty(np.shape(selected)), selected=np.array(selected), explorers=np.array(explorers)
    )


def kinds(made: TokenManager) -> list[str]:
    return [row.kind for row in made.transfers]


YES, NO = [[True]], [[False]]
NOBODY = np.zeros(1, bool)
"""Of a single client: it is not served, and pays for seats only."""


class TestOpening:
    def test_everybody_opens_with_the_same_or_with_what_it_brings(self) -> None:
        accounts = TokenAccounts.open([9, 2, 5], 2, 100, {5: 30})
        assert (accounts.ids.tolist(), accounts.balances.tolist()) == ([2, 5, 9], [100, 30, 100])
        assert accounts.issued == 230
        rows = opening_transfers([9, 2, 5], 100, {5: 30})
        assert [(row.source, row.target, row.amount) for row in rows] == [
            (ISSUER, 2, 100), (ISSUER, 5, 30), (ISSUER, 9, 100),
        ]  # fmt: skip

    @pytest.mark.parametrize("opening", [-1, 2**61])
    def test_what_cannot_be_issued(self, opening: int) -> None:
        with pytest.raises(InputError, match="cannot issue"):
            TokenAccounts.open(range(3), 1, opening)
        with pytest.raises(InputError, match="cannot issue"):
            manager([5], 1).subsidise(0, np.arange(3), opening)

    def test_accounts_that_do_not_add_up_cannot_be_made(self) -> None:
        accounts = TokenAccounts.open(range(2), 1, 5)
        for wrong in ({"issued": 9}, {"balances": np.array([11, -1])}):
            with pytest.raises(ValueError, match="tokens that were issued"):
                dataclasses.replace(accounts, **wrong)


class TestCharge:
    def test_a_poor_client_pays_its_most_wanted_bids_only(self) -> None:
        # 25 tokens at 10 each: two of three bids, ranks 0 and 4 (only the order of ranks counts).
        made = manager([25, 9, 30], 3)
        paid = made.collect_bids(np.array([[4, 9, 0], [0, -1, -1], [2, 1, 0]]))
        assert paid.tolist() == [[True, False, True], [False] * 3, [True] * 3]
        assert (made.balances.tolist(), made.escrow.tolist()) == ([5, 9, 0], [20, 10, 20])

    def test_an_explorer_with_a_bid_in_escrow_pays_from_there(self) -> None:
        made = manager([10], 1)
        made.charge(made.collect_bids(np.array([[0]])), seated(NO, YES), NOBODY)
        assert made.pool.tolist() == [10]
        assert [account_name(row.source) for row in made.transfers] == ["client 0", "escrow 0"]

    def test_seats_that_must_not_be(self) -> None:
        with pytest.raises(ValueError, match="not in escrow"):
            manager([10], 1).charge(np.array(NO), seated(YES, NO), NOBODY)
        with pytest.raises(ValueError, match="twice"):
            manager([10], 1).charge(np.array(YES), seated(YES, YES), NOBODY)
        with pytest.raises(ValueError, match="overdraft: client 0 would hold -1"):
            manager([9], 1).charge(np.array(NO), seated(NO, YES), NOBODY)
        with pytest.raises(ValueError, match="overdraft: pool 0 would hold -10"):
            manager([9], 1).refund(np.array(YES))

    def test_an_explorer_cannot_pay_with_a_bid_that_is_about_to_be_refunded(self) -> None:
        # Its only 10 tokens are in escrow for cluster 0 when it is seated in cluster 1.
        made = manager([10], 2)
        paid = made.collect_bids(np.array([[0, -1]]))
        with pytest.raises(ValueError, match="overdraft"):
            made.charge(paid, seated([[False, False]], [[False, True]]), NOBODY)

    def test_who_is_served_pays_for_all_its_bids(self) -> None:
        # Both clients bid 10 for both clusters and hold 5 more. Client 0 has a seat in cluster 0 and is
        # served: it pays twice. Client 1 explores cluster 1 and is not served: its bid for cluster 0 goes
        # back.
        made = manager([25, 25], 2)
        paid = made.collect_bids(np.array([[0, 1], [0, 1]]))
        seats = seated([[True, False], [False, False]], [[False, False], [False, True]])
        made.charge(paid, seats, np.array([True, False]))
        assert (made.balances.tolist(), made.pool.tolist()) == ([5, 15], [10, 20])
        assert kinds(made) == ["bid"] * 4 + ["fee"] * 3 + ["refund"]

    def test_bids_of_a_round_that_is_rolled_back(self) -> None:
        made = manager([15, 15], 1)
        made.return_bids(np.array([[0], [0]]))
        assert (made.balances.tolist(), kinds(made)) == ([15, 15], ["bid"] * 2 + ["refund"] * 2)


def test_reimbursement_rounds_the_sum_and_favours_low_ids() -> None:
    # 0.35 of 10 tokens is 3.5 → 4 would be the nearest above; 0.35 in binary lies just below, so 3.
    # 0.75: 7.5 exactly → 8.
    for share, expected in ((0.35, [0, 2, 0, 1]), (0.75, [0, 4, 0, 4])):
        made = manager([0] * 4, 1)
        made.subsidise(0, np.array([0]), 10)
        made.reimburse(0, np.array([1, 3]), share)
        assert made.balances.tolist() == expected
        made.reimburse(0, np.array([], int), share)
        assert kinds(made) == ["allowance", "reimbursement", "reimbursement"]
