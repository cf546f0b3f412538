"""FedAvg by hand: who is asked, how the replies are averaged, what is left out."""

from __future__ import annotations

import numpy as np
from tests import federation
from tests.federation import Played, answer_round, first_ask, run_here

from ipfl.core import HasClusters, Record, Roster
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.methods.one_model.fedprox import FedProx
from ipfl.methods.one_model.finetune import FineTune
from ipfl.methods.personal.ditto import Ditto
from ipfl.methods.shared.steps import draw_clients
from ipfl.training.task import Task

START = np.array([1, -1], np.float32)


def start(clients: int = 3, per_round: int = 3):
    return FedAvg().init(federation.setup(clients, per_round, params=START))


def play(replies: dict[int, Record], clients: int = 3) -> Played:
    """One round of two-parameter models with these replies."""
    played = answer_round(FedAvg(), start(clients), replies, clients)
    (ask,) = played.engine.asks
    assert ask.action == "train"
    assert {client: record.params["global"].tolist() for client, record in ask.to.items()} == {
        client: [1, -1] for client in range(clients)
    }
    return played


def update(x: float, y: float, n: int) -> Record:
    return Record({"global": np.array([x, y], np.float32)}, {"n": n})


class TestRound:
    def test_mean_by_sample_counts(self):
        # 1, 2 and 5 of 8 samples: (1·8 + 2·0 + 5·4)/8 = 3.5 and (1·0 + 2·4 + 5·(−8))/8 = −4.
        done = play({0: update(8, 0, 1), 1: update(0, 4, 2), 2: update(4, -8, 5)})
        assert done.state.params.tolist() == [3.5, -4]
        assert done.seats == [(client, -1, "random", True) for client in (0, 1, 2)]
        assert done.events == []


class TestChoice:
    def test_as_many_as_the_budget_allows(self):
        state = start(clients=9, per_round=4)
        rounds, again = ([sorted(first_ask(FedAvg(), state, 9, r).to) for r in range(8)] for _ in range(2))
        assert {len(set(chosen)) for chosen in rounds} == {4}
        assert len({tuple(chosen) for chosen in rounds}) > 1
        assert again == rounds

    def test_all_if_there_are_fewer(self):
        assert draw_clients(Roster((3, 7)), 5, np.random.default_rng(0)) == [3, 7]

    def test_everyone_is_as_likely(self):
        # 400 draws of 2 of 4: each is chosen 200 times on average, with deviation √(400·¼) = 10.
        rng = np.random.default_rng(0)
        chosen = [client for _ in range(400) for client in draw_clients(Roster((1, 2, 5, 9)), 2, rng)]
        assert all(150 < chosen.count(client) < 250 for client in (1, 2, 5, 9))


def test_everyone_is_offered_and_deploys_the_global_model():
    method = FedAvg()
    state = start()
    offer = method.offer(state, 99)
    assert method.personalize(offer, Record(), None) is offer.params["global"] is state.params
    assert method.models(state) == {"global": state.params}
    assert not isinstance(method, HasClusters)


def test_methods_whose_shared_model_is_that_of_fedavg():
    """To the last bit: FedProx without pull and stragglers, and what only adds models of the clients' own."""
    task = Task.load(clients=4, samples=20, test_samples=20, unseen=1, model="softmax")
    plain = run_here(task, FedAvg(), rounds=3)
    for method in (FedProx(mu=0), FineTune(), Ditto()):
        found = run_here(task, method, rounds=3)
        adds = not isinstance(method, FedProx)
        assert (found.summary["personalized_accuracy"] != plain.summary["personalized_accuracy"]) == adds
        assert found.models["global"].tobytes() == plain.models["global"].tobytes()
        assert found.summary["global_accuracy"] == plain.summary["global_accuracy"]
