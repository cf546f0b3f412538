"""SGD, scores and gradients against sums done by hand, on softmax regression with one feature.

Its vector is (w_0, w_1, b_0, b_1), its logits for x are (w_0·x + b_0, w_1·x + b_1). The gradient of the
cross entropy with respect to the logits is p − onehot(y), so that of w is (p − onehot)·x, that of b is
p − onehot. At zero p = (½, ½).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.federation import points
from torch import nn

from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.training import sgd as train
from ipfl.training.architectures import model_factory
from ipfl.training.network import Network, build_network
from ipfl.training.sgd import Pull, evaluate, losses, mean_gradient, predictions, sgd

ZERO = np.zeros(4, dtype=np.float32)


def step(start, samples, *, pull=None, **settings):
    settings = TrainConfig(**({"lr": 0.1, "epochs": 1, "batch_size": 32} | settings))
    start = np.asarray(start, np.float32)
    return sgd(softmax(), start, samples, settings, np.random.default_rng(0), pull=pull)


def softmax(features: int = 1, classes: int = 2) -> Network:
    return build_network(model_factory("softmax"), (features,), classes, 0)


class TestSGD:
    def test_one_step(self):
        # p − onehot = (−½, ½); times x = 2: (−1, 1). Step 0.1 against it.
        np.testing.assert_allclose(step(ZERO, points((2, 0))), [0.1, -0.1, 0.05, -0.05], rtol=1e-6)

    def test_a_batch_is_a_mean(self):
        # x = 2 of class 0: w (−1, 1), b (−½, ½). x = 4 of class 1: w (2, −2), b (½, −½).
        # Mean: w (½, −½), b (0, 0).
        np.testing.assert_allclose(
            step(ZERO, points((2, 0), (4, 1))), [-0.05, 0.05, 0, 0], rtol=1e-6, atol=1e-8
        )

    def test_pull(self):
        # 0.5/2·‖v − a‖² has gradient 0.5·(v − a) = (−0.5, 0, 0, 1) at v = 0 with a = (1, 0, 0, −2).
        # Together with the loss: (−1.5, 1, −0.5, 1.5).
        pull = Pull(np.array([1, 0, 0, -2], np.float32), 0.5)
        np.testing.assert_allclose(
            step(ZERO, points((2, 0)), pull=pull), [0.15, -0.1, 0.05, -0.15], rtol=1e-6
        )

    def test_weight_decay(self):
        # x = 0 leaves p = (½, ½) whatever w is, and gives w no gradient but the decay's 0.2·(1, −1).
        after = step([1, -1, 0, 0], points((0, 0)), weight_decay=0.2)
        np.testing.assert_allclose(after, [0.98, -0.98, 0.05, -0.05], rtol=1e-6)

    def test_two_steps_with_momentum(self):
        # x = 0, y = 0. Step 1: g = v = −½ for b_0, so b = (0.05, −0.05).
        # Step 2: p_0 = σ(0.1), g = p_0 − 1, v = 0.9·(−½) + g, b_0 = 0.05 − 0.1·v; b_1 = −b_0.
        p = 1 / (1 + math.exp(-0.1))
        b = 0.05 - 0.1 * (-0.45 + p - 1)
        after = step(ZERO, points((0, 0)), epochs=2, momentum=0.9)
        np.testing.assert_allclose(after, [0, 0, b, -b], rtol=1e-5)

    def test_the_last_partial_batch_is_used(self):
        # Batches of 2 and 1 are two steps: b_0 = 0.05 and then 0.05 + 0.1·(1 − σ(0.1)).
        after = step(ZERO, points((0, 0), (0, 0), (0, 0)), batch_size=2)
        b = 0.05 + 0.1 * (1 - 1 / (1 + math.exp(-0.1)))
        np.testing.assert_allclose(after, [0, 0, b, -b], rtol=1e-5)

    def test_every_epoch_takes_every_sample_once_in_another_order(self):
        seen: list[float] = []

        class Watched(nn.Linear):
            def forward(self, x):
                seen.extend(x[:, 0].tolist())
                return super().forward(x)

        samples = points(*((x, 0) for x in range(11)))
        settings = TrainConfig(batch_size=4, epochs=3)
        network = Network(Watched(1, 2), (1,))
        sgd(network, ZERO, samples, settings, np.random.default_rng(0))
        epochs = [seen[:11], seen[11:22], seen[22:]]
        assert [sorted(epoch) for epoch in epochs] == [list(range(11))] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3
        seen_before = list(seen)
        seen.clear()
        sgd(network, ZERO, samples, settings, np.random.default_rng(0))
        assert seen == seen_before, "the generator alone decides the order"

    def test_no_samples_change_nothing(self):
        nothing = Samples(np.empty((0, 1), np.float32), np.empty(0, np.int64))
        assert step([1, 2, 3, 4], nothing).tolist() == [1, 2, 3, 4]

    def test_inputs_stay_as_they_are(self):
        start, anchor = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        samples = points((2, 0), (3, 1))
        given = (start, anchor, samples.x, samples.y)
        before = [array.tobytes() for array in given]
        for array in given:
            array.flags.writeable = False  # as in a worker, whose records are read-only
        after = step(start, samples, pull=Pull(anchor, 0.5), momentum=0.9, weight_decay=0.1)
        assert [array.tobytes() for array in given] == before
        assert not np.shares_memory(after, start)

    def test_dropout_depends_on_the_generator_alone(self):
        def factory(shape, classes):
            return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, classes))

        network = build_network(factory, (1,), 2, 0)
        start, samples = network.read(), points((2, 0), (3, 1))

        def trained(seed: int) -> bytes:
            torch.rand(3)  # whatever else was drawn from torch's own stream must not matter
            return sgd(network, start, samples, TrainConfig(), np.random.default_rng(seed)).tobytes()

        torch.manual_seed(5)
        expected = torch.rand(3), torch.rand(3), torch.rand(1)
        torch.manual_seed(5)
        assert trained(0) == trained(0)
        assert torch.equal(torch.rand(1), expected[2]), "torch's own stream goes on"
        assert trained(0) != trained(1)
        rng = np.random.default_rng(0)
        one, two = (sgd(network, start, samples, TrainConfig(), rng) for _ in range(2))
        assert one.tobytes() != two.tobytes()


class TestEvaluate:
    # b = (ln 3, 0): p = (¾, ¼) for every point.
    PARAMS = np.array([0, 0, math.log(3), 0], np.float32)
    SAMPLES = points((1, 0), (2, 0), (3, 1))

    @pytest.mark.parametrize("batch", [1, 2, 256])
    def test_by_hand(self, monkeypatch, batch):
        monkeypatch.setattr(train, "EVALUATION_BATCH", batch)
        score = evaluate(softmax(), self.PARAMS, self.SAMPLES)
        assert (score.n, score.hits) == (3, 2)
        assert score.soft == pytest.approx(0.75 + 0.75 + 0.25, rel=1e-6)
        assert score.loss == pytest.approx(-2 * math.log(0.75) - math.log(0.25), rel=1e-6)
        assert score.accuracy == pytest.approx(2 / 3)

    def test_predictions(self):
        # w = (1, −1): class 0 for positive x, class 1 for negative.
        params = np.array([1, -1, 0, 0], np.float32)
        samples = points((2, 0), (-1, 0), (-3, 1))
        assert predictions(softmax(), params, samples).tolist() == [0, 1, 1]

    def test_nothing_to_score(self):
        nothing = Samples(np.empty((0, 1), np.float32), np.empty(0, np.int64))
        score = evaluate(softmax(), self.PARAMS, nothing)
        assert (score.n, score.hits, score.loss, score.accuracy) == (0, 0, 0, 0)
        assert predictions(softmax(), self.PARAMS, nothing).tolist() == []

    def test_dropout_is_off(self):
        network = Network(nn.Sequential(nn.Dropout(0.9), nn.Linear(1, 2)), (1,))
        params = np.array([1, -1, 0, 0], np.float32)
        network.module.train()
        assert evaluate(network, params, points(*[(2, 0)] * 50)).hits == 50


class TestMeanGradient:
    def test_finite_differences(self, monkeypatch):
        monkeypatch.setattr(train, "EVALUATION_BATCH", 3)  # 3 + 3 + 1: unequal weights
        rng = np.random.default_rng(1)
        samples = Samples(rng.normal(size=(7, 3)).astype(np.float32), rng.integers(0, 3, 7))
        network = softmax(3, 3)
        params = rng.normal(size=network.size).astype(np.float32)

        def loss(vector: np.ndarray) -> float:
            """−mean log p of the true class, in float64 and without torch."""
            logits = samples.x.astype(np.float64) @ vector[:9].reshape(3, 3).T + vector[9:]
            logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            return float(-logs[np.arange(7), samples.y].mean())

        wide, small = params.astype(np.float64), 1e-6
        slopes = [
            (loss(wide + small * one) - loss(wide - small * one)) / (2 * small)
            for one in np.eye(network.size)
        ]
        np.testing.assert_allclose(mean_gradient(network, params, samples), slopes, atol=1e-6)

    def test_buffers_have_none(self):
        module = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        network = Network(module, (1,))
        gradient = mean_gradient(network, network.read(), points((2, 0), (4, 1)))
        # 3+3, 3+3 and 6+2 parameters, then the running mean and variance.
        assert gradient.shape == (26,)
        assert np.abs(gradient[:20]).max() > 0
        assert gradient[20:].tolist() == [0] * 6


class TestObjective:
    def test_its_gradient_is_stepped_along(self):
        # The batch's positions say where its points came from: 3 points in batches of 2 and 1.
        seen = []

        def objective(network, batch):
            assert not network.grad.any()
            rows = batch.positions.tolist()
            assert batch.labels.tolist() == [[0, 1, 1][row] for row in rows]
            assert batch.inputs[:, 0].tolist() == [[2, 4, 6][row] for row in rows]
            seen.append(rows)
            network.grad += 1

        settings = TrainConfig(lr=0.1, epochs=1, batch_size=2)
        rng = np.random.default_rng(0)
        after = sgd(softmax(), ZERO, points((2, 0), (4, 1), (6, 1)), settings, rng, objective=objective)
        assert sorted(row for rows in seen for row in rows) == [0, 1, 2]
        assert [len(rows) for rows in seen] == [2, 1]
        np.testing.assert_allclose(after, -0.2, rtol=1e-6)  # two steps of 0.1 along (1, 1, 1, 1)

    def test_parameters_that_get_no_gradient_stay(self):
        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = nn.Linear(1, 2), nn.Linear(1, 2)

            def forward(self, x):
                return self.used(x)

        network = Network(Partly(), (1,))
        start, samples = network.read(), points((2, 0), (4, 1))
        trained = sgd(network, start, samples, TrainConfig(), np.random.default_rng(0))
        assert (trained[:4] != start[:4]).all()
        assert (trained[4:] == start[4:]).all()


def test_losses_point_by_point():
    # Biases (ln 3, 0): p = (¾, ¼), so −ln ¾ for class 0 and −ln ¼ for class 1.
    model = np.array([0, 0, math.log(3), 0], np.float32)
    found = losses(softmax(), model, points((1, 0), (2, 1), (5, 0)))
    np.testing.assert_allclose(found, [-math.log(0.75), -math.log(0.25), -math.log(0.75)], rtol=1e-6)
    assert found.sum() == pytest.approx(evaluate(softmax(), model, points((1, 0), (2, 1), (5, 0))).loss)
    assert losses(softmax(), model, Samples(np.empty((0, 1), np.float32), np.empty(0, np.int64))).shape == (
        0,
    )
