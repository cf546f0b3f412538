"""Rows of a round, when a round is rolled back, and events in few sentences for people."""

from __future__ import annotations

import pytest

from ipfl.core.rounds import MAX_NAMED_CLIENTS, Event, Seat, is_below_quorum, summarize
from ipfl.market.market_rows import ROW_TYPES, Market


def silent(*clients: int) -> list[Event]:
    return [Event("no_answer", client, "did not answer") for client in clients]


class TestEvent:
    def test_about_a_client_and_about_none(self):
        assert str(Event("late", 12, "answered too late")) == "client 12 answered too late"
        assert str(Event("collapse", None, "one cluster gets all bids")) == "one cluster gets all bids"


class TestSummarize:
    @pytest.mark.parametrize(
        ("clients", "said"),
        [
            ((7, 12, 3), "clients 3, 7 and 12"),
            ((0, 4), "clients 0 and 4"),
            ((7,), "client 7"),
            ((7, 7), "client 7"),
        ],
    )
    def test_what_holds_for_several_clients_is_one_sentence(self, clients, said):
        assert summarize(silent(*clients)) == [f"{said} did not answer"]

    def test_other_texts_and_kinds_are_other_sentences(self):
        events = [Event("invalid_reply", 1, "sent n = 0"), Event("invalid_reply", 2, "sent no model")]
        assert summarize(events) == ["client 1 sent n = 0", "client 2 sent no model"]
        assert len(summarize([Event("a", 1, "is gone"), Event("b", 2, "is gone")])) == 2

    def test_each_kind_stands_where_its_first_event_stood(self):
        events = [Event("twice", 5, "answered twice"), Event("collapse", None, "collapse"), *silent(1)]
        summary = summarize([*events, Event("twice", 2, "answered twice")])
        assert summary == ["clients 2 and 5 answered twice", "collapse", "client 1 did not answer"]

    def test_many_clients_are_counted(self):
        (sentence,) = summarize(silent(*range(100, 400)))
        assert sentence == "300 clients (100, 101, 102, 103, 104, 105, 106, 107, 108, 109, …) did not answer"

    @pytest.mark.parametrize("count", [MAX_NAMED_CLIENTS, MAX_NAMED_CLIENTS + 1])
    def test_the_limit_of_names(self, count):
        (sentence,) = summarize(silent(*range(count)))
        assert sentence.startswith("clients 0, 1") == (count == MAX_NAMED_CLIENTS)


class TestRows:
    def test_every_key_of_a_market_with_rows_has_a_type(self):
        full = Market((), (), (), (), (), (), {"gini": 0.0})
        assert {*full.line()} - {"economy"} <= {*ROW_TYPES}

    def test_a_market_says_only_what_it_knows(self):
        assert Market(()).line() == {"transfers": ()}
        assert Market((), bids=()).line() == {"transfers": (), "bids": ()}, "no bids are an answer, too"


@pytest.mark.parametrize(
    ("seats", "min_clients", "expected"),
    [
        ([], 1, False),  # nobody was to train: nothing to roll back
        ([(1, 0, False)], 1, True),
        ([(1, 0, True)], 1, False),
        ([(1, 0, True), (2, 0, False)], 2, True),
        ([(1, 0, True), (2, 0, True)], 2, False),
        ([(1, 0, True), (1, 1, True)], 2, True),  # one client in two clusters
    ],
)
def test_when_a_round_is_below_its_quorum(seats, min_clients, expected):
    rows = [Seat(client, cluster, "random", delivered) for client, cluster, delivered in seats]
    assert is_below_quorum(iter(rows), min_clients) == expected
