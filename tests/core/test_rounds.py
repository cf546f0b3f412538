"""Events of a round, in few sentences."""

from __future__ import annotations

from ipfl.core.events import about, gathered

import ipfl
from ipfl.stress.settings import FaultsConfig


def test_what_is_said_of_several_clients_is_said_once():
    told = ["client 7 did not answer", "client 12 did not answer", "client 3 did not answer"]
    assert gathered(told) == ["clients 3, 7 and 12 did not answer"]
    assert gathered(told[:2]) == ["clients 7 and 12 did not answer"]


def test_of_one_client_all_is_said():
    told = ["client 7 sent no usable update; it was left out"]
    assert gathered(told) == told
    assert gathered(told * 2) == told  # in two phases of a round


def test_what_followed_for_each_is_left_out():
    """The bid was one client's own; of several the sentence would be wrong."""
    told = [f"client {client} sent no usable update; its bid was returned" for client in (1, 2)]
    assert gathered(told) == ["clients 1 and 2 sent no usable update"]


def test_the_order_is_that_of_the_first_of_each_kind():
    told = ["client 5 answered twice", "collapse: one cluster gets nearly all bids", "client 1 left"]
    assert gathered([*told, "client 2 answered twice"]) == ["clients 2 and 5 answered twice", *told[1:]]


def test_a_crowd_is_counted():
    told = [f"client {client} did not answer" for client in range(100, 400)]
    (said,) = gathered(told)
    assert said == "300 clients (100, 101, 102, 103, 104, 105, 106, 107, 108, 109, …) did not answer"


def test_whom_an_event_is_about():
    assert about("client 12 did not answer") == 12
    assert about("cluster 1 serves the same bidders as cluster 0: merged") is None
    assert about("the client 3 of another sentence") is None


def test_a_round_that_loses_a_third_of_its_clients_is_still_readable():
    """A few kinds, some of them per cluster, and one sentence for all who are silent."""
    task = ipfl.Task.load(clients=30, samples=20, test_samples=20, model="softmax")
    faults = FaultsConfig(dropout=0.3, broken=0.05)
    result = ipfl.run(task, ipfl.method("ipfl"), rounds=5, faults=faults, workers=0)
    for line in result.history:
        assert len(line["events"]) <= 8
        assert sum(event.endswith("did not answer") for event in line["events"]) <= 1
    assert any(event.startswith("clients ") for line in result.history for event in line["events"])
