"""One round of the market with 3 clients and 2 clusters, worked out on paper.

Price τ_p = 10, opening balance 100, η = 2/3, γ = 0.2.

Importance weights. Accuracy of the two models on each client's points, and the clusters' means:

    client   accuracy     / means (0.8, 0.4)   normalised
    0        0.8  0.2       1    1/2           2/3  1/3
    1        0.8  0.4       1    1             1/2  1/2     (plain accuracy would say cluster 0)
    2        0.4  0.4       1/2  1             1/3  2/3     (plain accuracy could not tell)

Bids with T_h = 1/2. Client 1 earned half a price per seat in cluster 1 before, cluster 0 is unknown to it:
scores 0.5 and 0.5 + 0.1·0.5/2 = 0.525, so cluster 1 comes first.

    0: [0]    1: [1, 0]    2: [1]

Auction: 10 per bid. Balances 90, 80, 90; escrow 20, 20.

Seats. Cluster 0 takes both bidders (0, 1) and client 2 as an explorer, which had not bid there and pays
from its balance. Cluster 1 takes its strongest bidder, 2 (2/3 against 1/2); the bid of client 1 is refunded.

    balances 90, 90, 80; pools 30, 10; escrow empty                     (sum 300)

Reimbursement. Cluster 0 went from 0.60 to 0.66, a gain of 0.1, half of γ: U = 2/3 · (0.2 − 0.1)/0.2 = 1/3,
so 10 of 30 tokens go back to three payers: 4, 3, 3 (the odd one to the lowest id). Cluster 1 has no earlier
round: U = 0.

    balances 94, 93, 83; pools 20, 10

Reward. Cluster 0: ψ = 0.2, 0.5, 0.1 for clients 0, 1, 2, hence ranks 2, 3, 1 and shares of 20 tokens
2/6, 3/6, 1/6 = 6.67, 10, 3.33: whole tokens 6, 10, 3, the one left over to the largest remainder (client 0).
Cluster 1: client 2 gets all 10.

    balances 94 + 7 = 101, 93 + 10 = 103, 83 + 3 + 10 = 96; pools empty  (sum 300)
"""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core import Transfer
from ipfl.ledger.accounts import Kind, Transfers, statement
from ipfl.methods.ipfl import tokens
from ipfl.methods.ipfl.preferences import choose_bids, importance_weights, update_returns
from ipfl.methods.ipfl.scheduler import order_bidders

PRICE = 10
ACCURACY = np.array([[0.8, 0.2], [0.8, 0.4], [0.4, 0.4]])
MEANS = np.array([0.8, 0.4])
WEIGHTS = np.array([[2 / 3, 1 / 3], [1 / 2, 1 / 2], [1 / 3, 2 / 3]])
PAID = np.array([[1, 0], [1, 1], [0, 1]], bool)
SELECTED = np.array([[1, 0], [1, 0], [0, 1]], bool)
EXPLORERS = np.array([[0, 0], [0, 0], [1, 0]], bool)
NONE = np.zeros((3, 2), bool)


def after_seats() -> tuple[tokens.Bank, Transfers]:
    bank, _ = tokens.open_accounts(3, 2, 100)
    bank, bid, _ = tokens.auction(bank, np.array([[0, -1], [1, 0], [-1, 0]]), PRICE)
    bank, seats = tokens.seat(bank, PAID, SELECTED, EXPLORERS, PRICE)
    return bank, Transfers.concat(bid, seats)


def test_importance_weights() -> None:
    for accuracy, expected in zip(ACCURACY, WEIGHTS, strict=True):
        np.testing.assert_allclose(importance_weights(accuracy, MEANS), expected)


def test_bids() -> None:
    nothing = np.array([np.nan, np.nan])
    assert choose_bids(WEIGHTS[0], None, nothing) == [0]
    assert choose_bids(WEIGHTS[1], None, np.array([np.nan, 0.5])) == [1, 0]
    assert choose_bids(WEIGHTS[2], None, nothing) == [1]


def test_auction_moves_the_price_of_every_bid_into_escrow() -> None:
    bank, _ = tokens.open_accounts(3, 2, 100)
    bank, moved, paid = tokens.auction(bank, np.array([[0, -1], [1, 0], [-1, 0]]), PRICE)
    assert bank.balances.tolist() == [90, 80, 90]
    assert bank.escrow.tolist() == [20, 20]
    assert paid.tolist() == PAID.tolist()
    assert moved.rows(np.arange(3)) == (
        Transfer("bid", 0, -2, 10, cluster=0, client=0),
        Transfer("bid", 1, -2, 10, cluster=0, client=1),
        Transfer("bid", 1, -4, 10, cluster=1, client=1),
        Transfer("bid", 2, -4, 10, cluster=1, client=2),
    )


def test_strongest_bidder_of_cluster_1_is_client_2() -> None:
    unknown = np.full(3, np.nan)
    rng = np.random.default_rng(0)
    assert order_bidders(np.array([1, 2]), WEIGHTS[:, 1], unknown, rng, "top").tolist() == [2, 1]


def test_seats_fill_the_pools_and_refund_the_rest() -> None:
    bank, _ = after_seats()
    assert bank.balances.tolist() == [90, 90, 80]
    assert bank.escrow.tolist() == [0, 0]
    assert bank.pool.tolist() == [30, 10]


def test_settlement() -> None:
    bank, moved = after_seats()
    everyone, only_2 = np.array([0, 1, 2]), np.array([2])

    share = tokens.utility(0.66, 0.60, eta=2 / 3, gamma=0.2)
    assert share == pytest.approx(1 / 3)
    bank, back_0 = tokens.reimburse(bank, 0, everyone, share)
    bank, back_1 = tokens.reimburse(bank, 1, only_2, tokens.utility(0.5, None, eta=2 / 3, gamma=0.2))
    assert back_0.amount.tolist() == [4, 3, 3]
    assert len(back_1) == 0
    assert bank.balances.tolist() == [94, 93, 83]
    assert bank.pool.tolist() == [20, 10]

    bank, won_0 = tokens.reward(bank, 0, everyone, np.array([0.2, 0.5, 0.1]), np.ones(3, int), everyone)
    bank, won_1 = tokens.reward(bank, 1, only_2, np.array([-1.0]), np.ones(1, int), only_2)
    assert won_0.amount.tolist() == [7, 10, 3]
    assert won_1.amount.tolist() == [10]
    assert bank.balances.tolist() == [101, 103, 96]
    assert bank.pool.tolist() == [0, 0]
    assert bank.issued == 300

    # Consumer side: one fee each, two for client 2 (the refunded bid of client 1 does not count).
    account = statement(Transfers.concat(moved, back_0, back_1, won_0, won_1), 3)
    assert account.paid.tolist() == [10, 10, 20]
    assert account.reimbursed.tolist() == [4, 3, 3]
    assert account.earned.tolist() == [7, 10, 13]
    assert account.net.tolist() == [1, 3, -4]


def test_what_a_client_remembers_of_it() -> None:
    # Client 2 in cluster 0: paid 10, got 3 + 3, net −4 = −0.4 prices. It had one seat there with +0.2
    # before: mean (0.2 − 0.4)/2 = −0.1. Cluster 1: net 0 in its first seat.
    before = {"clusters": [0], "returns": [0.2], "seats": [1]}
    after = update_returns(before, [0, 1], [-4, 0], PRICE)
    assert after["clusters"] == [0, 1]
    assert after["returns"] == pytest.approx([-0.1, 0.0])
    assert after["seats"] == [2, 1]


def test_a_client_that_drops_out_is_refunded_and_earns_nothing() -> None:
    # Client 1 does not deliver: its 10 come back, the pool of cluster 0 is 20. Nothing is reimbursed
    # (U = 0); ranks of clients 0 and 2 by ψ 0.2 > 0.1: 2/3 and 1/3 of 20 = 13.3, 6.7 → 13, 7.
    bank, _ = after_seats()
    dropped = NONE.copy()
    dropped[1, 0] = True
    bank, back = tokens.refund(bank, dropped, PRICE)
    assert back.rows(np.arange(3)) == (Transfer("refund", -3, 1, 10, cluster=0, client=1),)
    stayed = np.array([0, 2])
    bank, won = tokens.reward(bank, 0, stayed, np.array([0.2, 0.1]), np.ones(2, int), stayed)
    assert won.amount.tolist() == [13, 7]
    assert bank.balances.tolist() == [103, 100, 87]


def test_a_cluster_without_providers_returns_its_pool_to_the_payers() -> None:
    bank, _ = after_seats()
    nobody = np.array([], int)
    bank, back = tokens.reward(bank, 0, nobody, np.array([]), nobody, payers=np.array([2, 1, 0]))
    assert set(back.kind.tolist()) == {Kind.REFUND}
    assert bank.balances.tolist() == [100, 100, 90]
    assert bank.pool.tolist() == [0, 10]
