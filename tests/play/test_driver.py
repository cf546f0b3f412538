"""What travels in a round, who did not answer, and which replies reach the method."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core import Ask, Event, Record, Round, server_faults
from ipfl.core.replies import ReplySchema
from ipfl.play.driver import Traffic, drive, exchange


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


class GivenReplies:
    """An engine whose replies are given, a mapping per phase."""

    def __init__(self, *replies):
        self.replies, self.events = list(replies), []

    def ask(self, ask, round):
        return self.replies.pop(0)


ONE_NUMBER = ReplySchema(vectors={"m": 1})


def two_phases(seen):
    """A round that asks clients 1 to 4 and the server's own holdout, then client 2."""
    record = Record({"m": vector(0, 0)})  # 8 bytes
    seen.append((yield Ask("first", dict.fromkeys([-1, 1, 2, 3, 4], record), ONE_NUMBER)))
    seen.append((yield Ask("second", {2: record}, ONE_NUMBER)))
    return Round("end")


def test_a_round_is_counted_and_invalid_replies_do_not_reach_the_method():
    good, bad = Record({"m": vector(1)}), Record({"m": vector(np.nan)})  # 4 bytes each
    own = Record({"m": vector(7)})  # the server's own: does not travel
    traffic, seen = Traffic(), []
    done = drive(two_phases(seen), GivenReplies({2: bad, 1: good, -1: own}, {}), 0, traffic)
    assert done.state == "end"
    assert seen == [{-1: own, 1: good}, {}]
    assert list(seen[0]) == [-1, 1], "in ascending id"
    # Four clients, then one, are sent 8 bytes each; two replies of 4 bytes came.
    assert (traffic.down, traffic.up) == (5 * 8, 2 * 4)
    assert [(event.kind, event.client) for event in traffic.events()] == [
        ("no_answer", 2),  # in the second phase
        ("no_answer", 3),
        ("no_answer", 4),
        ("invalid_reply", 2),
    ]


def test_an_invalid_reply_of_the_server_s_own_holdout_is_about_no_client():
    bad = Record({"m": vector(np.nan)})
    traffic, ask = Traffic(), Ask("do", dict.fromkeys([-2, -1], Record()), ONE_NUMBER)
    assert exchange(ask, GivenReplies({-1: bad, -2: bad}), 0, traffic) == {}
    reason = "sent an invalid reply (m is not a vector of 1 numbers up to 1e+06)"
    assert traffic.events() == [
        Event("invalid_reply", None, f"the server's own holdout of distribution {distribution} {reason}")
        for distribution in (1, 0)
    ]
    assert (traffic.down, traffic.up) == (0, 0)


class TestDivergence:
    """A client with a broken model is told of; where all diverged, it is the settings: nobody is blamed."""

    GOOD, BAD = Record({"m": vector(1)}), Record({"m": vector(np.nan)})

    def play(self, replies):
        traffic = Traffic()
        ask = Ask("train", dict.fromkeys(range(3), Record()), ONE_NUMBER)
        return exchange(ask, GivenReplies(replies), 0, traffic), traffic

    def test_everywhere(self):
        arrived, traffic = self.play({0: self.BAD, 2: self.BAD})
        kinds = [(event.kind, event.client) for event in traffic.events()]
        assert kinds == [("diverged", None), ("no_answer", 1)]
        assert "lower train.lr" in traffic.events()[0].text
        assert arrived == {}
        assert arrived.server_faults == {0, 2}, "their seats are excused"

    @pytest.mark.parametrize("other", [GOOD, Record({"m": vector(1, 1)})])
    def test_at_some(self, other):
        arrived, traffic = self.play({0: self.BAD, 1: other, 2: self.BAD})
        kinds = [(event.kind, event.client) for event in traffic.events()]
        assert [kind for kind in kinds if kind[1] != 1] == [("invalid_reply", 0), ("invalid_reply", 2)]
        assert arrived.server_faults == frozenset()


class TestServerFaults:
    """Whose absence is the server's own fault: a method is told with the replies."""

    class Engine(GivenReplies):
        def ask(self, ask, round):
            self.events += [Event("worker_died", 2, "its process died"), Event("late", 3, "was late")]
            return super().ask(ask, round)

    def test_workers_that_died(self):
        engine = self.Engine({1: Record()}, {1: Record(), 2: Record()})
        engine.events.append(Event("worker_died", 1, "in an earlier phase"))
        replies = exchange(Ask("do", dict.fromkeys((1, 2, 3), Record())), engine, 0, Traffic())
        assert server_faults(replies) == {2}
        assert list(replies) == [1]
