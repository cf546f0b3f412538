"""Augmentation: what flip_crop does to an image, and that every epoch draws anew, by the client's stream."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.augmentation import augmented, flip_crop
from ipfl.training.network import Network
from ipfl.training.sgd import sgd


def versions(image):
    """All that flip_crop may make of an image: flipped or not, moved by up to an eighth, zeros outside."""
    height, width = image.shape[1:]
    down, right = max(1, height // 8), max(1, width // 8)
    for flipped in (image, image.flip(2)):
        for dy in range(-down, down + 1):
            for dx in range(-right, right + 1):
                moved = torch.zeros_like(image)
                for y in range(height):
                    for x in range(width):
                        if 0 <= y + dy < height and 0 <= x + dx < width:
                            moved[:, y, x] = flipped[:, y + dy, x + dx]
                yield moved


def test_flip_crop_gives_every_version_and_no_other():
    torch.manual_seed(0)
    image = torch.arange(1, 2 * 8 * 8 + 1, dtype=torch.float32).view(2, 8, 8)
    allowed = {one.numpy().tobytes() for one in versions(image)}
    assert len(allowed) == 18
    made = {one.numpy().tobytes() for one in flip_crop(image.expand(400, 2, 8, 8))}
    assert made == allowed


def test_only_images():
    with pytest.raises(InputError, match="needs images, not points of shape"):
        flip_crop(torch.ones(3, 5))


def test_every_epoch_and_every_client_draws_anew(tmp_path, monkeypatch):
    (tmp_path / "own_augment.py").write_text(
        "import torch\ndef noise(x):\n    return x + torch.rand_like(x)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            seen.append(x.detach().clone().numpy())
            return super().forward(x)

    network = Network(Watched(3, 2), (3,))
    samples = Samples(np.zeros((4, 3), np.float32), np.zeros(4, np.int64))

    def inputs(seed):
        seen.clear()
        config = TrainConfig(augment="own_augment:noise", epochs=2)
        sgd(network, np.zeros(8, np.float32), samples, config, np.random.default_rng(seed))
        return [batch.tobytes() for batch in seen]

    assert len({*inputs(0), *inputs(1)}) == 4
    assert inputs(0) == inputs(0)
    with pytest.raises(InputError, match=r"returned \(4, 1\) for a batch of shape \(4, 3\)"):
        augmented(lambda x: x[:, :1], torch.zeros(4, 3))
