"""Local training: every client goes on with its own model, of which the server sees nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation import RecordingEngine, engine_for, play_round, setup

from ipfl.client.runner import EVALUATE
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.client.training import evaluate, one_thread, sgd
from ipfl.core import Ask, stream
from ipfl.methods.local import Local


@pytest.fixture(scope="module")
def task():
    return Task.load(clients=4, samples=20, test_samples=20, model="softmax")


@pytest.fixture
def start(task):
    return task.network(0).read()


def state_of(task, start, per_round=2):
    return Local().init(setup(4, per_round, params=start, classes=task.data.classes))


def test_models_never_travel_up(task, start):
    state = state_of(task, start)
    with engine_for(task, Local()) as engine:
        for round in range(3):
            done = play_round(Local(), state, RecordingEngine(engine), 4, round)
            assert len(done.engine.asks[0].to) == 2, "the same budget as other methods"
            replies = done.replies
            assert all(dict(reply.params) == {} and set(reply.facts) == {"n"} for reply in replies.values())
            assert done.state is state, "the server learns nothing"
            assert done.seats == [(client, -1, "random", True) for client in replies]
    assert Local().models(state) == {}


def test_each_client_trains_its_own(task, start):
    """Client 0 trains in rounds 0 and 1, client 1 in round 1 only; the same is done here by hand."""
    settings, offer = TrainConfig(), Local().offer(state_of(task, start), 0)

    def trained(model, client, round):
        samples = task.data.parts(client).train
        with one_thread():
            return sgd(task.network(0), model, samples, settings, stream(0, "train", round, client))

    own = {0: trained(trained(start, 0, 0), 0, 1), 1: trained(start, 1, 1), 2: start}
    with engine_for(task, Local(), settings) as engine:
        engine.ask(Ask("train", {0: offer}), 0)
        engine.ask(Ask("train", {0: offer, 1: offer}), 1)
        kept = {client: engine.runner.memory.load(client).params.get("own") for client in range(3)}
        replies = engine.ask(Ask(EVALUATE, dict.fromkeys(range(3), offer)), 1)
    assert kept[0].tobytes() == own[0].tobytes()
    assert kept[1].tobytes() == own[1].tobytes()
    assert kept[2] is None
    assert not np.array_equal(own[0], own[1])
    for client, model in own.items():
        hits = evaluate(task.network(0), model, task.data.parts(client).test).hits
        facts = replies[client].facts
        assert (facts["n"], facts["hits"]) == (20, hits)
