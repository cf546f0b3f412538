"""Scores of points for every kind of target, by hand; losses by name; what arrives in a network."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from tests.federation import sigma
from torch import nn

from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError
from ipfl.training.losses import find_loss
from ipfl.training.network import Network
from ipfl.training.sgd import Mixture, evaluate, log_scores, losses, sgd

NUMBERS = Target("regression", 1, (10.0,), (4.0,))
LABELS = Target("multilabel", 2)


def linear(target, outputs):
    """A model whose outputs for x are x·w: its vector is w."""
    return Network(nn.Linear(1, outputs, bias=False), (1,), target)


class TestScores:
    def test_regression(self):
        # Standardised targets (y − 10)/4: 1 and −2. Outputs at w = 1: 1 and 1. Squared errors 0 and 9.
        samples = Samples(np.array([[1.0], [1.0]], np.float32), np.array([14.0, 2.0], np.float32))
        score = evaluate(linear(NUMBERS, 1), np.ones(1, np.float32), samples)
        assert score.loss == pytest.approx(9)
        assert score.soft == pytest.approx(1 + math.exp(-9))
        assert score.hits == score.soft  # nothing is right or wrong

    def test_multilabel(self):
        # Log-odds (ln 3, −ln 3): probabilities (¾, ¼). Truth (1, 1): one label right; BCE −ln ¾ and −ln ¼.
        samples = Samples(np.ones((1, 1), np.float32), np.array([[1, 1]], np.float32))
        model = np.array([math.log(3), -math.log(3)], np.float32)
        score = evaluate(linear(LABELS, 2), model, samples)
        assert score.hits == 0.5
        assert score.loss == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)
        assert score.soft == pytest.approx(math.sqrt(0.75 * 0.25))  # the geometric mean

    def test_a_model_without_numbers_scores_nothing(self):
        samples = Samples(np.ones((3, 1), np.float32), np.ones(3, np.float32))
        score = evaluate(linear(NUMBERS, 1), np.array([np.nan], np.float32), samples)
        assert (score.hits, score.soft) == (0, 0)

    def test_mixtures(self):
        ones = np.ones((1, 1), np.float32)
        # Numbers: ¼·2 + ¾·(−2) = −1, standardised; truth 10 is 0: squared error 1.
        models = tuple(np.array([w], np.float32) for w in (2, -2))
        mixed = Mixture(models, (0.25, 0.75))
        score = evaluate(linear(NUMBERS, 1), mixed, Samples(ones, np.array([10.0], np.float32)))
        assert score.loss == pytest.approx(1)
        # Labels: probabilities ½·¾ + ½·½ = ⅝ of a label that is 1.
        models = tuple(np.array([w, 0], np.float32) for w in (math.log(3), 0))
        samples = Samples(ones, np.array([[1, 0]], np.float32))
        score = evaluate(linear(LABELS, 2), Mixture(models, (0.5, 0.5)), samples)
        assert score.loss == pytest.approx(-(math.log(5 / 8) + math.log(0.5)) / 2, rel=1e-5)

    def test_log_scores(self):
        samples = Samples(np.ones((2, 1), np.float32), np.array([14.0, 2.0], np.float32))
        table = log_scores(linear(NUMBERS, 1), np.ones(1, np.float32), samples)
        np.testing.assert_allclose(table, [[0], [-9]], atol=1e-6)
        # Classes: logits (2, −2) at x = 2 give σ(4) and σ(−4); at x = 0 two halves.
        samples = Samples(np.array([[2.0], [0.0]], np.float32), np.array([1, 0]))
        table = log_scores(linear(Target("classes", 2), 2), np.array([1, -1], np.float32), samples)
        np.testing.assert_allclose(np.exp(table), [[sigma(4), sigma(-4)], [0.5, 0.5]], rtol=1e-5)


class TestLosses:
    OUTPUTS, TRUTH = torch.tensor([[3.0], [0.5]]), torch.tensor([[0.0], [0.0]])

    @pytest.mark.parametrize(
        ("name", "expected"), [("auto", [9, 0.25]), ("mae", [3, 0.5]), ("huber", [2.5, 0.125])]
    )
    def test_of_numbers(self, name, expected):
        # Huber with δ = 1: 3 − ½ beyond it, ½·0.5² within.
        loss = find_loss(name, NUMBERS)
        assert loss.per_point(self.OUTPUTS, self.TRUTH).tolist() == expected
        assert float(loss.mean(self.OUTPUTS, self.TRUTH)) == pytest.approx(np.mean(expected))

    @pytest.mark.parametrize(("name", "target"), [("mse", LABELS), ("cross_entropy", NUMBERS)])
    def test_of_another_target(self, name, target):
        with pytest.raises(InputError, match=rf"train\.loss = '{name}' is for"):
            find_loss(name, target)

    def test_own(self, tmp_path, monkeypatch):
        (tmp_path / "own_loss.py").write_text(
            "def fourth(outputs, targets):\n    return ((outputs - targets) ** 4).sum(dim=1)\n"
            "def scalar(outputs, targets):\n    return ((outputs - targets) ** 4).mean()\n"
        )
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        network = linear(NUMBERS, 1)
        network.loss = find_loss("own_loss:fourth", NUMBERS)
        samples = Samples(np.ones((1, 1), np.float32), np.array([2.0], np.float32))  # −2 standardised
        # At w = 0 the output is 0, the error 2: loss 16, gradient 4·2³ = 32; a step of 0.01 to −0.32.
        zero = np.zeros(1, np.float32)
        assert losses(network, zero, samples).tolist() == [16]
        after = sgd(network, zero, samples, TrainConfig(lr=0.01, epochs=1), np.random.default_rng(0))
        assert after[0] == pytest.approx(-0.32)
        # Scores come from the target's own loss all the same: exp(−2²).
        assert evaluate(network, zero, samples).soft == pytest.approx(math.exp(-4))
        network.loss = find_loss("own_loss:scalar", NUMBERS)
        with pytest.raises(InputError, match="not a loss for each"):
            losses(network, zero, samples)


class TestInputs:
    def test_tokens_stay_whole_where_an_embedding_reads_them(self):
        tokens = np.array([[1, 2, 3]])
        reads = Network(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)), (3,))
        assert reads.inputs(reads.put(tokens)).dtype == torch.int64
        computes = Network(nn.Linear(3, 2), (3,))
        assert computes.inputs(computes.put(tokens)).dtype == torch.float32
