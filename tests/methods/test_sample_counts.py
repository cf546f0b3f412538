"""How much a reply counts: sample counts that only their sender knows, and models that one client trained.

An honest client 0 has 10 samples, client 1 has 30, and client 2 claims as many as it likes. In the next round
all may count for ten times the median, of (10, 30, claim) 10·30 = 300 at most.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests import federation
from tests.federation import ScriptedEngine, play_round

from ipfl.core import Record, TaskFacts
from ipfl.methods.clusters.fedem import FedEM
from ipfl.methods.clusters.fedsoft import FedSoft
from ipfl.methods.clusters.ifca import IFCA
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.methods.personal.fedproto import FedProto

MOST = 10**9
"""The largest count that is a valid reply."""
HONEST = {0: (10, 0.0), 1: (30, 0.0)}
"""Samples and model of each."""


def both(value):
    return np.full(2, value, np.float32)


def model_of(n, value):
    """A reply of methods with one model."""
    return Record({"global": both(value)}, {"n": n})


def learners_of(n, value):
    return Record({"cluster_0": both(value), "cluster_1": both(value)}, {"n": n})


def prototypes_of(n, value):
    """A tenth of the samples are of class 0."""
    return Record({"prototypes": both(value)}, {"n": n, "counts": [n // 10, n - n // 10]})


def choice_of(n, value):
    return Record({"cluster_0": both(value)}, {"n": n, "cluster": 0})


def start(method, clients=3, **rules):
    """A federation of the method's at 0, with these rules of aggregation."""
    task, config = TaskFacts(2, features=1), {"aggregate": rules}
    return method.init(federation.setup(clients, task=task, config=config, make_params=lambda n: both(0)))


def models_after(method, reply, sent, max_weight, **rules):
    """The server's numbers after a round with these (samples, value) of clients, and what is told of it."""
    state = start(method, **rules)
    answers = {client: reply(*told) for client, told in sent.items()}
    engine = ScriptedEngine({"train": lambda client, ask: answers.get(client)})
    played = play_round(method, state, engine, 3, max_weight=max_weight)
    if isinstance(method, FedProto):
        return played.state.values.tolist(), played
    return list(method.models(played.state).values())[-1].tolist(), played


EVERY = pytest.mark.parametrize(
    ("method", "reply"),
    [
        (FedAvg(), model_of),
        (FedEM(), learners_of),
        (FedProto(), prototypes_of),
        (IFCA(clusters=1, restarts=1), choice_of),
    ],
    ids=["fedavg", "fedem", "fedproto", "ifca"],
)


@EVERY
class TestAnInflatedCount:
    def test_counts_ten_times_the_median(self, method, reply):
        # 34·300/(10 + 30 + 300) = 30; of class 0, of which all have a tenth, 34·30/(1 + 3 + 30) = 30.
        found, played = models_after(method, reply, {**HONEST, 2: (MOST, 34.0)}, 10.0)
        assert found == pytest.approx([30, 30])
        assert played.kinds == [("weight_limited", 2)]
        assert played.events[0].text == (
            "said that it has 1000000000 samples and counts as 300, 10 times the median"
        )

    def test_of_one_of_two_does_not_raise_the_median(self, method, reply):
        # The lower of 10 and 10⁹ counts: 33·100/110 = 30.
        found, _ = models_after(method, reply, {0: (10, 0.0), 2: (MOST, 33.0)}, 10.0)
        assert found == pytest.approx([30, 30])


@EVERY
def test_a_model_of_no_samples_is_no_reply(method, reply):
    found, played = models_after(method, reply, {1: (0, 7.0)}, None)
    assert found == [0, 0]
    assert ("invalid_reply", 1) in played.kinds


@EVERY
class TestOneProvider:
    """A model that would be one client's own update, which all who are sent it could read off, stays."""

    def test_moves_nothing_where_two_are_needed(self, method, reply):
        found, played = models_after(method, reply, {1: (30, 7.0)}, None, min_providers=2)
        assert found == [0, 0]
        assert [client for client, _, _, delivered in played.seats if delivered] == [1], "it delivered"


def test_a_class_that_one_client_has_gets_no_prototype():
    state = start(FedProto(), min_providers=2)
    sent = {
        0: Record({"prototypes": both(4)}, {"n": 2, "counts": [1, 1]}),
        1: Record({"prototypes": both(8)}, {"n": 1, "counts": [1, 0]}),
    }
    played = play_round(FedProto(), state, ScriptedEngine({"train": lambda client, ask: sent[client]}), 2)
    # Class 0: (1·4 + 1·8)/2 = 6. Class 1 is client 0's alone.
    assert played.state.values.tolist() == [6, 0]
    assert played.state.known == (True, False)


def test_a_center_of_fedsoft_that_one_client_trained_is_still_random():
    """Training goes on from the initial parameters, as before anybody trained the center."""
    method = FedSoft(clusters=1)
    script = {
        "estimate": lambda client, ask: Record({}, {"importance": [1.0], "n": 3}),
        "train": lambda client, ask: Record({"model": both(5)}, {"n": 3}),
    }
    for fewest, value, random in ((1, 5, ()), (2, 0, (0,))):
        state = start(method, clients=1, min_providers=fewest)
        after = play_round(method, state, ScriptedEngine(script), 1).state
        assert [model.tolist() for model in after.models] == [[value, value]]
        assert after.random == random
