"""FedAvg by hand: who is asked, how the replies are averaged, what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Record, Roster, Round, Setup
from ipfl.engines.local import LocalEngine
from ipfl.methods.fedavg import FedAvg
from ipfl.methods.steps import choose

START = np.array([1, -1], np.float32)


def setup(clients: int = 3, per_round: int = 3) -> Setup:
    return Setup(START, tuple(range(clients)), per_round, rounds=5, classes=2, seed=0)


def play(replies: dict[int, Record], clients: int = 3) -> Round:
    """One round of two-parameter models with these replies."""
    state = FedAvg().init(setup(clients))
    talk = FedAvg().round(state, Roster(tuple(range(clients))), 0)
    ask = next(talk)
    assert ask.action == "train"
    assert {client: record.params["global"].tolist() for client, record in ask.to.items()} == {
        client: [1, -1] for client in range(clients)
    }
    with pytest.raises(StopIteration) as done:
        talk.send(replies)
    return done.value.value


def update(x: float, y: float, n: int) -> Record:
    return Record({"global": np.array([x, y], np.float32)}, {"n": n})


class TestRound:
    def test_mean_by_sample_counts(self):
        # 1, 2 and 5 of 8 samples: (1·8 + 2·0 + 5·4)/8 = 3.5 and (1·0 + 2·4 + 5·(−8))/8 = −4.
        done = play({0: update(8, 0, 1), 1: update(0, 4, 2), 2: update(4, -8, 5)})
        assert done.state.params.tolist() == [3.5, -4]
        assert done.facts == {"seats": [[client, -1, "random", True] for client in (0, 1, 2)]}
        assert done.events == ()

    @pytest.mark.parametrize(
        "broken",
        [
            update(np.nan, 0, 4),
            update(0, np.inf, 4),
            Record({"global": np.zeros(3, np.float32)}, {"n": 4}),
            Record({"global": np.zeros(1, np.float32)}, {"n": 4}),
            Record({}, {"n": 4}),
            update(9, 9, 0),
            update(9, 9, -4),
            Record({"global": np.zeros(2, np.float32)}),
            None,
        ],
        ids=["nan", "inf", "long", "short", "no model", "n=0", "n<0", "no n", "no reply"],
    )
    def test_broken_replies_are_left_out(self, broken):
        # Of the other two, 1 and 3 of 4 samples: (1·8 + 3·4)/4 = 5 and (1·0 + 3·(−8))/4 = −6.
        replies = {0: update(8, 0, 1), 2: update(4, -8, 3)} | ({} if broken is None else {1: broken})
        done = play(replies)
        assert done.state.params.tolist() == [5, -6]
        assert done.facts == {"seats": [[client, -1, "random", client != 1] for client in (0, 1, 2)]}
        assert done.events == ("client 1 sent no usable update; it was left out",)

    @pytest.mark.parametrize("replies", [{}, {1: update(np.nan, 0, 4)}])
    def test_the_model_stays_if_nobody_answers(self, replies):
        done = play(replies)
        assert done.state.params.tolist() == [1, -1]
        assert not any(delivered for *_, delivered in done.facts["seats"])
        assert len(done.events) == 3

    def test_one_real_round(self):
        """The new model is the mean of what the clients themselves computed, by their train sizes."""
        task = Task.load(clients=4, samples=20, sizes="unequal", test_samples=5, model="softmax")
        method, params = FedAvg(), task.network(0).read()
        state = method.init(Setup(params, task.data.clients, 4, 1, task.data.classes, 0))
        talk = method.round(state, Roster(task.data.clients), 0)
        ask = next(talk)
        with LocalEngine(task, method, TrainConfig(), workers=0) as engine:
            replies = engine.ask(ask, 0)
        with pytest.raises(StopIteration) as done:
            talk.send(replies)
        n = np.array([task.data.sizes(client)["train"] for client in range(4)])
        assert len(set(n)) > 1
        assert [replies[client].facts["n"] for client in range(4)] == n.tolist()
        models = np.stack([replies[client].params["global"] for client in range(4)]).astype(np.float64)
        np.testing.assert_allclose(
            done.value.value.state.params, (n / n.sum()) @ models, rtol=1e-5, atol=1e-7
        )


class TestChoice:
    def test_as_many_as_the_budget_allows(self):
        method = FedAvg()
        state = method.init(setup(clients=9, per_round=4))
        rounds = [sorted(next(method.round(state, Roster(tuple(range(9))), r)).to) for r in range(8)]
        assert {len(set(chosen)) for chosen in rounds} == {4}
        assert len({tuple(chosen) for chosen in rounds}) > 1
        again = [sorted(next(method.round(state, Roster(tuple(range(9))), r)).to) for r in range(8)]
        assert again == rounds

    def test_all_if_there_are_fewer(self):
        assert choose(Roster((3, 7)), 5, np.random.default_rng(0)) == [3, 7]

    def test_everyone_is_as_likely(self):
        # 400 draws of 2 of 4: each is chosen 200 times on average, with deviation √(400·¼) = 10.
        rng = np.random.default_rng(0)
        chosen = [client for _ in range(400) for client in choose(Roster((1, 2, 5, 9)), 2, rng)]
        assert all(150 < chosen.count(client) < 250 for client in (1, 2, 5, 9))


def test_everyone_is_offered_and_deploys_the_global_model():
    method = FedAvg()
    state = method.init(setup())
    offer = method.offer(state, 99)
    assert method.personalize(offer, Record(), None) is offer.params["global"] is state.params
    assert method.models(state) == {"global": state.params}
    assert method.preferences(state) == {}
