"""Whole rounds by the paper's rules with scripted clients: what they are told, invalid bids, the report."""

from __future__ import annotations

import pytest
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    paper,
    play,
    prefer_parity,
)

from ipfl.core import Record

OPENING = 100 * 100


def members(done, cluster: int) -> list[int]:
    """Clients with a seat in the cluster."""
    return sorted(seat.client for seat in done.done.seats if seat.cluster == cluster)


def bids(done) -> list[int]:
    """Number of bids for each cluster."""
    return [sum(bid.cluster == cluster for bid in done.done.market.bids or ()) for cluster in (0, 1)]


class TestTokens:
    def test_clients_are_told_their_balance_and_the_totals_of_their_seats(self):
        # Round 0: three clients of each cluster pay 100. Nothing is known of before, so U = 0, and the pool
        # of 300 goes out by rank 1/6, 2/6, 3/6 = 50, 100, 150; the largest id has the largest contribution.
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


class TestInvalidReplies:
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
