"""Local training: every client goes on with its own model, of which the server sees nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.federation import RecordingEngine, engine_for, play_round, setup

from ipfl.client.runner import EVALUATE
from ipfl.config.train_section import TrainConfig
from ipfl.core import Ask, TaskFacts, stream
from ipfl.methods.personal.local_training import Local, rounds_alone
from ipfl.training.sgd import evaluate, one_thread, sgd
from ipfl.training.task import Task


@pytest.fixture(scope="module")
def task():
    return Task.load(clients=4, samples=20, test_samples=20, model="softmax")


@pytest.fixture
def start(task):
    return task.network(0).read()


def state_of(task, start, per_round=2):
    return Local().init(setup(4, per_round, params=start, task=TaskFacts(task.data.classes)))


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


def test_an_unseen_client_trains_alone_as_often_as_the_others(task, start):
    """Client 3 never takes part. Others train every second round, so 3 times in 6: as in rounds 1, 3 and 5.

    The learning rate is halved every two rounds: 0.1, 0.05 and 0.025 there.
    """
    settings = TrainConfig(lr=0.1, lr_decay="step", decay_every=2, decay_factor=0.5)
    method = Local()
    state = replace(state_of(task, start), clients=frozenset({0, 1, 2, 4}))
    model, rng = start, stream(0, EVALUATE, 5, 3)
    with one_thread():
        for lr in (0.1, 0.05, 0.025):
            at_lr = settings.model_copy(update={"lr": lr})
            model = sgd(task.network(0), model, task.data.parts(3).train, at_lr, rng)
    with engine_for(task, method, settings) as engine:
        replies = engine.ask(Ask(EVALUATE, {client: method.offer(state, client) for client in (2, 3)}), 5)
        found = engine.runner.personalize(3, 5, method.offer(state, 3))
        assert dict(engine.runner.memory.load(3).params) == {}
    np.testing.assert_allclose(found, model, rtol=1e-6)
    test = task.data.parts(3).test
    hits = {
        name: evaluate(task.network(0), one, test).hits
        for name, one in {"own": found, "start": start}.items()
    }
    assert (replies[3].facts["hits"], hits["own"] > hits["start"]) == (hits["own"], True)
    at_start = evaluate(task.network(0), start, task.data.parts(2).test).hits
    assert replies[2].facts["hits"] == at_start, (
        "a client of the run that was not chosen yet is scored as before"
    )


@pytest.mark.parametrize(
    ("per_round", "rounds", "expected"),
    [(0.0, 9, []), (1.0, 3, [0, 1, 2]), (0.5, 4, [1, 3]), (0.1, 2, [1]), (0.25, 10, [2, 7])],
)
def test_rounds_are_spread_evenly(per_round, rounds, expected):
    assert rounds_alone(per_round, rounds) == expected
