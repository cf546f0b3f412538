"""Whole rounds against scripted clients: phases, tokens by the paper's rules, invalid replies, reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    SIZE,
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
        _, (first, _), engine = play(paper(), 2)
        assert engine.actions == ["train", "appraise", "preference", "train", "appraise"]
        clients = [seat.client for seat in first.done.seats]
        assert len(clients) == len(set(clients)) == 6  # the budget, nobody twice
        assert [len(members(first, k)) for k in (0, 1)] == [3, 3]


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


def broken(kind: str):
    def answer(client: int, ask: Record) -> Record | None:
        valid = train(client, ask)
        if client != 5:
            return valid
        name = next(iter(valid.params))
        return {
            "absent": None,
            "nan": Record({name: np.full(SIZE, np.nan, np.float32)}, {"n": 10}),
            "no samples": Record(valid.params, {"n": 0}),
        }[kind]

    return answer


KINDS = ["absent", "nan", "no samples"]


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

    def test_no_appraisal_means_no_reimbursement_and_ranks_by_participation(self):
        # ψ unknown for all: three providers, ranked by Ω (all 1), then by id: 50, 100, 150 of 300.
        state, (first,), _ = play(paper(), 1, HONEST | {"appraise": lambda client, ask: None})
        assert [psi(first, k) for k in (0, 1)] == [[None] * 3] * 2
        for k in (0, 1):
            assert [int(state.accounts.balances[i]) - OPENING for i in members(first, k)] == [-50, 0, 50]

    @pytest.mark.parametrize(
        "facts",
        [
            {"bids": [0], "hits": [11.0, 1.0], "n": 10},
            {"bids": [7], "hits": [1.0, 1.0], "n": 10},
            {"bids": [0, 0], "hits": [1.0, 1.0], "n": 10},
        ],
    )
    def test_invalid_preferences_leave_the_old_bids(self, facts):
        answer = {"preference": lambda c, a: Record({}, facts) if c == 3 else prefer_parity(c, a)}
        state, done, _ = play(paper(), 2, HONEST | answer)
        assert (state.preferences.ranks[3] == -1).all()
        assert done[1].kinds == [("invalid_reply", 3)]


class TestReports:
    def test_healthy_market_reports_no_collapse(self):
        state, _, _ = play(paper(), 3)
        report = paper().report(state)
        assert report["collapsed"] is False
        assert report["bid_share"] == [0.5, 0.5]
        assert report["broke"] == []
        assert sum(report["balances"]) == report["issued"]

    def test_preferences_name_the_most_wanted_cluster(self):
        state, _, _ = play(paper(), 2)
        assert paper().preferences(state) == {client: client % 2 for client in range(8)}


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
