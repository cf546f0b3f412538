"""FedProto by hand: prototypes of one client and of all, the pull on features, who can be served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests import federation
from tests.federation import ZERO, Played, answer_round, client, points, train_round
from torch import nn

from ipfl.config.sections import AggregateConfig
from ipfl.core import NEWCOMER, Record, TaskFacts
from ipfl.errors import NotSupportedError
from ipfl.methods.personal.fedproto import FedProto
from ipfl.training.network import Network

METHOD = FedProto()


def prototypes(*values: float, known: tuple[bool, ...] = (True, True)) -> Record:
    """Global prototypes of the two classes, with one feature."""
    return Record({"prototypes": np.array(values, np.float32)}, {"known": list(known)})


def reply(*values: float, counts: object, n: object = None) -> Record:
    """A client's prototypes; by default it says that it has as many samples as it has of all classes."""
    if n is None:
        n = sum(counts) if isinstance(counts, list) else 3
    return Record({"prototypes": np.array(values, np.float32)}, {"n": n, "counts": counts})


def setup(clients: int, **others):
    return federation.setup(clients, task=TaskFacts(2, features=1), **others)


def merge(state, replies) -> Played:
    """A round of three clients with these replies."""
    return answer_round(METHOD, state, replies, clients=3)


def test_one_round():
    # The features of the linear model are its inputs. Client 0: class 0 (2 + 4)/2 = 3, class 1 is 1. Client 1
    # has one point of class 0, at 6. By counts: class 0 (2·3 + 1·6)/3 = 4, class 1 stays 1.
    clients = [client((2, 0), (4, 0), (1, 1)), client((6, 0), id=1)]
    done, memories = train_round(METHOD, METHOD.init(setup(2)), clients)
    replies = done.replies
    assert replies[0].params["prototypes"].tolist() == [3, 1]
    assert replies[0].facts == {"n": 3, "counts": [2, 1]}
    assert replies[1].params["prototypes"].tolist() == [6, 0]
    assert replies[1].facts == {"n": 1, "counts": [1, 0]}
    assert set(replies[0].params) == {"prototypes"}, "models never travel"
    assert done.state.values.tolist() == [4, 1]
    assert done.state.known == (True, True)
    assert done.seats == [(0, -1, "random", True), (1, -1, "random", True)]
    # Without prototypes, training is on cross entropy alone: (6, class 0) moves 0 by 0.1·3·(1, −1).
    np.testing.assert_allclose(memories[1].params["own"], [0.3, -0.3], rtol=1e-6)


class TestAggregation:
    def test_a_class_that_nobody_sends_keeps_its_prototype(self):
        state = merge(METHOD.init(setup(3)), {0: reply(3, 1, counts=[2, 1])}).state
        state = merge(state, {1: reply(7, 0, counts=[1, 0])}).state
        assert state.values.tolist() == [7, 1]

    def test_a_class_that_nobody_ever_had_has_none(self):
        state = merge(METHOD.init(setup(3)), {0: reply(3, 0, counts=[3, 0])}).state
        assert state.known == (True, False)
        assert METHOD.offer(state, 0).facts == {"known": [True, False]}

    def test_rules_that_tolerate_attackers_work_class_by_class(self):
        # The trimmed mean of 1, 2 and 900 without the smallest and largest is 2; that of 5, 6, 7 is 6.
        rule = AggregateConfig(rule="trimmed_mean", attacker_share=0.4)
        state = METHOD.init(setup(3, config={"aggregate": rule}))
        sent = [(1, 5), (2, 6), (900, 7)]
        done = merge(state, {i: reply(*values, counts=[1, 1]) for i, values in enumerate(sent)})
        assert done.state.values.tolist() == [2, 6]

    @pytest.mark.parametrize(
        "broken",
        [
            reply(1, 2, counts=[2]),
            reply(1, 2, counts=[2, -1]),
            reply(1, 2, counts=[10**9, 10**9], n=2),  # a limit on `n` would not limit what weighs
        ],
        ids=["few", "negative", "more than all"],
    )
    def test_broken_replies_are_left_out(self, broken):
        # By counts (1·3 + 3·5)/4 = 4.5 and (1·1 + 1·2)/2 = 1.5, whatever the third sends.
        state = METHOD.init(setup(3))
        done = merge(state, {0: reply(3, 1, counts=[1, 1]), 1: broken, 2: reply(5, 2, counts=[3, 1])})
        assert done.state.values.tolist() == [4.5, 1.5]
        assert done.kinds == [("invalid_reply", 1)]


class TestTraining:
    def three_parameters(self, *pairs):
        """f = a·x and scores v·f: the feature depends on a parameter."""
        module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
        start = np.array([0.5, 0, 0], np.float32)
        return replace(client(*pairs), network=Network(module, (1,)), initial=start)

    def test_features_are_pulled_to_the_prototype(self):
        # At a = 0.5 and v = 0 the point (2, class 0) has the feature 1. λ·(1 − 3)² has the slope
        # 2λ·(1 − 3)·2 = −8λ in a, with λ = 1/4: −2. Cross entropy has −1/2 and 1/2 in v, none in a.
        _, mine = FedProto(lam=0.25).on_train(prototypes(3, 9), Record(), self.three_parameters((2, 0)))
        np.testing.assert_allclose(mine.params["own"], [0.7, 0.05, -0.05], rtol=1e-6)

    def test_not_those_of_classes_without_one(self):
        # Of the two points only the first is pulled, over both features of the batch: −8λ/2 = −1.
        ask = prototypes(3, 0, known=(True, False))
        _, mine = FedProto(lam=0.25).on_train(ask, Record(), self.three_parameters((2, 0), (2, 1)))
        np.testing.assert_allclose(mine.params["own"], [0.6, 0, 0], rtol=1e-6, atol=1e-7)

    def test_the_client_goes_on_with_its_own_network(self):
        own = np.array([0.5, 0, 0], np.float32)
        me = replace(self.three_parameters((0, 0)), initial=np.full(3, 8, np.float32))
        answer, mine = METHOD.on_train(prototypes(0, 0), Record({"own": own}), me)
        assert mine.params["own"].tolist() == own.tolist(), "a point at 0 moves nothing"
        assert answer.params["prototypes"].tolist() == [0, 0]

    def test_prototypes_of_many_points(self):
        # 0, …, 599 by turns to the classes: more than go through the network at once. The even numbers have
        # the mean 299, the odd ones 300; the smallest step there is leaves the features alone anyway.
        me = client(*[(x, x % 2) for x in range(600)], lr=1e-9)
        answer, _ = METHOD.on_train(Record({}, {"known": [False, False]}), Record(), me)
        assert answer.params["prototypes"].tolist() == [299, 300]
        assert answer.facts == {"n": 600, "counts": [300, 300]}


class TestDeployment:
    def test_the_nearest_prototype_decides(self):
        # Features are inputs: 2 is nearer to 1 than to 4, 3 is nearer to 4.
        me = client((2, 1), (3, 0), (9, 0))
        deployed = METHOD.personalize(prototypes(4, 1), Record({"own": ZERO}), me)
        assert me.score(deployed, "train").hits == 3
        other = replace(me, parts=replace(me.parts, train=points((2, 0), (3, 1), (9, 1))))
        assert other.score(deployed, "train").hits == 0

    def test_a_class_without_prototype_is_never_predicted(self):
        me = client((0, 0), (9, 0))
        deployed = METHOD.personalize(prototypes(4, 0, known=(True, False)), Record(), me)
        assert me.score(deployed, "train").hits == 2
        assert deployed.model is me.initial, "it has not trained yet"

    def test_without_any_the_network_s_own_scores_decide(self):
        own = np.array([1, -1], np.float32)
        assert (
            METHOD.personalize(METHOD.offer(METHOD.init(setup(2)), 1), Record({"own": own}), client((1, 0)))
            is own
        )

    def test_strangers_cannot_be_served(self):
        state = METHOD.init(setup(2))
        for stranger in (2, NEWCOMER):
            with pytest.raises(NotSupportedError, match="not supported by this method"):
                METHOD.offer(state, stranger)
