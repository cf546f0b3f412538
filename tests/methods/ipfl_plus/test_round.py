"""Whole rounds against scripted clients: phases, tokens by the paper's rules, invalid replies, reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    SIZE,
    appraise,
    market,
    paper,
    play,
    prefer_parity,
    setup,
    train,
)

from ipfl.core import Record
from ipfl.market.market_rows import Transfer

OPENING = 100 * 100


def members(done, cluster: int) -> list[int]:
    """Clients with a seat in the cluster."""
    return sorted(seat.client for seat in done.done.seats if seat.cluster == cluster)


def trained(done, cluster: int) -> list[int]:
    return sorted(seat.client for seat in done.done.seats if seat.cluster == cluster and seat.delivered)


def psi(done, cluster: int) -> list[float | None]:
    return [row.psi for row in done.done.market.contributions if row.cluster == cluster]


def bids(done) -> list[int]:
    """Number of bids for each cluster."""
    return [sum(bid.cluster == cluster for bid in done.done.market.bids or ()) for cluster in (0, 1)]


def transfers(done, kind: str) -> list[Transfer]:
    return [transfer for transfer in done.done.market.transfers if transfer.kind == kind]


class TestOrderOfPhases:
    def test_round_0_is_random_and_asks_for_no_preferences(self):
        _state, (first,), engine = play(paper(), 1)
        assert engine.actions == ["train", "appraise"]
        clients = [seat.client for seat in first.done.seats]
        assert len(clients) == len(set(clients)) == 6  # the budget, nobody twice
        assert [len(members(first, k)) for k in (0, 1)] == [3, 3]

    def test_later_rounds_follow_algorithm_1(self):
        _, _, engine = play(paper(), 2)
        later = ["preference", "train", "appraise"]
        assert engine.actions == ["train", "appraise", *later]

    def test_aggregate_is_the_mean_of_the_cluster_s_clients(self):
        # Client i adds i to every coordinate and all have 10 samples: the model is the mean of their ids.
        state, (first,), _ = play(paper(), 1)
        for k in (0, 1):
            np.testing.assert_allclose(state.clusters.models[k], np.mean(trained(first, k)))


class TestTokens:
    def test_round_0_by_hand(self):
        # Three seats of 100 in each cluster. First round: U = 0, so the pool of 300 goes out by rank
        # 1/6, 2/6, 3/6 = 50, 100, 150; the largest id has the largest contribution.
        state, (first,), _ = play(paper(), 1)
        for k in (0, 1):
            assert [int(state.accounts.balances[i]) - OPENING for i in members(first, k)] == [-50, 0, 50]
        away = set(range(8)) - {seat.client for seat in first.done.seats}
        assert all(state.accounts.balances[i] == OPENING for i in away)
        assert [fee.amount for fee in transfers(first, "fee")] == [100] * 6

    def test_no_improvement_returns_the_share_eta_to_those_who_paid(self):
        # Accuracy stays at 0.5 = Acc_kmax, so U = η = 0.5: half of every pool is reimbursed equally.
        _, done, _ = play(paper(payment={"eta": 0.5}), 2)
        assert {share for _, share in done[1].done.market.reimbursed_share} == {0.5}
        for k in (0, 1):
            fees = sum(row.amount for row in transfers(done[1], "fee") if row.cluster == k)
            back = sum(row.amount for row in transfers(done[1], "reimbursement") if row.cluster == k)
            assert back == fees / 2

    def test_unselected_bids_are_refunded_in_the_same_round(self):
        # N = 8, all explored or not: 8 bids, n_p = (6 − N_r)/2 seats per cluster.
        _, done, _ = play(paper(), 2)
        placed, refunds = len(transfers(done[1], "bid")), len(transfers(done[1], "refund"))
        taken = sum(fee.source < 0 for fee in transfers(done[1], "fee"))  # fees out of escrow
        assert placed == 8
        assert refunds == placed - taken

    def test_clients_are_told_their_balance_and_the_totals_of_their_seats(self):
        # In round 0 three clients of each cluster paid 100 and got back 50, 100, 150 (see above).
        state, done, engine = play(paper(), 3)
        queries = [ask for ask in engine.asks if ask.action == "preference"]
        for client, record in queries[0].to.items():
            place = {k: members(done[0], k).index(client) for k in (0, 1) if client in members(done[0], k)}
            assert record.facts["seats"] == [int(k in place) for k in (0, 1)]
            net = [[-50, 0, 50][place[k]] if k in place else 0 for k in (0, 1)]
            assert record.facts["net"] == net
            assert record.facts["balance"] == OPENING + sum(net)
            assert record.facts["price"] == 100
        # Totals: the seats of both rounds, and a client's net is what its balance changed by.
        for client, record in queries[1].to.items():
            seats = [sum(client in members(one, k) for one in done[:2]) for k in (0, 1)]
            assert record.facts["seats"] == seats
            assert record.facts["balance"] == OPENING + sum(record.facts["net"])
        assert state.seats.had.sum() == 18

    def test_without_incentives_nobody_gains_or_loses_and_nobody_is_asked(self):
        state, done, engine = play(paper(incentive=False), 4)
        assert set(engine.actions) == {"train"}
        assert (state.accounts.balances == OPENING).all()
        assert all(sum(bids(one)) == 8 for one in done[1:])

    def test_clients_that_cannot_pay_are_not_chosen(self):
        # Opening balance of one price. Clients that have less get no seat, whatever they bid.
        state, done, _ = play(paper(payment={"opening": 100}), 12)
        balances = np.full(8, 100)
        for one in done:
            assert all(balances[seat.client] >= 100 for seat in one.done.seats)
            for transfer in one.done.market.transfers:
                for account, sign in ((transfer.source, -1), (transfer.target, 1)):
                    if account >= 0:
                        balances[account] += sign * transfer.amount
        assert balances.tolist() == state.accounts.balances.tolist()
        assert any(("empty_seats", None) in one.kinds for one in done)


def broken(kind: str):
    def answer(client: int, ask: Record) -> Record | None:
        valid = train(client, ask)
        if client != 5:
            return valid
        name = next(iter(valid.params))
        return {
            "absent": None,
            "nan": Record({name: np.full(SIZE, np.nan, np.float32)}, {"n": 10}),
            "infinite": Record({name: np.full(SIZE, np.inf, np.float32)}, {"n": 10}),
            "short": Record({name: np.zeros(SIZE - 1, np.float32)}, {"n": 10}),
            "no samples": Record(valid.params, {"n": 0}),
            "samples as text": Record(valid.params, {"n": "many"}),
            "another name": Record({"model": valid.params[name]}, {"n": 10}),
        }[kind]

    return answer


KINDS = ["absent", "nan", "infinite", "short", "no samples", "samples as text", "another name"]


class TestInvalidReplies:
    @pytest.mark.parametrize("kind", KINDS)
    def test_client_is_left_out_and_forfeits_its_price(self, kind):
        # per_round = 8: everyone has a seat in round 0, client 5 as well.
        method_, engine = paper(), HONEST | {"train": broken(kind)}
        state = method_.init(replace(setup(), per_round=8))
        state, (first,), _ = play(method_, 1, engine, state=state)
        (k,) = [k for k in (0, 1) if 5 in members(first, k)]
        others = [i for i in members(first, k) if i != 5]
        assert trained(first, k) == others
        assert state.accounts.balances[5] == OPENING - 100
        np.testing.assert_allclose(state.clusters.models[k], np.mean(others), rtol=1e-6)
        assert first.kinds == [("no_answer" if kind == "absent" else "invalid_reply", 5)]
        assert state.seats.omega[5].sum() == 0

    def test_nobody_answers(self):
        state, _done, _ = play(paper(), 2, HONEST | {"train": lambda client, ask: None})
        assert (state.accounts.balances == OPENING).all()
        assert not any(model.any() for model in state.clusters.models)

    def test_no_appraisal_means_no_reimbursement_and_ranks_by_participation(self):
        # ψ unknown for all: three providers, ranked by Ω (all 1), then by id: 50, 100, 150 of 300.
        state, (first,), _ = play(paper(), 1, HONEST | {"appraise": lambda client, ask: None})
        assert [psi(first, k) for k in (0, 1)] == [[None] * 3] * 2
        for k in (0, 1):
            assert [int(state.accounts.balances[i]) - OPENING for i in members(first, k)] == [-50, 0, 50]

    def test_nan_gradient_is_ignored(self):
        def poisoned(client: int, ask: Record) -> Record:
            answer = appraise(client, ask)
            return Record({name: vector * np.nan for name, vector in answer.params.items()}, answer.facts)

        _, (first,), _ = play(
            paper(), 1, HONEST | {"appraise": lambda c, a: (poisoned if c == 2 else appraise)(c, a)}
        )
        assert None not in psi(first, 0) + psi(first, 1)

    @pytest.mark.parametrize(
        "facts",
        [
            {},
            {"bids": [0], "hits": [float("nan"), 1.0], "n": 10},
            {"bids": [0], "hits": [11.0, 1.0], "n": 10},
            {"bids": [0], "hits": [-1.0, 1.0], "n": 10},
            {"bids": [7], "hits": [1.0, 1.0], "n": 10},
            {"bids": [0, 0], "hits": [1.0, 1.0], "n": 10},
            {"bids": [0], "hits": [1.0], "n": 10},
            {"bids": "first", "hits": "many", "n": None},
        ],
    )
    def test_invalid_preferences_leave_the_old_bids(self, facts):
        answer = {"preference": lambda c, a: Record({}, facts) if c == 3 else prefer_parity(c, a)}
        state, done, _ = play(paper(), 2, HONEST | answer)
        assert (state.preferences.ranks[3] == -1).all()
        assert done[1].kinds == [("invalid_reply", 3)]

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_whatever_happens_tokens_are_conserved(self, data):
        faults = st.sampled_from(["fine", "fine", "fine", *KINDS])
        method_ = paper(payment={"opening": data.draw(st.sampled_from([100, 250, 10_000])), "eta": 0.3})
        script = HONEST | {
            "train": lambda c, a: train(c, a) if (f := data.draw(faults)) == "fine" else broken(f)(5, a),
            "preference": lambda c, a: prefer_parity(c, a) if data.draw(st.booleans()) else None,
            "appraise": lambda c, a: appraise(c, a) if data.draw(st.booleans()) else None,
        }
        state = method_.init(setup())
        issued = state.accounts.issued
        state, done, _ = play(method_, 4, script, state=state)
        # The accounts themselves refuse negative balances and sums that do not add up.
        assert state.accounts.balances.sum() == state.accounts.issued == issued
        for one in done:
            moved = one.done.market.transfers
            assert {row.amount for row in moved if row.kind in ("bid", "fee")} <= {100}
            into = sum(row.amount for row in moved if row.kind == "fee")
            pools = {-3, -5}
            out = sum(row.amount for row in moved if row.source in pools)
            assert into == out  # refund + reimbursement + rewards = pool


class TestReports:
    def test_collapse_is_reported_once(self):
        all_to_0 = {"preference": lambda c, a: Record({}, {"bids": [0], "hits": [9.0, 1.0], "n": 10})}
        state, done, _ = play(paper(), 4, HONEST | all_to_0)
        assert [one.kinds.count(("collapse", None)) for one in done] == [0, 1, 0, 0]
        assert paper().report(state)["collapsed"] is True

    def test_healthy_market_reports_no_collapse(self):
        state, _, _ = play(paper(), 3)
        report = paper().report(state)
        assert report["collapsed"] is False
        assert report["bid_share"] == [0.5, 0.5]
        assert report["broke"] == []
        assert sum(report["balances"]) == report["issued"]

    def test_rewards_follow_contributions(self):
        # Client i always contributes i: Spearman of contribution and reward must be clearly positive.
        state, _, _ = play(paper(), 30)
        assert paper().report(state)["contribution_reward_correlation"] > 0.8

    def test_small_budget_is_never_exceeded(self):
        # N = 8 and two clusters, but 3 trainings a round: N_r = 2 would leave none, so it is cut to 1.
        method_ = paper()
        state = method_.init(replace(setup(), per_round=3))
        _, done, _ = play(method_, 6, state=state)
        assert max(len(one.done.seats) for one in done) == 3

    def test_preferences_name_the_most_wanted_cluster(self):
        state, _, _ = play(paper(), 2)
        assert paper().preferences(state) == {client: client % 2 for client in range(8)}

    def test_a_client_put_into_the_wrong_cluster_bids_for_the_right_one(self):
        method_ = paper()
        state = method_.init(setup())
        wrong = state.preferences.with_one_bid_each(np.array([i % 2 if i != 3 else 0 for i in range(8)]))
        state = replace(state, preferences=wrong)
        assert method_.preferences(state)[3] == 0
        state, _, _ = play(method_, 2, state=state)
        assert method_.preferences(state)[3] == 1


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
        state = method_.init(replace(setup(20), per_round=per_round))
        _, done, _ = play(method_, 11, HONEST | {"preference": prefer}, clients=20, state=state)
        assert [len(one.done.seats) for one in done] == [per_round] * 11
        used = [seat.cluster for one in done[1:] for seat in one.done.seats]
        assert set(used) == set(range(clusters))
        assert all(seat.cluster == seat.client % clusters for one in done[1:] for seat in one.done.seats)
