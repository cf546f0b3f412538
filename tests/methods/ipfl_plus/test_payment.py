"""Payment: who pays, who gets the models, what a lost seat costs, and an economy of many rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.federation import Played
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    market,
    moved,
    no_answer,
    no_bid,
    play,
    prefer_parity,
    queries,
    train,
    unless,
)

from economy import simulate
from ipfl.market.bank import ISSUER
from ipfl.methods.ipfl_plus.contribution import LOST_PRIORITY
from ipfl.methods.ipfl_plus.state import MarketState

OPENING = 100 * 100


class TestAccess:
    """Clients 2 and 3 stop bidding in round 2 and come back in round 4."""

    STOPPED = (2, 3)

    @pytest.fixture
    def played(self) -> dict[str, Any]:
        method_ = market()
        before, _, _ = play(method_, 2, HONEST)
        stop = HONEST | {"preference": unless(self.STOPPED, prefer_parity, no_bid)}
        without, _, engine = play(method_, 2, stop, state=before, first=2)
        back, _, after = play(method_, 2, HONEST, state=without, first=4)
        return {
            "before": before,
            "without": without,
            "back": back,
            "queries": queries(engine) + queries(after),
        }

    def test_who_stops_paying_keeps_what_it_had_bought(self, played):
        # It had paid in round 1, and so has the models after it. Those after rounds 2 and 3 it does not get.
        before, without = played["before"], played["without"]
        assert not np.array_equal(before.clusters.models[0], without.clusters.models[0])
        for client in self.STOPPED:
            kept = market().offer(without, client)
            assert kept.facts["clusters"] == [0, 1]
            assert kept.facts["means"] == before.preferences.means.tolist()
            for k in (0, 1):
                np.testing.assert_array_equal(kept.params[f"cluster_{k}"], before.clusters.models[k])
        for client in (0, 7):
            np.testing.assert_array_equal(
                market().offer(without, client).params["cluster_1"], without.clusters.models[1]
            )

    def test_it_is_asked_without_models_until_it_pays_again(self, played):
        # Round 2: it had paid in round 1, and is sent models. Rounds 3 and 4: it had not, and is not; it bids
        # in round 4, pays, and is sent models in round 5.
        sent = [
            {client: bool(record.params) for client, record in query.items()} for query in played["queries"]
        ]
        assert [one[3] for one in sent] == [True, False, False, True]
        assert all(one[0] for one in sent)

    def test_who_pays_again_has_the_newest_models(self, played):
        back = played["back"]
        for client in self.STOPPED:
            np.testing.assert_array_equal(
                market().offer(back, client).params["cluster_0"], back.clusters.models[0]
            )
        assert back.access.held_means == {}

    def test_newcomers_get_the_models_of_the_moment(self, played):
        without = played["without"]
        offer = market().offer(without, 99)
        np.testing.assert_array_equal(offer.params["cluster_0"], without.clusters.models[0])

    def test_who_is_broke_loses_access(self):
        # Opening of two prices. Client 1 never has the better update; once it cannot pay it gets no models.
        state, _, engine = play(market(payment={"opening": 200}), 8, HONEST)
        broke = np.flatnonzero(state.accounts.balances < 100).tolist()
        assert broke
        for client in broke:
            assert client in state.access.held_means
        assert not all(record.params for record in queries(engine)[-1].values())

    def test_trial_rounds_are_free(self):
        # trial_rounds = 2: the queries of rounds 1 and 2 are free, and only seats are paid for; from the
        # third query on everybody pays. All of them are sent the models all the same.
        _, done, engine = play(market(payment={"trial_rounds": 2}), 4, HONEST)
        assert [len(moved(one, "fee")) for one in done] == [6, 6, 6, 8]
        assert all(record.params for query in queries(engine) for record in query.values())


class TestWillingPayers:
    @pytest.mark.parametrize(
        ("subsidy", "alone", "two"),
        # 133⅓ and 266⅔ are whole tokens by the largest remainder.
        [(0, [300], [100, 200]), (0.5, [350], [133, 267])],
    )
    def test_in_the_first_round_only_seats_are_paid_for(self, subsidy, alone, two):
        # Nobody was asked, so nobody was served. Three payers in each cluster. Positive is who adds more than
        # the mean of the two others; ranks among those alone. With half a price issued for each that earns,
        # one earns 300 + 50, and two share 300 + 100 by rank.
        state, (first,), _ = play(market(payment={"subsidy": subsidy}), 1, HONEST)
        assert len(moved(first, "fee")) == 6
        issued = [row for row in first.done.market.transfers if row.source == ISSUER]
        for k in (0, 1):
            ids = sorted(seat.client for seat in first.done.seats if seat.cluster == k)
            good = [i for i in ids if i > np.mean([j for j in ids if j != i])]
            subsidised = [(row.client, row.amount) for row in issued if row.cluster == k]
            assert subsidised == [(i, 50) for i in good if subsidy]
            expected = dict.fromkeys(ids, -100)
            for i, wage in zip(good, alone if len(good) == 1 else two, strict=True):
                expected[i] += wage
            assert {i: int(state.accounts.balances[i]) - OPENING for i in ids} == expected
        assert state.accounts.issued == 8 * OPENING + 50 * len(issued)

    def test_everyone_pays_for_its_bids_whether_it_has_a_seat_or_not(self):
        # Four clients bid for each cluster: pools of 400, of which providers with ψ > 0 get everything.
        _, done, _ = play(market(), 2, HONEST)
        assert sorted(moved(done[1], "fee")) == [(client, 100) for client in range(8)]
        assert moved(done[1], "refund") == []
        assert sum(amount for _, amount in moved(done[1], "reward")) == 800
        assert len(done[1].done.seats) == 6
        assert all(bid.served for bid in done[1].done.market.bids)

    def test_if_only_seats_pay_the_other_bids_go_back(self):
        _, done, _ = play(market(payment={"rule": "paper"}), 2, HONEST)
        seated = {seat.client for seat in done[1].done.seats}
        assert {client for client, _ in moved(done[1], "fee")} == seated
        assert {client for client, _ in moved(done[1], "refund")} == set(range(8)) - seated
        assert not any(bid.served for bid in done[1].done.market.bids)


class TestLostSeats:
    def lose(self, lost: bool = False) -> tuple[MarketState, Played, set[int]]:
        """Round 1, in which one client with a seat delivers nothing; it failed, or the server did."""
        method_ = market()
        state, done, _ = play(method_, 2, HONEST)
        absent = {done[1].done.seats[-1].client}
        before = done[0].state
        script = HONEST if lost else HONEST | {"train": unless(absent, train, no_answer)}
        state, (one,), _ = play(method_, 1, script, state=before, first=1, lost=absent if lost else ())
        for client in absent:
            change = int(state.accounts.balances[client] - before.accounts.balances[client])
            assert change == (0 if lost else -100)
        return state, one, absent

    def test_who_delivers_nothing_forfeits_its_price_and_priority(self):
        state, one, absent = self.lose()
        assert {s.client: s.excused for s in one.done.seats if not s.delivered} == dict.fromkeys(
            absent, False
        )
        assert moved(one, "refund") == []
        assert sum(amount for _, amount in moved(one, "reward")) == 800
        for client in absent:  # remembered as 2 deviations below the others
            assert (
                LOST_PRIORITY in state.contributions.psi[client]
                or np.nanmin(state.contributions.psi[client]) < 0
            )
        assert sorted(event.kind for event in one.events) == ["no_answer"]

    def test_not_if_the_fault_was_the_server_s(self):
        state, one, absent = self.lose(lost=True)
        assert {s.client for s in one.done.seats if s.excused} == absent
        assert sorted(moved(one, "refund")) == [(client, 100) for client in sorted(absent)]
        assert sum(amount for _, amount in moved(one, "reward")) == 700
        assert not (state.contributions.psi[sorted(absent)] == LOST_PRIORITY).any()


class TestTokensOff:
    def test_bids_are_informed_but_nobody_pays_or_earns_and_all_get_the_models(self):
        stop = HONEST | {"preference": unless({3}, prefer_parity, no_bid)}
        state, done, engine = play(market(payment={"rule": "none"}), 4, stop)
        assert (state.accounts.balances == OPENING).all()
        assert moved(done[2], "reward") == []
        assert moved(done[2], "reimbursement") == []
        assert market().preferences(state) == {c: c % 2 for c in range(8) if c != 3}
        assert all(record.params for query in queries(engine) for record in query.values())
        offer = market(payment={"rule": "none"}).offer(state, 3)
        np.testing.assert_array_equal(offer.params["cluster_0"], state.clusters.models[0])


@pytest.mark.parametrize("clusters", [2, 4])
def test_a_small_economy_under_the_default_rules(clusters: int) -> None:
    end = simulate(clients=20, clusters=clusters, rounds=30)
    assert end.broke == 0
    assert 0 < end.gini < 0.5
    assert end.correlation is not None
    assert end.correlation > 0.5  # who contributes more has more
    assert end.seats == 10  # the whole budget, in every round
