"""Who gets the models, who is asked, and what clients are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import first_ask
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    market,
    moved,
    no_answer,
    no_bid,
    play,
    prefer_parity,
    queries,
    setup,
    unless,
)

from ipfl.core import Record
from ipfl.data.federated import Samples
from ipfl.methods.ipfl_plus.preference_steps import take_turns

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
        assert not np.array_equal(before.models[0], without.models[0])
        for client in self.STOPPED:
            kept = market().offer(without, client)
            assert kept.facts["clusters"] == [0, 1]
            assert kept.facts["means"] == before.means.tolist()
            for k in (0, 1):
                np.testing.assert_array_equal(kept.params[f"cluster_{k}"], before.models[k])
        for client in (0, 7):
            np.testing.assert_array_equal(
                market().offer(without, client).params["cluster_1"], without.models[1]
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
            np.testing.assert_array_equal(market().offer(back, client).params["cluster_0"], back.models[0])
        assert back.held_facts == {}

    def test_newcomers_get_the_models_of_the_moment(self, played):
        without = played["without"]
        offer = market().offer(without, 99)
        np.testing.assert_array_equal(offer.params["cluster_0"], without.models[0])

    def test_open_to_all(self):
        stop = HONEST | {"preference": unless(self.STOPPED, prefer_parity, no_bid)}
        state, _, engine = play(market(access="open"), 4, stop)
        assert all(record.params for query in queries(engine) for record in query.values())
        np.testing.assert_array_equal(market().offer(state, 3).params["cluster_0"], state.models[0])

    def test_who_is_broke_loses_access(self):
        # Opening of two prices. Client 1 never has the better update; once it cannot pay it gets no models.
        state, _, engine = play(market(opening=200), 8, HONEST)
        broke = np.flatnonzero(state.bank.balances < 100).tolist()
        assert broke
        for client in broke:
            assert client in state.held_facts
        assert not all(record.params for record in queries(engine)[-1].values())

    def test_trial_rounds_are_free(self):
        # trial_rounds = 2: the queries of rounds 1 and 2 are free, and only seats are paid for; from the
        # third query on everybody pays. All of them are sent the models all the same.
        _, done, engine = play(market(trial_rounds=2), 4, HONEST)
        assert [len(moved(one, "fee")) for one in done] == [6, 6, 6, 8]
        assert all(record.params for query in queries(engine) for record in query.values())

    def test_without_a_trial_who_does_not_pay_gets_the_models_once(self):
        away = {client: Record({}, {"bids": [], "hits": [5.0, 5.0], "n": 10}) for client in (2, 3)}
        script = HONEST | {
            "preference": lambda c, a: away[c] if c in away and a.params else prefer_parity(c, a)
        }
        _, done, engine = play(market(), 2, script)
        _, _, after = play(market(), 1, script, state=done[1].state, first=2)
        for client in away:
            assert queries(engine)[0][client].params
            assert not queries(after)[0][client].params
            assert (client, 100) not in moved(done[1], "fee")


class TestQueries:
    def test_a_lost_reply_counts_nothing_twice(self):
        # Client 3 does not answer in round 2. What it is told in round 3 are totals, whatever it has missed.
        method_ = market()
        state, done, _ = play(method_, 2, HONEST)
        silent = HONEST | {"preference": unless({3}, prefer_parity, no_answer)}
        state, (second,), _ = play(method_, 1, silent, state=state, first=2)
        _, _, engine = play(method_, 1, HONEST, state=state, first=3)
        facts = queries(engine)[0][3].facts
        seats = [s for one in (*done, second) for s in one.done.seats if s.client == 3]
        assert facts["seats"] == [sum(seat.cluster == k for seat in seats) for k in (0, 1)]
        paid = sum(1 for one in (*done, second) for client, _ in moved(one, "fee") if client == 3)
        earned = sum(
            amount for one in (*done, second) for client, amount in moved(one, "reward") if client == 3
        )
        assert facts["balance"] == OPENING - 100 * paid + earned

    def test_its_earlier_bids_stand_and_are_paid_for(self):
        method_ = market()
        state, _, _ = play(method_, 2, HONEST)
        silent = HONEST | {"preference": unless({3}, prefer_parity, no_answer)}
        _, (second,), _ = play(method_, 1, silent, state=state, first=2)
        (bid,) = [bid for bid in second.done.market.bids if bid.client == 3]
        assert (bid.cluster, bid.rank, bid.score, bid.served) == (1, 0, None, True)

    def test_the_same_query_twice_gets_the_same_answer(self):
        class Me:
            predicts_classes = True

            def score(self, model: np.ndarray, part: str, limit: int | None = None) -> Any:
                return type("Score", (), {"soft": float(model[0]), "hits": float(model[0]), "n": 10})

            def data(self, part: str, limit: int | None = None) -> Samples:
                return Samples(np.zeros((10, 1)), np.zeros(10, np.int64))

        models = {"cluster_0": np.array([6.0]), "cluster_1": np.array([3.0])}
        account = {"seats": [2, 0], "net": [-90, 0], "balance": 500, "price": 100, "importance": [0.0, 0.0]}
        asked = {"clusters": [0, 1], "means": [0.5, 0.5], "points": 10}
        ask = Record(models, {**asked, **account})
        method_: Any = market(threshold=0.3)
        first, mine = method_.on_preference(ask, Record(), Me())
        again, _ = method_.on_preference(ask, mine, Me())
        assert first.facts == again.facts
        assert first.facts == {"bids": [0, 1], "hits": [6.0, 3.0], "n": 10}
        # Without models it bids by what it last answered: the weights 2/3 and 1/3, and no scores.
        bare = Record({}, {**ask.facts, "importance": [2 / 3, 1 / 3]})
        reply, _ = method_.on_preference(bare, mine, Me())
        assert reply.facts == {"bids": [0, 1], "hits": [], "n": 0}
        # Cluster 1 now has cost it half a price a seat: only the cluster that it likes best is left.
        lossy = Record({}, {**bare.facts, "seats": [2, 2], "net": [-90, -100]})
        assert method_.on_preference(lossy, mine, Me())[0].facts["bids"] == [0]
        # Who never had any models has nothing to bid by.
        assert method_.on_preference(Record({}, ask.facts), Record(), Me())[0].facts["bids"] == []

    def test_a_budget_of_queries_goes_round(self):
        # 12 clients, 7 a round: one by one it would be every second round, here it is every third at least.
        _, done, engine = play(market(preference_budget=7), 13, HONEST, clients=12)
        asked = [set(query) for query in queries(engine)]
        assert [len(query) for query in asked] == [7] * 12
        assert all(set().union(*asked[i : i + 3]) == set(range(12)) for i in range(10))
        for query, one in zip(queries(engine), done[1:], strict=True):  # and only they bid, sit and pay
            assert {bid.client for bid in one.done.market.bids} == set(query)
            assert {seat.client for seat in one.done.seats} <= set(query)
            assert {client for client, _ in moved(one, "fee")} == set(query)

    @pytest.mark.parametrize(
        ("samples", "points", "per_seat"),
        [
            # Two epochs of 48 samples, three passes each: 288, of which a fifth is 57.6. A client scores two
            # models on 12 points: 24. Enough for 2 of them.
            (48, 12, 2),
            (75, 12, 3),  # 0.2·450/24 = 3.75
            (500, 12, 4),  # 25 would do; 4 are enough
            (10, 100, 2),  # 0.06 would do; a seat needs two who pay for it
            (2000, 1000, 4),  # only 128 of the points are used: 0.2·12000/256 = 9
            (np.nan, np.nan, 2),  # nothing known yet
        ],
    )
    def test_the_default_budget_keeps_a_query_at_a_fifth_of_the_training(self, samples, points, per_seat):
        method_ = market()
        state = replace(method_.init(setup(30)), samples=samples, points=points)
        assert len(first_ask(method_, state, 30, round=1).to) == 6 * per_seat  # per_round = 6

    @pytest.mark.parametrize(
        ("samples", "points"),
        [
            # 0.2·6·400 = 480 for two bidders who score two models: 480/(2·2) = 120 points each.
            (400, 120),
            (1000, 128),  # 300 would do; the setting says 128
            (10, 8),  # 3 would do, and say nothing
            (np.nan, 128),  # nothing known yet
        ],
    )
    def test_clients_score_models_on_as_many_points_as_the_query_may_cost(self, samples, points):
        method_ = market()
        state = replace(method_.init(setup(30)), samples=samples)
        ask = first_ask(method_, state, 30, round=1)
        assert {record.facts["points"] for record in ask.to.values()} == {points}

    def test_few_clients_are_all_asked(self):
        method_ = market()
        assert len(first_ask(method_, method_.init(setup(11)), 11, round=1).to) == 11

    def test_whoever_waits_longest_comes_first(self):
        method_ = market(preference_budget=2)
        state = replace(method_.init(setup(5)), drawn=np.array([4, 2, 5, -1, 3]))
        assert set(first_ask(method_, state, 5, round=6).to) == {3, 1}

    def test_every_cluster_has_its_share_of_the_turns(self):
        # 4 of 12: of nine clients of cluster 0 three, of three of cluster 1 one; those that wait longest.
        favourite = np.array([0] * 9 + [1] * 3)
        drawn = np.array([5, 4, 3, 5, 4, 3, 5, 4, 3, 4, 3, 4])
        assert set(take_turns(drawn, favourite, 4, 6).tolist()) == {2, 5, 8, 10}
        # 5 of 12: 3.75 and 1.25 rounded down are the same four. The fifth waits longest of the others.
        assert take_turns(drawn, favourite, 5, 6).tolist() == [2, 5, 8, 10, 1]
        # A client that never had a turn comes before all others.
        drawn[[0, 9]] = -1
        assert take_turns(drawn, favourite, 2, 6).tolist() == [0, 9]

    @given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 30), st.integers(0, 99))
    def test_nobody_waits_for_ever(self, clients, clusters, budget, seed):
        budget = min(budget, clients)
        rng = np.random.default_rng(seed)
        favourite, drawn = rng.integers(clusters, size=clients), np.full(clients, -1)
        for round in range(40):
            chosen = take_turns(drawn, favourite, budget, round)
            assert len(set(chosen.tolist())) == budget
            drawn[chosen] = round
            assert round - drawn.min() <= -(-clients // budget), "one by one it would be a round less"
