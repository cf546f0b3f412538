"""One round of the market with 3 clients and 2 clusters, worked out on paper.

One as printed is `tests/methods/test_ipfl_worked_round.py`. Price τ_p = 10, opening balance 100, η = 1/2,
γ = 0.2.

Importance weights. Accuracy of the two models on each client's points, and the clusters' means:

    client   accuracy     / means (0.8, 0.4)   normalised
    0        0.8  0.2       1    1/2           2/3  1/3
    1        0.8  0.4       1    1             1/2  1/2     (plain accuracy would say cluster 0)
    2        0.4  0.4       1/2  1             1/3  2/3     (plain accuracy could not tell)

Bids with T_h = 1/2. Client 1 earned half a price per seat in cluster 1 before, cluster 0 is unknown to it:
scores 0.5 and 0.5 + 0.1·0.5/2 = 0.525, so cluster 1 comes first.

    0: [0]    1: [1, 0]    2: [1]

Auction: 10 per bid. Balances 90, 80, 90; escrow 20, 20. All three clients were sent the models.

Seats. Three, in two clusters: the odd one is cluster 0's in round 0. Cluster 0 takes both bidders, cluster 1
its one with the larger contribution, 2. No explorers.

Payments. Everyone who was served pays for all its bids, client 1 for cluster 1 too, where it has no seat.

    balances 90, 80, 90; pools 20, 20; escrow empty                     (sum 300)

Training. Client 1 delivers nothing: it forfeits its price, and pool 0 stays at 20.

Reimbursement. Scores of the models on each payer's own points, and what it was used to:

    cluster 0   client 0: 0.8, used to 0.8: nothing missing
                client 1: 0.8, used to 1.0: a fifth missing, which is γ: a whole claim
    cluster 1   client 1: 0.4, used to 0.4;   client 2: 0.4, used to nothing yet: no claims

The median of the claims 0 and 1 is 1/2: U_0 = 1/2·1/2 = 1/4, so 5 of 20 tokens go back, all of them to client
1, the only one that got less. U_1 = 0.

Reward. Both providers are alone, with contributions above 0: client 0 gets the other 15, client 2 gets 20.

    balances 90 + 15 = 105, 80 + 5 = 85, 90 + 20 = 110; pools empty      (sum 300)
"""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.market.bank import TokenAccounts, TokenManager
from ipfl.market.market_rows import Transfer
from ipfl.market.seating import Seating
from ipfl.market.settlement import Served, SettlementRule, settle, usual_score_after
from ipfl.methods.ipfl_plus.importance import choose_bids, mean_returns, relative_importance
from ipfl.methods.ipfl_plus.seats import Bidders, SeatRecord, Seats, count_places

PRICE = 10
ACCURACY = np.array([[0.8, 0.2], [0.8, 0.4], [0.4, 0.4]])
MEANS = np.array([0.8, 0.4])
WEIGHTS = np.array([[2 / 3, 1 / 3], [1 / 2, 1 / 2], [1 / 3, 2 / 3]])
RANKS = np.array([[0, -1], [1, 0], [-1, 0]])
PAID = np.array([[1, 0], [1, 1], [0, 1]], bool)


def opened() -> TokenManager:
    return TokenManager(TokenAccounts.open(range(3), 2, 100), PRICE)


def paid_back_and_earned(manager: TokenManager) -> list[list[int]]:
    """What each client paid, refunds taken off, got back and earned."""
    back = np.zeros(3, int)
    for row in manager.transfers:
        back[row.client] += row.amount * (row.kind == "reimbursement")
    paid = back + manager.earned - manager.net.sum(axis=1)
    return [paid.tolist(), back.tolist(), manager.earned.tolist()]


def test_importance() -> None:
    for accuracy, expected in zip(ACCURACY, WEIGHTS, strict=True):
        np.testing.assert_allclose(relative_importance(accuracy, MEANS), expected)


def test_bids() -> None:
    nothing = np.array([np.nan, np.nan])
    assert choose_bids(WEIGHTS[0], None, nothing) == [0]
    assert choose_bids(WEIGHTS[1], None, np.array([np.nan, 0.5])) == [1, 0]
    assert choose_bids(WEIGHTS[2], None, nothing) == [1]


def test_auction_moves_the_price_of_every_bid_into_escrow() -> None:
    manager = opened()
    assert manager.collect_bids(RANKS).tolist() == PAID.tolist()
    assert manager.balances.tolist() == [90, 80, 90]
    assert manager.escrow.tolist() == [20, 20]
    assert manager.transfers == [
        Transfer("bid", 0, -2, 10, cluster=0, client=0),
        Transfer("bid", 1, -2, 10, cluster=0, client=1),
        Transfer("bid", 1, -4, 10, cluster=1, client=1),
        Transfer("bid", 2, -4, 10, cluster=1, client=2),
    ]


class TestPayments:
    RULE = SettlementRule("shortfall", eta=0.5, gamma=0.2)
    SCORE = np.array([[0.8, np.nan], [0.8, 0.4], [np.nan, 0.4]])
    USUAL = np.array([[0.8, np.nan], [1.0, 0.4], [np.nan, np.nan]])
    """What each client was used to."""
    SEATS = np.array([[1, 0], [1, 0], [0, 1]], bool)
    LOST = np.array([[0, 0], [1, 0], [0, 0]], bool)
    """Client 1 delivers nothing."""
    EVERYONE = np.ones(3, bool)

    def charged(self) -> tuple[TokenManager, np.ndarray]:
        """After the seats are dealt: the accounts, and who paid for what."""
        manager = opened()
        paid = manager.collect_bids(RANKS)
        seats = self.select(manager, paid)
        assert seats.all.tolist() == self.SEATS.tolist()
        payments = manager.charge(paid, seats, self.EVERYONE)
        return manager, payments

    def select(self, manager: TokenManager, paid: np.ndarray) -> Seating:
        places = count_places(3, 2, turn=0)
        assert places.tolist() == [2, 1]
        psi = np.array([[np.nan, np.nan], [np.nan, -1], [np.nan, 1]])
        known = Bidders(paid, RANKS, WEIGHTS, psi, self.EVERYONE, manager.balances)
        rng = np.random.default_rng(0)
        return Seats(rule="paper").select(known, SeatRecord.start(3, 2), places, 0, PRICE, rng)

    def settled(
        self, manager: TokenManager, payments: np.ndarray, psi: dict[int, list[float]]
    ) -> dict[int, float]:
        values = {k: np.array(value) for k, value in psi.items()}
        omega = np.zeros((3, 2), int)
        served = Served(payments, self.SEATS, self.SEATS & ~self.LOST, values, omega, self.SCORE, self.USUAL)
        return settle(manager, self.RULE, served, {})

    def test_everyone_who_was_served_pays_for_all_its_bids(self) -> None:
        manager, payments = self.charged()
        assert payments.tolist() == PAID.tolist()
        assert manager.balances.tolist() == [90, 80, 90]
        assert manager.pool.tolist() == [20, 20]
        assert not manager.escrow.any()

    def test_settlement(self) -> None:
        manager, payments = self.charged()
        share = self.settled(manager, payments, {0: [0.2], 1: [0.1]})
        assert share == pytest.approx({0: 1 / 4, 1: 0.0})
        assert manager.balances.tolist() == [105, 85, 110]
        assert not manager.pool.any()
        assert paid_back_and_earned(manager) == [[10, 20, 10], [0, 5, 0], [15, 0, 20]]

    def test_a_seat_lost_by_the_server_is_refunded(self) -> None:
        # Client 1 gets its 10 back and is no payer of cluster 0 any more: nobody there missed anything, and
        # client 0 earns the 10 that are left. Balances 100, 90, 110.
        manager, payments = self.charged()
        manager.refund(self.LOST)
        assert self.settled(manager, payments & ~self.LOST, {0: [0.2], 1: [0.1]}) == {0: 0.0, 1: 0.0}
        assert manager.balances.tolist() == [100, 90, 110]

    def test_what_nobody_earned_goes_back_to_those_who_had_no_seat(self) -> None:
        # Client 2 contributed nothing good and forfeits its 10: the 20 of pool 1 go to client 1.
        manager, payments = self.charged()
        self.settled(manager, payments, {0: [0.2], 1: [-0.1]})
        assert manager.balances.tolist() == [105, 105, 90]

    def test_what_is_known_afterwards(self) -> None:
        # Client 1 gets used to less: 0.8·1 + 0.2·0.8 = 0.96. Client 2 had no score of cluster 1 before.
        usual = usual_score_after(self.USUAL, self.SCORE, RANKS >= 0)
        np.testing.assert_allclose(usual, [[0.8, np.nan], [0.96, 0.4], [np.nan, 0.4]])
        # Its seat in cluster 0 cost 10 and brought 5. What it paid for cluster 1 bought models, no seat.
        manager, payments = self.charged()
        self.settled(manager, payments, {0: [0.2], 1: [0.1]})
        net = np.where(self.SEATS, manager.net, 0)
        assert net.tolist() == [[5, 0], [-5, 0], [0, 10]]
        np.testing.assert_allclose(mean_returns(self.SEATS[1], net[1], PRICE), [-0.5, np.nan])
