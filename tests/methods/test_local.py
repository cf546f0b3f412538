"""Local training: every client goes on with its own model, of which the server sees nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.client.runner import EVALUATE
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.client.training import evaluate, sgd
from ipfl.core import Ask, Roster, Setup, stream
from ipfl.engines.local import LocalEngine, one_thread
from ipfl.methods.local import Local


@pytest.fixture(scope="module")
def task():
    return Task.load(clients=4, samples=20, test_samples=20, model="softmax")


@pytest.fixture
def start(task):
    return task.network(0).read()


def state_of(task, start, per_round=2):
    return Local().init(Setup(start, task.data.clients, per_round, 3, task.data.classes, 0))


def test_models_never_travel_up(task, start):
    state = state_of(task, start)
    with LocalEngine(task, Local(), workers=1) as engine:
        for round in range(3):
            talk = Local().round(state, Roster(task.data.clients), round)
            ask = next(talk)
            assert len(ask.to) == 2, "the same budget as other methods"
            replies = engine.ask(ask, round)
            assert all(dict(reply.params) == {} and set(reply.facts) == {"n"} for reply in replies.values())
            with pytest.raises(StopIteration) as done:
                talk.send(replies)
            assert done.value.value.state is state, "the server learns nothing"
            assert done.value.value.facts == {"seats": [[client, -1, "random", True] for client in replies]}
    assert Local().models(state) == {}


def test_each_client_trains_its_own(task, start):
    """Client 0 trains in rounds 0 and 1, client 1 in round 1 only; the same is done here by hand."""
    settings, offer = TrainConfig(), Local().offer(state_of(task, start), 0)

    def trained(model, client, round):
        samples = task.data.parts(client).train
        with one_thread():
            return sgd(task.network(0), model, samples, settings, stream(0, "train", round, client))

    own = {0: trained(trained(start, 0, 0), 0, 1), 1: trained(start, 1, 1), 2: start}
    with LocalEngine(task, Local(), settings, workers=0) as engine:
        engine.ask(Ask("train", {0: offer}), 0)
        engine.ask(Ask("train", {0: offer, 1: offer}), 1)
        kept = {client: engine.host.memory.load(client).params.get("own") for client in range(3)}
        replies = engine.ask(Ask(EVALUATE, dict.fromkeys(range(3), offer)), 1)
    assert kept[0].tobytes() == own[0].tobytes()
    assert kept[1].tobytes() == own[1].tobytes()
    assert kept[2] is None
    assert not np.array_equal(own[0], own[1])
    for client, model in own.items():
        hits = evaluate(task.network(0), model, task.data.parts(client).test).hits
        assert replies[client].facts == {"n": 20, "hits": hits}
