"""IP-FL's round as it is now against scripted clients: who pays, who earns, who sits; see `market`.

The printed rules are in test_round.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.federation import Played
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    loss,
    market,
    moved,
    no_answer,
    no_bid,
    play,
    prefer_parity,
    queries,
    setup,
    train,
    unless,
)

from ipfl.core import Event, Record
from ipfl.market.bank import ISSUER
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.market_state import NO_BID, MarketState, merge_alike
from ipfl.methods.ipfl_plus.server_steps import LOST_PRIORITY, Appraisal, Outcome

OPENING = 100 * 100


class TestPhases:
    def test_momentum_asks_for_nothing_beside_bids_and_updates(self):
        _, _, engine = play(IPFL(), 3, size=64)
        assert engine.actions == ["train", "preference", "train", "preference", "train"]

    def test_leaving_one_out_asks_the_providers_of_each_cluster(self):
        _, (first,), engine = play(market(), 1, HONEST)
        assert engine.actions == ["train", "loss", "loss"]
        for k, ask in enumerate(engine.asks[1:]):
            assert set(ask.to) == {seat.client for seat in first.done.seats if seat.cluster == k}
            assert {len(record.params) for record in ask.to.values()} == {4}  # W_M, and without each of three

    def test_contributions_by_leaving_one_out(self):
        # soft/n grows by 1/10000 with the mean of a model. Providers a, b, c: W_M = (a + b + c)/3, without a
        # (b + c)/2, so ψ_a = ((a + b + c)/3 − (b + c)/2)/10000, as said by b and c alone.
        _, (first,), _ = play(market(), 1, HONEST)
        for k in (0, 1):
            rows = [row for row in first.done.market.contributions if row.cluster == k]
            ids = np.array([row.client for row in rows])
            expected = [(ids.mean() - np.delete(ids, i).mean()) / 10_000 for i in range(3)]
            np.testing.assert_allclose([row.psi for row in rows], expected, atol=1e-9)

    def test_nobody_judges_himself_by_leaving_one_out(self):
        # In each cluster one provider says that its own update is worth everything: it counts for nothing.
        _, (honest,), _ = play(market(), 1, HONEST)
        boasters = {min(s.client for s in honest.done.seats if s.cluster == k) for k in (0, 1)}

        def boast(client: int, ask: Record) -> Record:
            soft = [10.0, 0.0, *[10.0] * (len(ask.params) - 2)]  # worthless without the first provider
            return Record({}, {"loss": soft, "soft": soft, "n": 10})

        _, (first,), _ = play(market(), 1, HONEST | {"loss": unless(boasters, loss, boast)})
        own = {row.client: row.psi for row in first.done.market.contributions}
        told = {row.client: row.psi for row in honest.done.market.contributions}
        assert {c: own[c] for c in boasters} == pytest.approx({c: told[c] for c in boasters})

    def test_without_other_judges_a_contribution_is_unknown(self):
        _, (first,), _ = play(market(), 1, HONEST | {"loss": no_answer})
        assert {row.psi for row in first.done.market.contributions} == {None}
        assert sum(amount for _, amount in moved(first, "reward")) == 600  # unknown ones earn all the same


class TestWillingPayers:
    def test_in_the_first_round_only_seats_are_paid_for(self):
        # Nobody was asked, so nobody was served. Three payers in each cluster. Positive is who adds more than
        # the mean of the two others; ranks among those alone.
        state, (first,), _ = play(market(), 1, HONEST)
        assert len(moved(first, "fee")) == 6
        for k in (0, 1):
            ids = sorted(seat.client for seat in first.done.seats if seat.cluster == k)
            good = [i for i in ids if i > np.mean([j for j in ids if j != i])]
            wages = [300] if len(good) == 1 else [100, 200]
            expected = dict.fromkeys(ids, -100)
            for i, wage in zip(good, wages, strict=True):
                expected[i] += wage
            assert {i: int(state.bank.balances[i]) - OPENING for i in ids} == expected

    def test_subsidy_is_issued_for_those_that_earn_and_shared_by_rank(self):
        # As above, with half a price issued for each provider that earns: one earns 300 + 50, two share
        # 300 + 100 by rank: 133⅓ and 266⅔, whole tokens by the largest remainder: 133 and 267.
        state, (first,), _ = play(market(subsidy=0.5), 1, HONEST)
        issued = [row for row in first.done.market.transfers if row.source == ISSUER]
        for k in (0, 1):
            ids = sorted(seat.client for seat in first.done.seats if seat.cluster == k)
            good = [i for i in ids if i > np.mean([j for j in ids if j != i])]
            assert [(row.client, row.amount) for row in issued if row.cluster == k] == [(i, 50) for i in good]
            wages = [350] if len(good) == 1 else [133, 267]
            assert [int(state.bank.balances[i]) - OPENING + 100 for i in good] == wages
        assert state.bank.issued == 8 * OPENING + 50 * len(issued)

    def test_everyone_pays_for_its_bids_whether_it_has_a_seat_or_not(self):
        # Four clients bid for each cluster: pools of 400, of which providers with ψ > 0 get everything.
        _, done, _ = play(market(), 2, HONEST)
        assert sorted(moved(done[1], "fee")) == [(client, 100) for client in range(8)]
        assert moved(done[1], "refund") == []
        assert sum(amount for _, amount in moved(done[1], "reward")) == 800
        assert len(done[1].done.seats) == 6
        assert all(bid.served for bid in done[1].done.market.bids)

    def test_if_only_seats_pay_the_other_bids_go_back(self):
        _, done, _ = play(market(payers="seated"), 2, HONEST)
        seated = {seat.client for seat in done[1].done.seats}
        assert {client for client, _ in moved(done[1], "fee")} == seated
        assert {client for client, _ in moved(done[1], "refund")} == set(range(8)) - seated
        assert not any(bid.served for bid in done[1].done.market.bids)

    def test_bids_that_are_kept_are_paid_for_only_when_models_were_sent(self):
        # Asked in rounds 1 and 3. In round 2 the bids still count for seats, and only seats are paid for.
        _, done, engine = play(market(preference_every=2), 4, HONEST)
        assert [len(query) for query in queries(engine)] == [8, 8]
        assert [len(moved(one, "fee")) for one in done] == [6, 8, 6, 8]
        assert all(len(one.done.seats) == 6 for one in done)

    def test_nobody_delivers(self):
        state, done, _ = play(market(), 3, HONEST | {"train": no_answer})
        assert (state.bank.balances == OPENING).all()
        assert len(moved(done[2], "refund")) == 8

    def test_shares_of_the_pool_go_back_when_most_get_less_than_they_are_used_to(self):
        # Scores 0.9 in rounds 1 and 2, then 0.855: 5 % less, half of γ = 0.1, for all. U = η/2 = 0.1, so 40
        # of 400 go back in each cluster, 10 to each payer. They get used to 0.8·0.9 + 0.2·0.855 = 0.891.
        worse = HONEST | {
            "preference": lambda c, a: Record(
                {},
                {
                    "bids": [c % 2],
                    "hits": [8.55 if k == c % 2 else 1.0 for k in (0, 1)],
                    "n": 10,
                },
            )
        }
        method_ = market(eta=0.2, gamma=0.1)
        state, done, _ = play(method_, 3, HONEST)
        assert [figure.value for figure in done[2].done.market.reimbursed_share] == [0, 0]
        state, (third,), _ = play(method_, 1, worse, state=state, first=3)
        shares = [figure.value for figure in third.done.market.reimbursed_share]
        np.testing.assert_allclose(shares, 0.1)
        assert sorted(moved(third, "reimbursement")) == [(client, 10) for client in range(8)]
        np.testing.assert_allclose(state.usual_score[[0, 1], [0, 1]], 0.891)
        np.testing.assert_allclose([bid.score for bid in third.done.market.bids], 0.855)


class TestLostSeats:
    def lose(self, lost: bool = False, **settings: Any) -> tuple[MarketState, Played, set[int]]:
        """Round 1, in which two clients with a seat deliver nothing; they failed, or the server did."""
        method_ = market(**settings)
        state, done, _ = play(method_, 2, HONEST)
        absent = {done[1].done.seats[0].client, done[1].done.seats[-1].client}
        before = done[0].state
        script = HONEST if lost else HONEST | {"train": unless(absent, train, no_answer)}
        state, (one,), _ = play(method_, 1, script, state=before, first=1, lost=absent if lost else ())
        for client in absent:
            change = int(state.bank.balances[client] - before.bank.balances[client])
            assert change == (0 if lost or not method_.forfeit else -100)
        return state, one, absent

    def test_who_delivers_nothing_forfeits_its_price_and_priority(self):
        state, one, absent = self.lose()
        assert {s.client: s.excused for s in one.done.seats if not s.delivered} == dict.fromkeys(
            absent, False
        )
        assert moved(one, "refund") == []
        assert sum(amount for _, amount in moved(one, "reward")) == 800
        for client in absent:  # remembered as 2 deviations below the others
            assert LOST_PRIORITY in state.psi[client] or np.nanmin(state.psi[client]) < 0
        assert sorted(event.kind for event in one.events) == ["no_answer"] * 2

    def test_not_if_the_fault_was_the_server_s(self):
        state, one, absent = self.lose(lost=True)
        assert {s.client for s in one.done.seats if s.excused} == absent
        assert sorted(moved(one, "refund")) == [(client, 100) for client in sorted(absent)]
        assert sum(amount for _, amount in moved(one, "reward")) == 600
        assert not (state.psi[sorted(absent)] == LOST_PRIORITY).any()

    def test_not_if_nobody_is_to_forfeit_anything(self):
        _, one, absent = self.lose(forfeit=False)
        assert sorted(moved(one, "refund")) == [(client, 100) for client in sorted(absent)]
        # A record says that a seat was refunded; by the rules of this market all lost ones are.
        assert {s.client for s in one.done.seats if s.excused} == absent

    def test_priority_that_was_lost(self):
        # A client whose first seat delivers nothing is remembered with −2; a later one is averaged in: with
        # two values remembered (−2 counts as one), the second has the weight 1/2.
        state = market().init(setup())
        seats = np.zeros((8, 2), bool)
        seats[3, 1] = True
        nothing = np.zeros((8, 2), bool)
        appraised = Appraisal(state.models, {}, {}, state.record)
        outcome = Outcome(seats, nothing, nothing, nothing, {}, appraised)
        psi = market().remember_contributions(state, outcome)
        assert psi[3, 1] == LOST_PRIORITY == -2
        assert np.isnan(np.delete(psi.ravel(), 3 * 2 + 1)).all()


class TestSeats:
    @pytest.mark.parametrize(("clusters", "per_round"), [(4, 3), (3, 8), (2, 7), (5, 2)])
    def test_the_whole_budget_is_dealt_and_never_more(self, clusters, per_round):
        def prefer(client: int, ask: Record) -> Record:
            hits = [9.0 if k == client % clusters else 1.0 for k in range(clusters)]
            return Record(
                {},
                {"bids": [client % clusters], "hits": hits if ask.params else [], "n": 10},
            )

        method_ = market(clusters=clusters)
        state = replace(method_.init(setup(20)), per_round=per_round)
        _, done, _ = play(method_, 11, HONEST | {"preference": prefer}, clients=20, state=state)
        assert [len(one.done.seats) for one in done] == [per_round] * 11
        used = [seat.cluster for one in done[1:] for seat in one.done.seats]
        assert set(used) == set(range(clusters))
        assert all(seat.cluster == seat.client % clusters for one in done[1:] for seat in one.done.seats)

    def test_seats_that_a_client_has_had_count_against_it(self):
        # Four seats for two of four equal bidders of each cluster, from the top: without rationing the lowest
        # ids sit in every round, with it all take turns.
        def had(ration: float) -> np.ndarray:
            method_ = market(order="top", ration=ration, explore_floor=0.0, beta_psi=0.0, explore=0.0)
            state = replace(method_.init(setup()), per_round=4)
            return play(method_, 11, HONEST, state=state)[0].seats_had.sum(axis=1)

        rationed, free = had(1.0), had(0.0)
        assert rationed.max() - rationed.min() <= 2
        assert free.max() - free.min() >= 9


class TestTokensOff:
    def test_bids_are_informed_but_nobody_pays_or_earns_and_all_get_the_models(self):
        stop = HONEST | {"preference": unless({3}, prefer_parity, no_bid)}
        state, done, engine = play(market(tokens=False), 4, stop)
        assert (state.bank.balances == OPENING).all()
        assert moved(done[2], "reward") == []
        assert moved(done[2], "reimbursement") == []
        assert IPFL().preferences(state) == {c: c % 2 for c in range(8) if c != 3}
        assert all(record.params for query in queries(engine) for record in query.values())
        offer = market(tokens=False).offer(state, 3)
        np.testing.assert_array_equal(offer.params["cluster_0"], state.models[0])

    def test_no_allowance_either(self):
        state, _, _ = play(market(tokens=False, allowance=7), 2, HONEST)
        assert state.bank.issued == 8 * OPENING


class TestMerge:
    def test_the_better_of_two_ranks_is_kept(self):
        # Clusters 0 and 1 have the same importance for all: they are merged into 0, which has more bidders.
        # Client 0 wanted 1 first and 0 second, client 1 only 0, client 2 only 1 (as its second), client 3
        # neither.
        state = market(clusters=3).init(setup(4))
        ranks = np.array([[1, 0, -1], [0, -1, -1], [-1, 1, 0], [-1, -1, 0]])
        alike = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.45, 0.45, 0.1], [0.1, 0.1, 0.8]])
        events: list[Event] = []
        merged = merge_alike(replace(state, bid_ranks=ranks, importance=alike), 7, events)
        assert merged.clusters == [0, 2]
        assert merged.bid_ranks.tolist() == [
            [0, NO_BID, -1],
            [0, NO_BID, -1],
            [1, NO_BID, 0],
            [-1, NO_BID, 0],
        ]
        assert merged.merged == ((7, 0, 1),)
        assert [event.kind for event in events] == ["merge"]
