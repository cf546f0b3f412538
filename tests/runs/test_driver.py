"""What goes over the wire in a round, who fell silent, and what is fit to be read."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core import Ask, Record, Round, is_below_quorum
from ipfl.core.vectors import mean
from ipfl.runs.driver import Traffic, drive, readable


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


class TestReadable:
    @pytest.mark.parametrize(
        "reply",
        [
            Record(),
            Record({"m": vector(1, -1e6, 1e6)}, {"n": 3, "name": "x", "known": [True, None, 0.5]}),
            Record({"m": vector()}, {"n": 2**53, "nested": [[1, 2], [3]]}),
        ],
    )
    def test_what_is(self, reply):
        assert readable(reply)

    @pytest.mark.parametrize(
        "reply",
        [
            Record({"m": vector(1, np.nan)}),
            Record({"m": vector(np.inf)}),
            Record({"m": vector(-np.inf)}),
            Record({"m": vector(1.1e6)}),
            Record({"fine": vector(1), "m": vector(-1e30)}),
            Record({"m": np.ones((2, 2), np.float32)}),
            Record({"m": np.ones(2)}),
            Record({"m": [1.0, 2.0]}),
            Record({}, {"n": float("nan")}),
            Record({}, {"hits": [1.0, float("inf")]}),
            Record({}, {"n": 2**53 + 1}),
            Record({}, {"n": -(10**400)}),
            Record({}, {"nested": [[0, 1e30]]}),
        ],
    )
    def test_what_is_not(self, reply):
        assert not readable(reply)

    def test_the_mean_of_what_is_readable_is_readable(self):
        """The point of a bound: whatever the replies' weights, the aggregate is within it."""
        replies = [vector(1e6, -1e6), vector(1e6, 1e6), vector(0, -1e6)]
        assert readable(Record({"m": mean(replies, [2.0**53, 1, 1])}))


class Engine:
    """Answers with what was given."""

    def __init__(self, *replies):
        self.replies = list(replies)

    def ask(self, ask, round):
        return self.replies.pop(0)


def talk(seen):
    """Two phases: clients 1 to 4 and the server's own holdout, then client 2."""
    record = Record({"m": vector(0, 0)})  # 8 bytes
    seen.append((yield Ask("first", dict.fromkeys([-1, 1, 2, 3, 4], record))))
    seen.append((yield Ask("second", {2: record})))
    return Round("end")


def test_a_round_is_counted_and_broken_replies_do_not_reach_the_method():
    good, bad = Record({"m": vector(1)}), Record({"m": vector(np.nan)})  # 4 bytes each
    own = Record({"m": vector(np.nan)})  # the server's own: not for the wire, nor for the gate
    traffic, seen = Traffic(), []
    done = drive(talk(seen), Engine({-1: own, 1: good, 2: bad}, {}), 0, traffic, readable)
    assert done.state == "end"
    assert seen == [{-1: own, 1: good}, {}]
    # Four clients, then one, are sent 8 bytes each; two replies of 4 bytes came.
    assert (traffic.down, traffic.up) == (5 * 8, 2 * 4)
    assert traffic.events() == [
        "client 2 did not answer",  # in the second phase
        "client 3 did not answer",
        "client 4 did not answer",
        "client 2 sent a broken reply; it was not read",
    ]


def test_without_a_gate_the_method_sees_everything():
    bad, seen = Record({"m": vector(np.nan)}), []
    drive(talk(seen), Engine({1: bad}, {2: bad}), 0, Traffic())
    assert seen == [{1: bad}, {2: bad}]


@pytest.mark.parametrize(
    ("seats", "least", "void"),
    [
        ([], 1, False),  # nobody was to train: nothing to take back
        ([[1, 0, "random", False]], 1, True),
        ([[1, 0, "random", True]], 1, False),
        ([[1, 0, "random", True], [2, 0, "random", False]], 2, True),
        ([[1, 0, "random", True], [2, 0, "random", True]], 2, False),
        ([[1, 0, "random", True], [1, 1, "performance", True]], 2, True),  # one client in two clusters
    ],
)
def test_when_a_round_is_void(seats, least, void):
    assert is_below_quorum(seats, least) == void
