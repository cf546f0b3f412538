"""The attack that `[privacy]` is against, as it was found: one gradient over 12 points of a linear model."""

import numpy as np
import pytest
from torch import nn

from ipfl.client.client import Client
from ipfl.client.private_client import PrivateClient
from ipfl.config.train_section import PrivacyConfig, TrainConfig
from ipfl.core import EMPTY
from ipfl.data.federated import Parts, Samples
from ipfl.stress.reconstruction import correlation, count_misplaced, guess_label_counts, guess_point
from ipfl.training.network import Network

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 4])
"""Classes 3 and 4 have one point each, class 5 has none."""
COUNTS = np.bincount(LABELS, minlength=6).astype(float)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).random((len(LABELS), 64)).astype(np.float32)


def gradient(x, privacy=None, seed=0):
    network = Network(nn.Linear(64, 6), (64,))
    zeros = np.zeros(network.size, np.float32)
    samples = Samples(x, LABELS)
    me = Client(
        0, 0, "appraise", 0, 6, Parts(samples, samples, samples, samples), network, TrainConfig(), zeros
    )
    if privacy is not None:
        me = PrivateClient.of(me, privacy, np.random.default_rng(seed), EMPTY)
    return me.gradient(zeros, "probe"), network


class TestAttack:
    def test_without_noise_labels_and_images_are_read_off(self, x):
        # The module's docstring has the formulas: n_c = n·(1/C − bias_c), and a single point shows itself.
        found, network = gradient(x)
        assert guess_label_counts(found, network, 12) == pytest.approx(COUNTS, abs=1e-4)
        assert guess_point(found, network, 3, 12) == pytest.approx(x[10], abs=1e-4)
        assert guess_point(found, network, 4, 12) == pytest.approx(x[11], abs=1e-4)

    def test_clipping_alone_hides_nothing(self, x):
        found, network = gradient(x, PrivacyConfig(noise=1e-9, clip=0.5))
        assert count_misplaced(guess_label_counts(found, network, 12), COUNTS) < 0.5
        assert correlation(guess_point(found, network, 3, 12), x[10]) > 0.95

    def test_noise_hides_both(self, x):
        # Noise of 1: each of the 64 numbers of a point of length ≤ 1 has noise of deviation 1.
        # A correlation of 64 independent pairs has deviation 1/√63 = 0.13; the mean of 40 has 0.02.
        alike, misplaced = [], []
        for seed in range(40):
            found, network = gradient(x, PrivacyConfig(noise=1.0), seed)
            alike.append(correlation(guess_point(found, network, 3, 12), x[10]))
            misplaced.append(count_misplaced(guess_label_counts(found, network, 12), COUNTS))
        assert abs(np.mean(alike)) < 0.12
        # Without any gradient, 2 points in each of 6 classes: (1 + 0 + 3 + 1 + 1 + 2)/2 = 4 in wrong classes.
        assert np.mean(misplaced) > 3
