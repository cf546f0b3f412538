"""One round of the market with 3 clients and 2 clusters, worked out on paper: as printed, then as it is now.

The rules as printed. Price τ_p = 10, opening balance 100, η = 2/3, γ = 0.2.

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

The same round as it is now (`TestAsItIsNow`): all three clients were sent the models, η = 1/2, γ = 0.2. The
same bids, so again balances 90, 80, 90 and escrow 20, 20.

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

from ipfl.market import payments as tokens
from ipfl.market.bank import Kind, Transfers, client_totals
from ipfl.market.market_rows import Transfer
from ipfl.market.settlement import Served, SettlementRule, settle, usual_score_after
from ipfl.market.token_manager import TokenManager
from ipfl.methods.ipfl_plus.importance import choose_bids, mean_returns, relative_importance
from ipfl.methods.ipfl_plus.seats import Bidders, SeatRecord, Seats, Selection, count_places, z_scores

PRICE = 10
ACCURACY = np.array([[0.8, 0.2], [0.8, 0.4], [0.4, 0.4]])
MEANS = np.array([0.8, 0.4])
WEIGHTS = np.array([[2 / 3, 1 / 3], [1 / 2, 1 / 2], [1 / 3, 2 / 3]])
RANKS = np.array([[0, -1], [1, 0], [-1, 0]])
PAID = np.array([[1, 0], [1, 1], [0, 1]], bool)
SELECTED = np.array([[1, 0], [1, 0], [0, 1]], bool)
EXPLORERS = np.array([[0, 0], [0, 0], [1, 0]], bool)
NONE = np.zeros((3, 2), bool)


def after_seats() -> tuple[tokens.Bank, Transfers]:
    bank, _ = tokens.open_accounts(3, 2, 100)
    bank, bid, _ = tokens.auction(bank, RANKS, PRICE)
    bank, seats = tokens.charge(bank, PAID, SELECTED, EXPLORERS, PRICE, served=np.zeros(3, bool))
    return bank, Transfers.concat(bid, *seats)


def test_importance() -> None:
    for accuracy, expected in zip(ACCURACY, WEIGHTS, strict=True):
        np.testing.assert_allclose(relative_importance(accuracy, MEANS), expected)


def test_bids() -> None:
    nothing = np.array([np.nan, np.nan])
    assert choose_bids(WEIGHTS[0], None, nothing) == [0]
    assert choose_bids(WEIGHTS[1], None, np.array([np.nan, 0.5])) == [1, 0]
    assert choose_bids(WEIGHTS[2], None, nothing) == [1]


def test_auction_moves_the_price_of_every_bid_into_escrow() -> None:
    bank, _ = tokens.open_accounts(3, 2, 100)
    bank, moved, paid = tokens.auction(bank, RANKS, PRICE)
    assert bank.balances.tolist() == [90, 80, 90]
    assert bank.escrow.tolist() == [20, 20]
    assert paid.tolist() == PAID.tolist()
    assert Transfers.concat(moved).rows(np.arange(3)) == (
        Transfer("bid", 0, -2, 10, cluster=0, client=0),
        Transfer("bid", 1, -2, 10, cluster=0, client=1),
        Transfer("bid", 1, -4, 10, cluster=1, client=1),
        Transfer("bid", 2, -4, 10, cluster=1, client=2),
    )


def test_strongest_bidder_of_cluster_1_is_client_2() -> None:
    # In the draw it has the larger weight: z(2/3) > z(1/2) among 1/3, 1/2 and 2/3.
    assert z_scores(WEIGHTS[:, 1]).argsort().tolist() == [0, 1, 2]


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
    account = client_totals(Transfers.concat(moved, back_0, back_1, won_0, won_1), 3)
    assert account.paid.tolist() == [10, 10, 20]
    assert account.reimbursed.tolist() == [4, 3, 3]
    assert account.earned.tolist() == [7, 10, 13]
    assert account.net.tolist() == [1, 3, -4]


def test_what_a_client_is_told_of_it() -> None:
    # Client 2 in cluster 0: paid 10, got 3 + 3, net −4. It had one seat there with +2 before: two seats that
    # brought −2, or (0.2 − 0.4)/2 = −0.1 prices each. Cluster 1: net 0 in its first seat. No seat: unknown.
    np.testing.assert_allclose(mean_returns([2, 1, 0], [-2, 0, 0], PRICE), [-0.1, 0.0, np.nan])


def test_a_client_that_drops_out_is_refunded_and_earns_nothing() -> None:
    # Client 1 does not deliver: its 10 come back, the pool of cluster 0 is 20. Nothing is reimbursed
    # (U = 0); ranks of clients 0 and 2 by ψ 0.2 > 0.1: 2/3 and 1/3 of 20 = 13.3, 6.7 → 13, 7.
    bank, _ = after_seats()
    dropped = NONE.copy()
    dropped[1, 0] = True
    bank, back = tokens.refund(bank, dropped, PRICE)
    assert Transfers.concat(back).rows(np.arange(3)) == (Transfer("refund", -3, 1, 10, cluster=0, client=1),)
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


class TestAsItIsNow:
    RULE = SettlementRule("shortfall", "positive", eta=0.5, gamma=0.2)
    SCORE = np.array([[0.8, np.nan], [0.8, 0.4], [np.nan, 0.4]])
    USUAL = np.array([[0.8, np.nan], [1.0, 0.4], [np.nan, np.nan]])
    """What each client was used to."""
    SEATS = np.array([[1, 0], [1, 0], [0, 1]], bool)
    LOST = np.array([[0, 0], [1, 0], [0, 0]], bool)
    """Client 1 delivers nothing."""
    EVERYONE = np.ones(3, bool)

    def charged(self) -> tuple[TokenManager, np.ndarray]:
        """After the seats are dealt: the accounts, and who paid for what."""
        manager = TokenManager(tokens.open_accounts(3, 2, 100)[0], PRICE)
        paid = manager.collect_bids(RANKS)
        seats = self.select(manager, paid).seating(3)
        assert seats.all.tolist() == self.SEATS.tolist()
        payments = manager.charge(paid, seats.selected, seats.explorers, self.EVERYONE)
        return manager, payments

    def select(self, manager: TokenManager, paid: np.ndarray) -> Selection:
        places = count_places(3, 2, turn=0)
        assert places.tolist() == [2, 1]
        psi = np.array([[np.nan, np.nan], [np.nan, -1], [np.nan, 1]])
        known = Bidders(paid, RANKS, WEIGHTS, psi, self.EVERYONE, manager.bank.balances)
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
        assert manager.bank.balances.tolist() == [90, 80, 90]
        assert manager.bank.pool.tolist() == [20, 20]
        assert not manager.bank.escrow.any()

    def test_settlement(self) -> None:
        manager, payments = self.charged()
        share = self.settled(manager, payments, {0: [0.2], 1: [0.1]})
        assert share == pytest.approx({0: 1 / 4, 1: 0.0})
        assert manager.bank.balances.tolist() == [105, 85, 110]
        assert not manager.bank.pool.any()
        account = client_totals(manager.transfers, 3)
        assert account.paid.tolist() == [10, 20, 10]
        assert account.reimbursed.tolist() == [0, 5, 0]
        assert account.earned.tolist() == [15, 0, 20]

    def test_a_seat_lost_by_the_server_is_refunded(self) -> None:
        # Client 1 gets its 10 back and is no payer of cluster 0 any more: nobody there missed anything, and
        # client 0 earns the 10 that are left. Balances 100, 90, 110.
        manager, payments = self.charged()
        manager.refund(self.LOST)
        assert self.settled(manager, payments & ~self.LOST, {0: [0.2], 1: [0.1]}) == {0: 0.0, 1: 0.0}
        assert manager.bank.balances.tolist() == [100, 90, 110]

    def test_what_nobody_earned_goes_back_to_those_who_had_no_seat(self) -> None:
        # Client 2 contributed nothing good and forfeits its 10: the 20 of pool 1 go to client 1.
        manager, payments = self.charged()
        self.settled(manager, payments, {0: [0.2], 1: [-0.1]})
        assert manager.bank.balances.tolist() == [105, 105, 90]

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
