"""IP-FL with real clients: what leaves them, what they obtain, whether contributions are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.contract.plays import Play
from tests.federation import run_here

import ipfl
from ipfl.core import Ask, Replies
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus

QUICK = ipfl.TrainConfig(per_round=8, lr=0.3)
"""A small network and few rounds want a large step."""
DEFAULT = {"dataset": "digits", "distributions": "permuted", "partition": "10:90"}


def play(task: ipfl.Task, method: IPFLPlus, rounds: int, **config: Any) -> list[tuple[Ask, Replies]]:
    """All asks of some rounds, with their replies; the other keywords are those of `ipfl.RunConfig`."""
    with Play(task, method, config=ipfl.RunConfig(**{"rounds": 5} | config)) as play:
        for number in range(rounds):
            play.round(number)
    return play.exchanged


@pytest.fixture(scope="module")
def small():
    return ipfl.Task.load(clients=8, samples=20, test_samples=20, model="softmax", server_samples=20)


class TestPrivacy:
    @pytest.mark.parametrize(
        ("settings", "actions"),
        [
            ({}, {"train", "preference"}),
            ({"contribution": {"rule": "paper"}}, {"train", "preference", "appraise"}),
            ({"payment": {"rule": "paper"}}, {"train", "preference", "appraise"}),
        ],
    )
    def test_nothing_leaves_a_client_but_what_the_algorithms_send(self, small, settings, actions):
        """Models and their gradients come back from Algorithm 1, bids and hit counts from Algorithm 2."""
        size = small.network(0).size
        exchanged = play(small, ipfl.method("ipfl-plus", **settings), 4)
        assert {ask.action for ask, _ in exchanged} == actions
        for ask, replies in exchanged:
            for client, reply in replies.items():
                asked = set(ask.to[client].params)
                assert all(vector.shape == (size,) for vector in reply.params.values())
                if ask.action == "preference":
                    assert not reply.params
                    assert set(reply.facts) == {"bids", "hits", "n"}
                    assert set(reply.facts["bids"]) <= set(ask.to[client].facts["clusters"])
                    assert len(reply.facts["hits"]) == len(asked)
                elif ask.action == "train":
                    assert set(reply.params) == asked
                    assert set(reply.facts) == {"n"}
                else:
                    assert set(reply.params) == (asked if ask.to[client].facts["gradient"] else set())
                    assert set(reply.facts) == asked
                    assert all(len(counts) == 2 for counts in reply.facts.values())

    def test_bids_are_scored_on_probe_and_mixing_on_goal(self):
        # The goal comes from the swapped mix, so bids and mixture must point to other clusters.
        task = ipfl.Task.load(clients=10, samples=60, swap_test_mix=True, model="mlp", **DEFAULT)
        result = run_here(task, IPFLPlus(), rounds=12, train=QUICK)
        wanted = IPFLPlus().preferences(result.state)
        accuracy = np.array(result.summary["cluster_accuracy"])  # [distribution][cluster]
        own = {d: int(accuracy[d].argmax()) for d in (0, 1)}
        assert own[0] != own[1]
        assert all(wanted[i] == own[task.data.majority(i)] for i in task.data.clients)
        assert result.personalized_accuracy > 0.5  # its test data is 90 % of the other distribution


class TestHeldBackPoints:
    """Every client has 20 points, of which 4 are `probe`; a run has 5 rounds, so that half of them is 3."""

    @staticmethod
    def samples(task, method, use_probe, **others) -> list[set[int]]:
        """On how many points clients say that they trained, by round."""
        exchanged = play(task, method, 5, train={"use_probe": use_probe}, **others)
        trainings = [replies for ask, replies in exchanged if ask.action == "train"]
        return [{reply.facts["n"] for reply in replies.values()} for replies in trainings]

    def test_are_trained_on_in_the_second_half_if_that_is_wanted(self, small):
        assert self.samples(small, IPFLPlus(), use_probe=True) == [{16}, {16}, {16}, {20}, {20}]
        assert self.samples(small, IPFLPlus(), use_probe=False) == [{16}] * 5

    def test_the_paper_holds_nothing_back(self, small):
        method = ipfl.method("ipfl-plus", importance={"rule": "paper"})
        assert self.samples(small, method, use_probe=True) == [{20}] * 5
        exchanged = play(small, method, 2)
        (scored,) = [replies for ask, replies in exchanged if ask.action == "preference"]
        assert {reply.facts["n"] for reply in scored.values()} == {20}  # all points are scored
        assert all(hits == int(hits) for reply in scored.values() for hits in reply.facts["hits"])

    def test_stay_held_back_where_answers_about_them_are_noisy(self, small):
        """Privacy is counted for points that are only scored."""
        assert self.samples(small, IPFLPlus(), use_probe=True, privacy={"noise": 1.0}) == [{16}] * 5


def test_after_a_drift_the_moved_clients_prefer_the_right_cluster():
    task = ipfl.Task.load(clients=12, samples=60, model="mlp", drift_round=8, drift_share=0.34, **DEFAULT)
    result = run_here(task, IPFLPlus(), rounds=14, train=QUICK, evaluate=ipfl.EvaluateConfig(every=8))
    moved = {i for i in task.data.clients if task.data.majority(i, 7) != task.data.majority(i, 8)}
    assert len(moved) == 4  # a third of twelve
    assert result.evaluations[7].purity == 1
    before, after = (
        {bid.client: bid.cluster for bid in result.history[number]["bids"] if bid.rank == 0}
        for number in (7, 13)
    )
    assert {i for i in task.data.clients if before[i] != after[i]} == moved
    assert result.evaluations[13].purity == 1
