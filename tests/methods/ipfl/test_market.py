"""IP-FL's round as it is now against scripted clients: who pays, who gets models, who earns, who is asked.

The printed rules are in test_round.py. Contributions are by leaving one out here, so that they can be read
off the updates: client i adds i to every coordinate, and a model is the better the larger it is. So who adds
more than the mean of the other providers contributes something, and who adds less takes something away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.federation import Answer, Played, first_ask
from tests.methods.ipfl.scripted import HONEST, play, prefer_parity, setup, train

from ipfl.core import Event, Record
from ipfl.errors import InputError
from ipfl.methods import method
from ipfl.methods.ipfl.method import IPFL
from ipfl.methods.ipfl.server_steps import LOST_PRIORITY
from ipfl.methods.ipfl.settings import PRESETS
from ipfl.methods.ipfl.state import NO_BID, MarketState, merge_alike

OPENING = 100 * 100


def market(**settings: Any) -> IPFL:
    """The default market without screening, which would take updates in one direction for copies."""
    return IPFL(**({"robust": False, "contribution": "loo"} | settings))


def loss(client: int, ask: Record) -> Record:
    """The larger a model, the better."""
    soft = [5 + float(model.mean()) / 1000 for model in ask.params.values()]
    return Record({}, {"loss": soft, "soft": soft, "n": 10})


SCRIPT: dict[str, Answer] = HONEST | {"loss": loss}


def unless(clients: Collection[int], answer: Answer, instead: Answer) -> Answer:
    """Another answer from some clients."""
    return lambda client, ask: (instead if client in clients else answer)(client, ask)


def no_answer(client: int, ask: Record) -> None:
    """None."""


def no_bid(client: int, ask: Record) -> Record:
    """Scores the models, if it got any, and wants none."""
    return Record({}, {"bids": [], "hits": [5.0] * len(ask.params), "n": 10})


def moved(done: Played, kind: str) -> list[tuple[int, int]]:
    """Client and amount of all transfers of a kind."""
    return [(row.client, row.amount) for row in done.done.market.transfers if row.kind == kind]


def queries(engine: Any) -> list[dict[int, Record]]:
    return [ask.to for ask in engine.asks if ask.action == "preference"]


class TestPhases:
    def test_momentum_asks_for_nothing_beside_bids_and_updates(self):
        _, _, engine = play(IPFL(), 3, size=64)
        assert engine.actions == ["train", "preference", "train", "preference", "train"]

    def test_leaving_one_out_asks_the_providers_of_each_cluster(self):
        _, (first,), engine = play(market(), 1, SCRIPT)
        assert engine.actions == ["train", "loss", "loss"]
        for k, ask in enumerate(engine.asks[1:]):
            assert set(ask.to) == {seat.client for seat in first.done.seats if seat.cluster == k}
            assert {len(record.params) for record in ask.to.values()} == {4}  # W_M, and without each of three

    def test_contributions_by_leaving_one_out(self):
        # soft/n grows by 1/10000 with the mean of a model. Providers a, b, c: W_M = (a + b + c)/3, without a
        # (b + c)/2, so ψ_a = ((a + b + c)/3 − (b + c)/2)/10000, as said by b and c alone.
        _, (first,), _ = play(market(), 1, SCRIPT)
        for k in (0, 1):
            rows = [row for row in first.done.market.contributions if row.cluster == k]
            ids = np.array([row.client for row in rows])
            expected = [(ids.mean() - np.delete(ids, i).mean()) / 10_000 for i in range(3)]
            np.testing.assert_allclose([row.psi for row in rows], expected, atol=1e-9)

    def test_nobody_judges_himself_by_leaving_one_out(self):
        # In each cluster one provider says that its own update is worth everything: it counts for nothing.
        _, (honest,), _ = play(market(), 1, SCRIPT)
        boasters = {min(s.client for s in honest.done.seats if s.cluster == k) for k in (0, 1)}

        def boast(client: int, ask: Record) -> Record:
            soft = [10.0, 0.0, *[10.0] * (len(ask.params) - 2)]  # worthless without the first provider
            return Record({}, {"loss": soft, "soft": soft, "n": 10})

        _, (first,), _ = play(market(), 1, SCRIPT | {"loss": unless(boasters, loss, boast)})
        own = {row.client: row.psi for row in first.done.market.contributions}
        told = {row.client: row.psi for row in honest.done.market.contributions}
        assert {c: own[c] for c in boasters} == pytest.approx({c: told[c] for c in boasters})

    def test_without_other_judges_a_contribution_is_unknown(self):
        _, (first,), _ = play(market(), 1, SCRIPT | {"loss": no_answer})
        assert {row.psi for row in first.done.market.contributions} == {None}
        assert sum(amount for _, amount in moved(first, "reward")) == 600  # unknown ones earn all the same


class TestWillingPayers:
    def test_in_the_first_round_only_seats_are_paid_for(self):
        # Nobody was asked, so nobody was served. Three payers in each cluster. Positive is who adds more than
        # the mean of the two others; ranks among those alone.
        state, (first,), _ = play(market(), 1, SCRIPT)
        assert len(moved(first, "fee")) == 6
        for k in (0, 1):
            ids = sorted(seat.client for seat in first.done.seats if seat.cluster == k)
            good = [i for i in ids if i > np.mean([j for j in ids if j != i])]
            wages = [300] if len(good) == 1 else [100, 200]
            expected = dict.fromkeys(ids, -100)
            for i, wage in zip(good, wages, strict=True):
                expected[i] += wage
            assert {i: int(state.bank.balances[i]) - OPENING for i in ids} == expected

    def test_everyone_pays_for_its_bids_whether_it_has_a_seat_or_not(self):
        # Four clients bid for each cluster: pools of 400, of which providers with ψ > 0 get everything.
        _, done, _ = play(market(), 2, SCRIPT)
        assert sorted(moved(done[1], "fee")) == [(client, 100) for client in range(8)]
        assert moved(done[1], "refund") == []
        assert sum(amount for _, amount in moved(done[1], "reward")) == 800
        assert len(done[1].done.seats) == 6
        assert all(bid.served for bid in done[1].done.market.bids)

    def test_if_only_seats_pay_the_other_bids_go_back(self):
        _, done, _ = play(market(payers="seated"), 2, SCRIPT)
        seated = {seat.client for seat in done[1].done.seats}
        assert {client for client, _ in moved(done[1], "fee")} == seated
        assert {client for client, _ in moved(done[1], "refund")} == set(range(8)) - seated
        assert not any(bid.served for bid in done[1].done.market.bids)

    def test_bids_that_are_kept_are_paid_for_only_when_models_were_sent(self):
        # Asked in rounds 1 and 3. In round 2 the bids still count for seats, and only seats are paid for.
        _, done, engine = play(market(preference_every=2), 4, SCRIPT)
        assert [len(query) for query in queries(engine)] == [8, 0, 8]
        assert [len(moved(one, "fee")) for one in done] == [6, 8, 6, 8]
        assert all(len(one.done.seats) == 6 for one in done)

    def test_nobody_delivers(self):
        state, done, _ = play(market(), 3, SCRIPT | {"train": no_answer})
        assert (state.bank.balances == OPENING).all()
        assert len(moved(done[2], "refund")) == 8

    def test_shares_of_the_pool_go_back_when_most_get_less_than_they_are_used_to(self):
        # Scores 0.9 in rounds 1 and 2, then 0.855: 5 % less, half of γ = 0.1, for all. U = η/2 = 0.1, so 40
        # of 400 go back in each cluster, 10 to each payer. They get used to 0.8·0.9 + 0.2·0.855 = 0.891.
        worse = SCRIPT | {
            "preference": lambda c, a: Record(
                {}, {"bids": [c % 2], "hits": [8.55 if k == c % 2 else 1.0 for k in (0, 1)], "n": 10}
            )
        }
        method_ = market(eta=0.2, gamma=0.1)
        state, done, _ = play(method_, 3, SCRIPT)
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
        state, done, _ = play(method_, 2, SCRIPT)
        absent = {done[1].done.seats[0].client, done[1].done.seats[-1].client}
        before = done[0].state
        script = SCRIPT if lost else SCRIPT | {"train": unless(absent, train, no_answer)}
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
        psi = market().remember_contributions(state, seats, nothing, {})
        assert psi[3, 1] == LOST_PRIORITY == -2
        assert np.isnan(np.delete(psi.ravel(), 3 * 2 + 1)).all()


class TestAccess:
    """Clients 2 and 3 stop bidding in round 2 and come back in round 4."""

    STOPPED = (2, 3)

    @pytest.fixture
    def played(self) -> dict[str, Any]:
        method_ = market()
        before, _, _ = play(method_, 2, SCRIPT)
        stop = SCRIPT | {"preference": unless(self.STOPPED, prefer_parity, no_bid)}
        without, _, engine = play(method_, 2, stop, state=before, first=2)
        back, _, after = play(method_, 2, SCRIPT, state=without, first=4)
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
        stop = SCRIPT | {"preference": unless(self.STOPPED, prefer_parity, no_bid)}
        state, _, engine = play(market(access="open"), 4, stop)
        assert all(record.params for query in queries(engine) for record in query.values())
        np.testing.assert_array_equal(market().offer(state, 3).params["cluster_0"], state.models[0])

    def test_who_is_broke_loses_access(self):
        # Opening of two prices. Client 1 never has the better update; once it cannot pay it gets no models.
        state, _, engine = play(market(opening=200), 8, SCRIPT)
        broke = np.flatnonzero(state.bank.balances < 100).tolist()
        assert broke
        for client in broke:
            assert client in state.held_facts
        assert not all(record.params for record in queries(engine)[-1].values())

    def test_trial_rounds_are_free(self):
        # trial_rounds = 2: the queries of rounds 1 and 2 are free, and only seats are paid for; from the
        # third query on everybody pays. All of them are sent the models all the same.
        _, done, engine = play(market(trial_rounds=2), 4, SCRIPT)
        assert [len(moved(one, "fee")) for one in done] == [6, 6, 6, 8]
        assert all(record.params for query in queries(engine) for record in query.values())

    def test_without_a_trial_who_does_not_pay_gets_the_models_once(self):
        away = {client: Record({}, {"bids": [], "hits": [5.0, 5.0], "n": 10}) for client in (2, 3)}
        script = SCRIPT | {
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
        state, done, _ = play(method_, 2, SCRIPT)
        silent = SCRIPT | {"preference": unless({3}, prefer_parity, no_answer)}
        state, (second,), _ = play(method_, 1, silent, state=state, first=2)
        _, _, engine = play(method_, 1, SCRIPT, state=state, first=3)
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
        state, _, _ = play(method_, 2, SCRIPT)
        silent = SCRIPT | {"preference": unless({3}, prefer_parity, no_answer)}
        _, (second,), _ = play(method_, 1, silent, state=state, first=2)
        (bid,) = [bid for bid in second.done.market.bids if bid.client == 3]
        assert (bid.cluster, bid.rank, bid.score, bid.served) == (1, 0, None, True)

    def test_the_same_query_twice_gets_the_same_answer(self):
        class Me:
            def score(self, model: np.ndarray, part: str, limit: int | None = None) -> Any:
                return type("Score", (), {"soft": float(model[0]), "hits": float(model[0]), "n": 10})

        models = {"cluster_0": np.array([6.0]), "cluster_1": np.array([3.0])}
        account = {"seats": [2, 0], "net": [-90, 0], "balance": 500, "price": 100}
        ask = Record(models, {"clusters": [0, 1], "means": [0.5, 0.5], **account})
        method_: Any = market(threshold=0.3)
        first, mine = method_.on_preference(ask, Record(), Me())
        again, mine = method_.on_preference(ask, mine, Me())
        assert first.facts == again.facts == {"bids": [0, 1], "hits": [6.0, 3.0], "n": 10}
        # Without models it bids by what it knew: the same weights 2/3 and 1/3, and no scores.
        bare = Record({}, ask.facts)
        reply, after = method_.on_preference(bare, mine, Me())
        assert reply.facts == {"bids": [0, 1], "hits": [], "n": 0}
        assert after.facts == mine.facts
        # Cluster 1 now has cost it half a price a seat: only the cluster that it likes best is left.
        lossy = Record({}, {**ask.facts, "seats": [2, 2], "net": [-90, -100]})
        assert method_.on_preference(lossy, mine, Me())[0].facts["bids"] == [0]
        # Who never had any models has nothing to bid by.
        assert method_.on_preference(bare, Record(), Me())[0].facts["bids"] == []

    def test_a_budget_of_queries_goes_round(self):
        # 12 clients, 7 a round, who waits longest first: everyone is asked at least every second round.
        _, done, engine = play(market(preference_budget=7), 13, SCRIPT, clients=12)
        asked = [set(query) for query in queries(engine)]
        assert [len(query) for query in asked] == [7] * 12
        assert all(one | other == set(range(12)) for one, other in pairwise(asked))
        for query, one in zip(queries(engine), done[1:], strict=True):  # and only they bid, sit and pay
            assert {bid.client for bid in one.done.market.bids} == set(query)
            assert {seat.client for seat in one.done.seats} <= set(query)
            assert {client for client, _ in moved(one, "fee")} == set(query)

    def test_the_default_budget_is_four_for_each_seat(self):
        # per_round = 6: 24 of 30 clients; of 20 clients all.
        for clients, expected in ((30, 24), (20, 20)):
            method_ = market()
            assert len(first_ask(method_, method_.init(setup(clients)), clients, round=1).to) == expected

    def test_whoever_waits_longest_comes_first(self):
        method_ = market(preference_budget=2)
        state = replace(method_.init(setup(5)), drawn=np.array([4, 2, 5, -1, 3]))
        assert set(first_ask(method_, state, 5, round=6).to) == {3, 1}


class TestSeats:
    @pytest.mark.parametrize(("clusters", "per_round"), [(4, 3), (3, 8), (2, 7), (5, 2)])
    def test_the_whole_budget_is_dealt_and_never_more(self, clusters, per_round):
        def prefer(client: int, ask: Record) -> Record:
            hits = [9.0 if k == client % clusters else 1.0 for k in range(clusters)]
            return Record({}, {"bids": [client % clusters], "hits": hits if ask.params else [], "n": 10})

        method_ = market(clusters=clusters)
        state = replace(method_.init(setup(20)), per_round=per_round)
        _, done, _ = play(method_, 11, SCRIPT | {"preference": prefer}, clients=20, state=state)
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
            return play(method_, 11, SCRIPT, state=state)[0].seats_had.sum(axis=1)

        rationed, free = had(1.0), had(0.0)
        assert rationed.max() - rationed.min() <= 2
        assert free.max() - free.min() >= 9


class TestRobust:
    """The default market: contributions by agreement, updates screened."""

    SIZE = 64

    def updates(self, lazy: Callable[[int, Record], Record]) -> Answer:
        """All go a new common way in every round, and each its own; clients 0 and 1 are lazy."""
        rng = np.random.default_rng(0)
        ways: dict[bytes, np.ndarray] = {}

        def grow(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                way = ways.setdefault(model.tobytes(), rng.normal(size=self.SIZE))
                step = way + 0.8 * np.random.default_rng(client).normal(size=self.SIZE)
                models[name] = (model + step).astype(np.float32)
            return Record(models, {"n": 10})

        return unless({0, 1}, grow, lazy)

    def test_who_returns_the_model_earns_nothing(self):
        train_ = self.updates(lambda client, ask: Record(ask.params, {"n": 10}))
        method_ = IPFL()
        state, done, _ = play(method_, 8, HONEST | {"train": train_}, size=self.SIZE)
        lazy = [row for one in done for row in one.done.market.contributions if row.client in (0, 1)]
        assert lazy
        assert {row.psi for row in lazy} == {0}
        assert not [row for one in done for row in moved(one, "reward") if row[0] in (0, 1)]
        assert (state.earned[2:] > 0).all()
        self.replay(method_, state, done)

    def replay(self, method_: IPFL, state: MarketState, done: list[Played]) -> None:
        """The record gives the same transfers, and others if all were rewarded."""
        lines = [{"seats": one.done.seats, **one.done.market.line()} for one in done]
        rules = method_.rules(state)
        replay = method_.replay(rules, range(8))
        for line in lines:
            replayed = replay.round(line)
            assert replayed.complaint is None
            assert replayed.transfers == line["transfers"]
        trusting = method_.replay({**rules, "positive": False}, range(8))
        assert [trusting.round(line).transfers for line in lines] != [line["transfers"] for line in lines]

    def test_who_replays_the_last_step_earns_nothing_with_noise_or_without(self):
        # Clients 0 and 1 send the last step of the cluster's model once more, client 1 with as much noise.
        before: dict[str, np.ndarray] = {}
        noise = np.random.default_rng(3)

        def again(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                step = model - before.get(name, np.zeros(self.SIZE, np.float32))
                rough = noise.normal(size=self.SIZE)
                rough *= np.linalg.norm(step) / np.linalg.norm(rough) * client
                models[name] = (model + step + rough).astype(np.float32)
            return Record(models, {"n": 10})

        method_ = IPFL()
        state = method_.init(setup(size=self.SIZE))
        script = HONEST | {"train": self.updates(again)}
        cheated = []
        for number in range(8):
            models = {f"cluster_{k}": model for k, model in enumerate(state.models)}
            state, (one,), _ = play(method_, 1, script, state=state, first=number)
            before.update(models)
            if number:
                cheated += [row.psi for row in one.done.market.contributions if row.client in (0, 1)]
        assert cheated
        assert max(cheated) <= 0
        assert (state.earned[[0, 1]] == 0).all()

    def test_copies_earn_nothing(self):
        # Client 1 sends what client 0 sends, which is what an honest client would.
        def copy(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                step = np.random.default_rng(9).normal(size=self.SIZE) + 1
                models[name] = (model + step).astype(np.float32)
            return Record(models, {"n": 10})

        state = IPFL(clusters=1).init(replace(setup(size=self.SIZE), per_round=8))
        script = HONEST | {"train": self.updates(copy), "preference": no_bid}
        _, (first,), _ = play(IPFL(clusters=1), 1, script, state=state)
        own = {row.client: row.psi for row in first.done.market.contributions}
        assert own[1] == 0
        assert own[0] != 0

    def test_the_server_remembers_directions_and_the_last_five_steps(self):
        script = HONEST | {"train": self.updates(lambda client, ask: Record(ask.params, {"n": 10}))}
        state, _, _ = play(IPFL(), 8, script, size=self.SIZE)
        assert [len(steps) for steps in state.public_steps] == [5, 5]
        assert all(direction is not None and direction.any() for direction in state.directions)


class TestTokensOff:
    def test_bids_are_informed_but_nobody_pays_or_earns_and_all_get_the_models(self):
        stop = SCRIPT | {"preference": unless({3}, prefer_parity, no_bid)}
        state, done, engine = play(market(tokens=False), 4, stop)
        assert (state.bank.balances == OPENING).all()
        assert moved(done[2], "reward") == []
        assert moved(done[2], "reimbursement") == []
        assert IPFL().preferences(state) == {c: c % 2 for c in range(8) if c != 3}
        assert all(record.params for query in queries(engine) for record in query.values())
        offer = market(tokens=False).offer(state, 3)
        np.testing.assert_array_equal(offer.params["cluster_0"], state.models[0])

    def test_no_allowance_either(self):
        state, _, _ = play(market(tokens=False, allowance=7), 2, SCRIPT)
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


class TestSettings:
    def test_the_preset_sets_the_printed_rules(self):
        given = method("ipfl", preset="paper")
        assert {name: getattr(given, name) for name in PRESETS["paper"]} == PRESETS["paper"]
        assert any(getattr(IPFL(), name) != value for name, value in PRESETS["paper"].items())

    def test_what_is_set_beside_it_counts_more(self):
        given = method("ipfl", preset="paper", hits="soft", eta=0.25, clusters=4)
        assert (given.hits, given.eta, given.clusters) == ("soft", 0.25, 4)
        assert (given.payers, given.access, given.decay) == ("seated", "open", 0.5)

    def test_every_field_of_a_preset_is_a_setting(self):
        assert set(PRESETS["paper"]) <= set(IPFL.__dataclass_fields__)

    def test_an_unknown_preset_is_refused(self):
        with pytest.raises(InputError, match=r"method\.preset"):
            method("ipfl", preset="papers")

    @pytest.mark.parametrize(
        "name", ["beta", "beta_psi", "eta", "gamma", "feedback", "decay", "ration", "explore"]
    )
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_are_none_are_refused(self, name, value):
        with pytest.raises(InputError, match=rf"method\.{name}"):
            method("ipfl", **{name: value})

    @pytest.mark.parametrize(("rounds", "prices"), [(5, 100), (100, 100), (500, 500)])
    def test_the_opening_is_a_price_for_every_round_and_100_at_least(self, rounds, prices):
        assert IPFL(price=7).opening_balance(rounds) == 7 * prices
        assert IPFL(opening=30).opening_balance(rounds) == 30
        state = IPFL(price=7).init(replace(setup(), rounds=rounds))
        assert set(state.bank.balances.tolist()) == {7 * prices}
        assert IPFL(price=7).rules(state)["opening"] == 7 * prices
