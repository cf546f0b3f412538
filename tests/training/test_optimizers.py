"""Optimizers, frozen layers, decay and batches: against sums by hand.

The model is softmax regression with one feature, vector (w_0, w_1, b_0, b_1); see `test_sgd.py`.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.network import Network
from ipfl.training.sgd import Pull, sgd

ZERO = np.zeros(4, np.float32)
ONE_POINT = Samples(np.array([[2.0]], np.float32), np.array([0]))


def train(start=ZERO, samples=ONE_POINT, network=None, **settings):
    network = network or Network(nn.Linear(1, 2), (1,))
    return sgd(network, start, samples, TrainConfig(lr=0.1, epochs=1, **settings), np.random.default_rng(0))


class TestOptimizers:
    def test_first_step_of_adam(self):
        # Its first step is lr·g/(|g| + ε) = lr·sign(g). Gradient of the point: (−1, 1, −½, ½).
        np.testing.assert_allclose(train(optimizer="adam"), [0.1, -0.1, 0.1, -0.1], rtol=1e-5)

    def test_adamw_decays_beside_the_gradient(self):
        # w ← w·(1 − lr·λ) − lr·sign(g) with λ = 0.5. At w = (4, 4, 0, 0): p = (½, ½), the same signs.
        # 4·0.95 = 3.8, then −0.1·(−1) and −0.1·1.
        start = np.array([4, 4, 0, 0], np.float32)
        after = train(start, optimizer="adamw", weight_decay=0.5)
        np.testing.assert_allclose(after, [3.9, 3.7, 0.1, -0.1], rtol=1e-5)

    @pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.9}])
    def test_nothing_is_remembered_between_trainings(self, settings):
        network = Network(nn.Linear(1, 2), (1,))
        one, other = (train(network=network, **settings) for _ in range(2))
        assert one.tobytes() == other.tobytes()

    def test_own_factory(self, tmp_path, monkeypatch):
        (tmp_path / "own_optimizer.py").write_text(
            "import torch\n"
            "def factory(parameters, lr):\n"
            "    return torch.optim.SGD(parameters, lr=2 * lr)\n"
            "def wrong(parameters, lr):\n"
            "    return 3\n"
        )
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        # Twice the step of 0.1 against (−1, 1, −½, ½).
        np.testing.assert_allclose(
            train(optimizer="own_optimizer:factory"), [0.2, -0.2, 0.1, -0.1], rtol=1e-6
        )
        with pytest.raises(InputError, match=r"returned int, not a torch\.optim\.Optimizer"):
            train(optimizer="own_optimizer:wrong")

    @pytest.mark.parametrize(
        "settings", [{"optimizer": "adam", "momentum": 0.9}, {"optimizer": "a:b", "weight_decay": 0.1}]
    )
    def test_settings_that_nobody_would_read(self, settings):
        with pytest.raises(InputError, match=r"train\.(momentum|weight_decay)"):
            TrainConfig.of(settings)


class PartlyFrozen(nn.Module):
    """Frozen in the middle of the vector, with a BatchNorm that is frozen as well."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 2)
        self.norm.requires_grad_(False)
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.first(x))))


class TestFrozenLayers:
    SAMPLES = Samples(np.arange(1, 7, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 0, 1]))

    @pytest.mark.parametrize(
        "settings",
        [{}, {"weight_decay": 0.5}, {"momentum": 0.9, "weight_decay": 0.5}]
        + [{"optimizer": name, "weight_decay": 0.5} for name in ("adam", "adamw")],
    )
    @pytest.mark.parametrize("is_pulled", [False, True])
    def test_stay_as_they_are(self, settings, is_pulled):
        torch.manual_seed(0)
        network = Network(PartlyFrozen(), (1,))
        # first.weight 0–3 (frozen), first.bias 3–6, norm 6–12 (frozen), out 12–20, statistics of norm 20–26.
        start = np.linspace(-1, 1, network.size).astype(np.float32)
        start[23:26] = 1  # a variance
        pull = Pull(np.zeros_like(start), 0.5) if is_pulled else None
        config = TrainConfig(lr=0.1, batch_size=3, epochs=2, **settings)
        after = sgd(network, start, self.SAMPLES, config, np.random.default_rng(0), pull=pull)
        frozen = np.r_[0:3, 6:12, 20:26]
        assert after[frozen].tobytes() == start[frozen].tobytes()
        assert (after[12:20] != start[12:20]).any()

    def test_nothing_to_train(self):
        module = nn.Linear(1, 2).requires_grad_(False)
        with pytest.raises(InputError, match="no parameters to train"):
            Network(module, (1,))


class TestDecay:
    def rates(self, rounds, **settings):
        config = TrainConfig(lr=0.8, **settings)
        return [config.at_round(round).lr for round in rounds]

    def test_by_hand(self):
        assert self.rates([0, 7, 99]) == [0.8, 0.8, 0.8]
        # 0.5^0, 0.5^1, 0.5^2
        step = self.rates([0, 9, 10, 25], lr_decay="step", decay_every=10)
        assert step == pytest.approx([0.8, 0.8, 0.4, 0.2])
        # 1/(1 + t/10): 1, ½ after ten rounds, ¼ after thirty.
        assert self.rates([0, 10, 30], lr_decay="diminishing") == pytest.approx([0.8, 0.4, 0.2])
        # (1 + cos(πt/4))/2: 1, at a half ½; from round 3 on the last one.
        cosine = self.rates([0, 2, 3, 4, 9], lr_decay="cosine", decay_rounds=4)
        last = 0.8 * (1 - math.sqrt(0.5)) / 2
        assert cosine == pytest.approx([0.8, 0.4, last, last, last])

    def test_clients_train_with_the_rate_of_the_round(self):
        from tests.federation import run_here

        import ipfl

        x = np.ones((8, 1), np.float32)
        task = ipfl.Task.from_clients([(x, np.zeros(8, np.int64))] * 2, model="softmax", classes=2)
        models = {}
        for rounds in (1, 2):
            train = TrainConfig(lr=0.5, lr_decay="step", decay_every=1, decay_factor=1e-9, epochs=1)
            models[rounds] = run_here(task, ipfl.method("fedavg"), rounds=rounds, train=train).models[
                "global"
            ]
        # The second round's steps are a billion times shorter: the model stays where it was.
        np.testing.assert_allclose(models[2], models[1], atol=1e-6)
        assert np.abs(models[1] - task.network(0).read()).max() > 0.05
