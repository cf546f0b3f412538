"""IP-FL with real clients: what leaves them, what they obtain, whether contributions are right."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation import KeptModels, Played, RecordingEngine, engine_for, play_round, run_here, setup
from tests.later import Later

import ipfl
from ipfl.client.client import Client
from ipfl.core import Ask, Record, Replies, TaskFacts, holdout_id
from ipfl.data import load_dataset
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL

stats = Later("scipy.stats")

QUICK = ipfl.TrainConfig(per_round=8, lr=0.3)
"""A small network and few rounds want a large step."""
DEFAULT = {"dataset": "digits", "distributions": "permuted", "partition": "10:90"}


def play(
    task: ipfl.Task,
    method: IPFL,
    rounds: int,
    *,
    seed: int = 0,
    per_round: int = 6,
    train: ipfl.TrainConfig | None = None,
    noise: float = 0.0,
) -> tuple[list[Played], list[tuple[Ask, Replies]]]:
    """Some rounds in this process, and all asks with their replies."""
    played = []
    with engine_for(task, method, train, seed) as engine:
        recording = RecordingEngine(engine)
        state = method.init(
            setup(
                len(task.data.clients),
                per_round,
                params=task.network(seed).read(),
                seed=seed,
                task=TaskFacts(task.data.classes, holdouts=tuple(holdout_id(d) for d in task.holdouts)),
                config={"privacy": {"noise": noise}},
                client_models=KeptModels(),
            )
        )
        for number in range(rounds):
            played.append(play_round(method, state, recording, task.data.clients, number))
            state = played[-1].state
    return played, list(zip(recording.asks, recording.replies, strict=True))


def me_as(task: ipfl.Task, client: int, engine) -> Client:
    """A client that is evaluated in round 0."""
    runner, parts = engine.runner, task.data.parts(client)
    return Client(client, 0, "evaluate", 0, 10, parts, runner.network, runner.settings, runner.initial)


@pytest.fixture(scope="module")
def small():
    return ipfl.Task.load(clients=8, samples=20, test_samples=20, model="softmax", server_samples=20)


class TestPrivacy:
    @pytest.mark.parametrize(
        ("settings", "actions"),
        [
            ({}, {"train", "preference"}),
            ({"contribution": "loo"}, {"train", "preference", "loss"}),
            ({"preset": "paper"}, {"train", "preference", "appraise"}),
        ],
    )
    def test_nothing_leaves_a_client_but_what_the_algorithms_send(self, small, settings, actions):
        """Models and their gradients come back from Algorithm 1, bids and hit counts from Algorithm 2."""
        size = small.network(0).size
        _, exchanged = play(small, IPFL(**settings), 4)
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
                elif ask.action == "loss":
                    assert not reply.params
                    assert set(reply.facts) == {"loss", "soft", "n"}
                    assert len(reply.facts["loss"]) == len(reply.facts["soft"]) == len(asked)
                else:
                    assert set(reply.params) == (asked if ask.to[client].facts["gradient"] else set())
                    assert set(reply.facts) == asked
                    assert all(len(counts) == 2 for counts in reply.facts.values())

    def test_bids_are_scored_on_probe_and_mixing_on_goal(self):
        # The goal comes from the swapped mix, so bids and mixture must point to other clusters.
        task = ipfl.Task.load(clients=10, samples=60, swap_test_mix=True, model="mlp", **DEFAULT)
        result = run_here(task, IPFL(mix="best"), rounds=12, train=QUICK)
        wanted = IPFL().preferences(result.state)
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
        _, exchanged = play(task, method, 5, train=ipfl.TrainConfig(use_probe=use_probe), **others)
        trainings = [replies for ask, replies in exchanged if ask.action == "train"]
        return [{reply.facts["n"] for reply in replies.values()} for replies in trainings]

    def test_are_trained_on_in_the_second_half_if_that_is_wanted(self, small):
        assert self.samples(small, IPFL(), use_probe=True) == [{16}, {16}, {16}, {20}, {20}]
        assert self.samples(small, IPFL(), use_probe=False) == [{16}] * 5

    def test_how_long_is_a_setting(self, small):
        assert self.samples(small, IPFL(hold_back=0), use_probe=True) == [{20}] * 5
        assert self.samples(small, IPFL(hold_back=1), use_probe=True) == [{16}] * 5
        assert self.samples(small, IPFL(preset="paper"), use_probe=True) == [{16}] * 5

    def test_stay_held_back_where_answers_about_them_are_noisy(self, small):
        """Privacy is counted for points that are only scored."""
        assert self.samples(small, IPFL(), use_probe=True, noise=1.0) == [{16}] * 5

    def test_change_what_is_trained(self, small):
        """From the same models as before, on four more points."""
        played = {
            use: play(small, IPFL(), 4, train=ipfl.TrainConfig(use_probe=use))[0] for use in (False, True)
        }
        before, after = ([one.state.models[0] for one in played[use]] for use in (False, True))
        assert [np.array_equal(*pair) for pair in zip(before, after, strict=True)] == [True] * 3 + [False]


class TestPersonalizedModel:
    def test_tuned_mix_is_never_worse_on_goal_than_the_best_single_model(self, small):
        rng = np.random.default_rng(0)
        size = small.network(0).size
        method = IPFL(mix="tuned")
        with engine_for(small, method) as engine:
            for client in small.data.clients:
                offer = Record(
                    {f"cluster_{k}": rng.normal(size=size).astype(np.float32) for k in range(3)},
                    {"clusters": [0, 1, 2], "means": [0.1, 0.2, 0.3]},
                )
                me = me_as(small, client, engine)
                mixed = method.personalize(offer, Record(), me)
                best = max(me.score(model, "goal").soft for model in offer.params.values())
                assert me.score(mixed, "goal").soft >= best - 1e-9

    def test_paper_mix_by_hand(self, small):
        # All models equal: υ = 1/2 each, so P_i is that model; and with means (0.2, 0.4) the second counts
        # half as much: υ = (2/3, 1/3). Models 3·e and 0 then mix to 2·e.
        method = IPFL(mix="paper")
        size = small.network(0).size
        zero, three = np.zeros(size, np.float32), np.full(size, 3, np.float32)
        with engine_for(small, method) as engine:
            me = me_as(small, 0, engine)
            # A softmax regression with equal weights gives every class 1/10: soft hits are equal.
            offer = Record({"cluster_0": three, "cluster_1": zero}, {"clusters": [0, 1], "means": [0.2, 0.4]})
            np.testing.assert_allclose(method.personalize(offer, Record(), me), 2, rtol=1e-5)

    def test_unseen_clients_get_a_model_as_good_as_the_seen_ones(self):
        task = ipfl.Task.load(clients=20, unseen=4, samples=60, model="mlp", **DEFAULT)
        result = run_here(task, IPFL(), rounds=15, train=QUICK)
        seen, unseen = result.summary["personalized_accuracy"], result.summary["unseen_accuracy"]
        trained = {seat.client for line in result.history for seat in line["seats"]}
        assert trained.isdisjoint(task.data.unseen)
        assert abs(seen["mean"] - unseen["mean"]) < 0.1  # small test sets; the study measures it on ten seeds


def noisy_clients(seed: int):
    """Eight clients with digits whose labels are wrong in 0, 1/8, …, 7/8 of the cases."""
    digits, rng = load_dataset("digits"), np.random.default_rng(seed)
    order = rng.permutation(len(digits.y_train))[: 8 * 100].reshape(8, 100)
    clients = []
    for quality, chosen in enumerate(order):
        y = digits.y_train[chosen].copy()
        wrong = rng.permutation(100)[: 100 * quality // 8]
        y[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
        clean = rng.permutation(len(digits.y_test))[:100]
        probe = {"train": (digits.x_train[chosen], y), "test": (digits.x_test[clean], digits.y_test[clean])}
        clients.append(probe)
    return clients


def contributions(played: Played) -> list[float | None]:
    """ψ of all seats that delivered."""
    return [row.psi for row in played.done.market.contributions]


class TestContributions:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_approximation_ranks_clients_as_exact_shapley_values_do(self, seed):
        task = ipfl.Task.from_clients(noisy_clients(seed), model="mlp", seed=seed)
        psi = {}
        for source in ("clients", "exact"):
            method = IPFL(clusters=1, contribution=source)
            played, _ = play(task, method, 2, seed=seed, per_round=8)
            psi[source] = contributions(played[1])
        assert stats.spearmanr(psi["clients"], psi["exact"]).statistic >= 0.9
        # Both must see the noise as well: the first half of the clients is the better one.
        assert np.mean(psi["clients"][:4]) > np.mean(psi["clients"][4:])

    def test_gradient_from_the_server_s_holdout(self, small):
        played, exchanged = play(small, IPFL(contribution="server"), 2)
        asked = [set(ask.to) for ask, _ in exchanged if ask.action == "appraise"]
        assert {holdout_id(0), holdout_id(1)} in asked
        assert not any(reply.params for ask, replies in exchanged for c, reply in replies.items()
                       if ask.action == "appraise" and c >= 0)  # fmt: skip
        assert None not in contributions(played[1])

    def test_unnormalised_differs_by_the_model_itself(self, small):
        # Unnormalised ψ_i = normalised ψ_i − gᵀ λ_i W_M; with equal λ that is one constant for the cluster.
        with_mean, without = (
            contributions(play(small, IPFL(preset="paper", clusters=1, normalised=flag), 1)[0][0])
            for flag in (True, False)
        )
        shift = np.array(without) - np.array(with_mean)
        np.testing.assert_allclose(shift, shift[0], rtol=1e-6)
        assert abs(shift[0]) > 0


class TestFindingTheRightCluster:
    def run(self, method, rounds=15, **task):
        task = ipfl.Task.load(**({"clients": 12, "samples": 60, "model": "mlp"} | DEFAULT | task))
        every = ipfl.EvaluateConfig(every=1)
        return task, run_here(task, method, rounds=rounds, train=QUICK, evaluate=every)

    def test_clients_separate_by_distribution(self):
        _, result = self.run(IPFL())
        assert result.summary["purity"] == 1
        accuracy = np.array(result.summary["cluster_accuracy"])
        assert abs(np.diff(accuracy, axis=1)).min() > 0.3  # each model serves one distribution

    def test_after_a_drift_the_moved_clients_prefer_the_right_cluster(self):
        task, result = self.run(IPFL(), rounds=22, drift_round=12, drift_share=0.34)
        moved = {i for i in task.data.clients if task.data.majority(i, 11) != task.data.majority(i, 12)}
        assert len(moved) == 4  # a third of twelve
        before, after = (
            {bid.client: bid.cluster for bid in result.history[number]["bids"] if bid.rank == 0}
            for number in (11, 21)
        )
        assert {i for i in task.data.clients if before[i] != after[i]} == moved
        assert result.evaluations[21].purity == 1

    def test_initial_clustering_starts_in_the_right_cluster(self):
        # Class halves: that is what F1 per class can tell apart (it cannot see a permutation of labels).
        method = IPFL(initial_clustering=True, pretrain=5)
        _, result = self.run(method, rounds=6, server_samples=40, distributions="halves")
        # Round 5 is the first market round; its bids come from K-Means, nobody was asked yet.
        assert result.evaluations[5].purity >= 0.9
        assert [line["transfers"] for line in result.history[:5]] == [()] * 5

    def test_auto_merges_down_to_the_number_of_distributions(self):
        _, result = self.run(IPFL(clusters="auto", max_clusters=4, merge_after=8), rounds=20)
        report = result.summary["report"]
        assert result.summary["clusters"] == len(report["clusters"]) == 2
        assert len(report["merged"]) == 2
        assert result.summary["purity"] == 1
        merges = [event for line in result.history for event in line["events"] if event.kind == "merge"]
        assert len(merges) == 2
        # The columns of accuracies are those of the clusters that are left, under their own numbers.
        assert result.summary["assessed_models"] == [f"cluster_{k}" for k in report["clusters"]]
        assert result.evaluations[0].assessed == tuple(f"cluster_{k}" for k in range(4))

    def test_clients_that_gain_nothing_leave(self):
        task = ipfl.Task.load(**({"clients": 8, "samples": 40, "model": "mlp", "test_samples": 40} | DEFAULT))
        options = {"rounds": 8, "evaluate": ipfl.EvaluateConfig(every=2)}
        reference = run_here(task, ipfl.method("fedavg"), **options)
        leaving = ipfl.ClientsConfig(leave=True, grace=3)
        result = run_here(task, IPFL(incentive=False), clients=leaving, reference=reference, **options)
        stayed = [line["clients"] for line in result.history]
        assert stayed[:4] == [8] * 4  # nobody before the grace period is over
        assert stayed[-1] < 8
        gone = {
            client
            for number, evaluation in result.evaluations.items()
            for client, accuracy in evaluation.goal.items()
            if accuracy <= reference.evaluations[number].goal[client] and 3 <= number < 7
        }
        assert stayed[-1] == 8 - len(gone)
        assert gone.isdisjoint(client for client, *_ in result.history[-1]["seats"])
