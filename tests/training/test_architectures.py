"""Models by name: shapes, sizes, what they refuse, and that each learns what it is made for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.federation import run_here

import ipfl
from ipfl.config.train_section import TrainConfig
from ipfl.errors import InputError
from ipfl.training.architectures import (
    CNN,
    MLP,
    ResNet8,
    model_factory,
)
from ipfl.training.sequence_models import CNN1D, LSTM, Transformer
from ipfl.training.sgd import evaluate, sgd


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((28, 28, 1), CNN),
        ((4, 4, 3), CNN),
        ((3, 8, 1), MLP),
        ((7,), MLP),
        ((128, 6), CNN1D),
        ((2, 2, 3), MLP),
    ],
)
def test_a_model_that_fits_is_picked(shape, kind):
    assert type(model_factory("auto")(shape, 3)) is kind


@pytest.mark.parametrize(
    ("name", "shape", "tokens"),
    [
        ("resnet8", (8, 8, 3), None),
        ("resnet8", (9, 7), None),  # grey images without a channel axis
        ("cnn", (9, 7), None),
        ("small_cnn", (9, 7), None),
        ("cnn1d", (10, 3), None),
        ("cnn1d", (8, 8, 1), None),  # a square sequence, taken for a grey image
        ("lstm", (10, 3), None),
        ("transformer", (8, 8, 1), None),
        ("lstm", (10,), 30),
        ("transformer", (10,), 30),
    ],
)
def test_outputs(name, shape, tokens):
    module = model_factory(name, tokens)(shape, 5)
    batch = torch.zeros(2, *shape) if len(shape) < 3 else torch.zeros(2, shape[2], *shape[:2])
    assert module(batch.long() if tokens else batch).shape == (2, 5)


def test_sizes():
    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    # Stem 9·16 + 32; blocks of two convolutions and two norms, two of them with a shortcut; out 64·10 + 10.
    blocks = (2 * 9 * 256 + 64) + (9 * 512 + 9 * 1024 + 512 + 128) + (9 * 2048 + 9 * 4096 + 2048 + 256)
    assert count(ResNet8((8, 8, 1), 10)) == 9 * 16 + 32 + blocks + 650
    # Embedding 30·64, LSTM 4·64·(64 + 64) + 2·4·64, out 64·5 + 5.
    assert count(LSTM((10,), 5, 30)) == 30 * 64 + 4 * 64 * 128 + 512 + 325
    # Positions 10·64; a block: two norms, 64·192 + 192, 64² + 64, two layers of 64·128; norm 128; out 325.
    block = 256 + 64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 128 + 128 + 64
    assert count(Transformer((10,), 5, 30)) == 30 * 64 + 640 + 2 * block + 128 + 325


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("resnet8", (7,), "needs images"),
        ("cnn", (3, 16, 2), "needs images"),
        ("cnn", (3, 16, 16), r"channels come last here: x\.transpose\(0, 2, 3, 1\)"),
        ("cnn1d", (7,), "needs sequences"),
        ("lstm", (7,), "token ids"),
        ("transformer", (4, 4, 3), "needs sequences"),
    ],
)
def test_points_that_do_not_fit(name, shape, match):
    with pytest.raises(InputError, match=match):
        model_factory(name)(shape, 2)


def sequences(n, rng):
    """Which half of the sequence the bump is in: order matters, the mean over the steps says nothing."""
    y = rng.integers(0, 2, n)
    x = rng.normal(0, 0.1, (n, 12, 2))
    x[np.arange(n), rng.integers(0, 5, n) + 6 * y, 0] += 2
    x[np.arange(n), :, 1] = np.linspace(-1, 1, 12)  # where in the sequence a step is
    return x.astype(np.float32), y


def sentences(n, rng):
    """Whether token 7 is in it."""
    x = rng.integers(8, 20, (n, 6))
    y = rng.integers(0, 2, n)
    x[np.flatnonzero(y), rng.integers(0, 6, int(y.sum()))] = 7
    return x, y


def images(n, rng):
    """Whether the bar is upright or lies."""
    x = np.zeros((n, 8, 8, 1), np.uint8)
    y = rng.integers(0, 2, n)
    for image, kind, place in zip(x, y, rng.integers(0, 8, n), strict=True):
        image[(slice(None), place) if kind else (place, slice(None))] = 255
    return x, y


@pytest.mark.parametrize(
    ("model", "make", "epochs"),
    [
        ("resnet8", images, 6),
        ("cnn1d", sequences, 8),
        ("lstm", sequences, 40),
        ("transformer", sequences, 8),
        ("lstm", sentences, 15),
        ("transformer", sentences, 8),
    ],
)
def test_learns_what_it_is_made_for(model, make, epochs):
    rng = np.random.default_rng(0)
    task = ipfl.Task.from_clients([make(160, rng)], model=model, probe=0.1)
    network, parts = task.network(0), task.data.parts(0)
    settings = TrainConfig(optimizer="adam", lr=0.005, batch_size=16, epochs=epochs)
    trained = sgd(network, network.read(), parts.train, settings, np.random.default_rng(0))
    assert evaluate(network, trained, parts.test).accuracy > 0.8


def test_a_one_hot_table_in_bytes_is_learned():
    """It was scaled like an image once, to values of hundredths, and learned 48 % instead of all."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(4):
        y = rng.integers(0, 6, 60)
        clients.append((np.eye(6, dtype=np.uint8)[y], y))
    result = run_here(ipfl.Task.from_clients(clients), ipfl.method("fedavg"), rounds=12)
    assert result.personalized_accuracy == 1
