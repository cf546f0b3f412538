"""Data of graded quality: who gets how many wrong labels, and what stays right."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.data.federated import LabelNoise, PartitionedDataset
from ipfl.errors import InputError
from ipfl.training.task import Task

SHARES = (0.0, 0.2, 0.4, 0.6)


def task(**settings: object) -> Task:
    return Task.load(clients=8, samples=60, partition="50:50", **settings)


def test_shares_are_dealt_in_turn_in_random_order() -> None:
    # Ten clients: 0 and 0.2 three times, 0.4 and 0.6 twice; another seed deals them to others.
    noise = LabelNoise.deal(SHARES, 10, seed=0).shares
    assert sorted(noise) == [0, 0, 0, 0.2, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6]
    assert noise.tolist() == LabelNoise.deal(SHARES, 10, seed=0).shares.tolist()
    assert noise.tolist() != LabelNoise.deal(SHARES, 10, seed=1).shares.tolist()


def test_only_labels_change_and_those_of_tests_do_not() -> None:
    clean, noisy = task().data, task(label_noise=[1.0]).data
    for client in clean.clients:
        before, after = clean.parts(client), noisy.parts(client)
        for part in ("train", "probe", "goal", "test"):
            assert np.array_equal(getattr(before, part).x, getattr(after, part).x)
        assert np.array_equal(before.test.y, after.test.y)
        # All labels are drawn anew from ten classes: about one in ten stays what it was.
        assert (before.train.y == after.train.y).mean() < 0.4


def test_a_client_without_noise_keeps_its_labels() -> None:
    noisy = task(label_noise=SHARES).data
    assert isinstance(noisy, PartitionedDataset)
    clean = task().data
    for client in clean.clients:
        same = (clean.parts(client).train.y == noisy.parts(client).train.y).mean()
        # Of a share s drawn anew, a tenth stays right by chance: 1 − 0.9·s are right on average. The standard
        # deviation over 48 points is at most √(0.25/48) = 0.07.
        assert same == pytest.approx(1 - 0.9 * noisy.noise.shares[client], abs=4 * 0.07)
        assert same == 1 or noisy.noise.shares[client] > 0


def test_the_same_points_have_the_same_labels_in_all_rounds_and_as_probe_and_goal() -> None:
    noisy = task(label_noise=[0.5]).data
    first, later = noisy.parts(3, 0), noisy.parts(3, 7)
    assert np.array_equal(first.train.y, later.train.y)
    assert np.array_equal(first.probe.y, first.goal.y)


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(InputError, match="label_noise"):
        task(label_noise=[1.5])
