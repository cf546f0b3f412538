"""Networks: the functions they compute, and the flat vector in which their parameters live."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ipfl.errors import InputError
from ipfl.training.architectures import CNN, MODELS, model_factory
from ipfl.training.network import Network, build_network


def relu_then_pool(shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    """The paper's CNN written in the usual order, independent of `ipfl.training.network.CNN`."""
    height, width, channels = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 2 // 2) * (width // 2 // 2), 128), nn.ReLU(),
        nn.Linear(128, classes),
    )  # fmt: skip


class Normed(nn.Module):
    """A module with every kind of state: parameters, float buffers, a counter."""

    def __init__(self, shape, classes):
        super().__init__()
        self.inner = nn.Linear(shape[0], 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, classes)

    def forward(self, x):
        return self.out(self.norm(self.inner(x)))


class TestCNN:
    @pytest.mark.parametrize("shape", [(28, 28, 1), (8, 8, 1), (9, 11, 2), (4, 4, 3)])
    def test_is_relu_then_pool(self, shape):
        """max(relu(a), relu(b)) = relu(max(a, b)), so pooling first changes nothing."""
        network = build_network(CNN, shape, 5, seed=3)
        usual = relu_then_pool(shape, 5)
        named = network.state_dict(network.read())
        order = [f"{layer}.{kind}" for layer in ("conv1", "conv2", "conv3", "hidden", "out")
                 for kind in ("weight", "bias")]  # fmt: skip
        usual.load_state_dict(dict(zip(usual.state_dict(), [named[name] for name in order], strict=True)))
        images = np.random.default_rng(0).integers(0, 256, (4, *shape), dtype=np.uint8)
        # By hand, not by `Network.inputs`: channels first; grey from 0 to 1, colours from −1 to 1.
        batch = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
        batch = batch if shape[2] == 1 else 2 * batch - 1
        with torch.no_grad():
            ours, theirs = network.module(network.inputs(network.put(images))), usual(batch)
        assert ours.shape == (4, 5)
        assert theirs.abs().max() > 0.1
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("shape", [(784,), (3, 8, 1), (8, 3, 1)])
    def test_features_and_small_images_are_refused(self, shape):
        with pytest.raises(InputError, match="use 'mlp' or 'softmax'"):
            build_network(CNN, shape, 2, 0)


class TestFlatVector:
    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_state_dict_and_back_is_exact(self, name):
        shape = (8, 8) if name in ("cnn1d", "lstm", "transformer") else (8, 8, 2)
        network = build_network(model_factory(name), shape, 3, seed=1)
        vector = np.random.default_rng(0).normal(size=network.size).astype(np.float32)
        named = network.state_dict(vector)
        network.module.load_state_dict(named, strict=True)
        assert network.read().tobytes() == vector.tobytes()
        # A plain module of the same kind takes the tensors as they are, strictly.
        plain = model_factory(name)(shape, 3)
        plain.load_state_dict(named)
        assert sum(tensor.numel() for tensor in plain.state_dict().values()) == network.size
        for theirs, ours in zip(plain.parameters(), network.module.parameters(), strict=True):
            assert torch.equal(theirs, ours)

    def test_load_and_read(self):
        network = build_network(model_factory("softmax"), (2,), 2, 0)
        vector = np.arange(6, dtype=np.float32)
        network.load(vector)
        # Weight (2 classes × 2 features) row by row, then the bias.
        assert network.module[1].weight.tolist() == [[0, 1], [2, 3]]
        assert network.module[1].bias.tolist() == [4, 5]
        read = network.read()
        read[0] = 99
        assert network.read().tolist() == vector.tolist(), "what was read is a copy"

    def test_convolution_weights_are_channels_last_views(self):
        network = build_network(CNN, (8, 8, 2), 3, 0)
        weight = network.module.conv1.weight
        assert weight.shape == (32, 2, 3, 3)
        assert weight.is_contiguous(memory_format=torch.channels_last)
        network.load(np.arange(network.size, dtype=np.float32))
        # (out, height, width, in): one step along `in` is one float, along width 2, height 6, out 18.
        assert weight[0, 1, 0, 0] == 1
        assert weight[0, 0, 0, 1] == 2
        assert weight[0, 0, 1, 0] == 6
        assert weight[1, 0, 0, 0] == 18
        ordinary = network.state_dict(network.read())["conv1.weight"]
        assert ordinary.is_contiguous()
        assert ordinary[0, 1, 0, 0] == 1


class TestBuild:
    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_seed_decides_the_start_and_torch_s_own_stream_goes_on(self, name):
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        first, again, other = (
            build_network(model_factory(name), (8, 8, 1), 3, seed).read() for seed in (1, 1, 2)
        )
        assert torch.equal(torch.rand(3), expected)
        assert first.tobytes() == again.tobytes()
        assert first.tobytes() != other.tobytes()

    def test_images_become_floats_and_features_stay(self):
        grey = build_network(model_factory("softmax"), (1, 2, 1), 2, 0)
        # Ink on a ground of 0: 0 → 0, 255 → 1, 51 = 255/5 → 0.2
        images = np.array([[[[0], [255]]], [[[51], [0]]]], dtype=np.uint8)
        np.testing.assert_allclose(grey.inputs(grey.put(images))[:, 0, 0], [[0, 1], [0.2, 0]], atol=1e-6)
        # Colours are centred, and come channels first: 51 → 2/5 − 1 = −0.6
        colour = build_network(model_factory("softmax"), (1, 2, 2), 2, 0)
        pair = np.array([[[[0, 255], [51, 0]]]], dtype=np.uint8)
        np.testing.assert_allclose(colour.inputs(colour.put(pair))[0, :, 0], [[-1, -0.6], [1, -1]], atol=1e-6)
        assert pair[0, 0, 0].tolist() == [0, 255]
        assert images[0, 0, 0, 0] == 0
        # Bytes that are no image, and other numbers, stay as they are.
        points = np.array([[1.5, 300.0]], dtype=np.float32)
        features = build_network(model_factory("softmax"), (2,), 2, 0)
        assert features.inputs(features.put(points)).tolist() == points.tolist()
        assert features.inputs(features.put(np.array([[1, 255]], np.uint8))).tolist() == [[1, 255]]

    def test_a_callable_must_return_a_module(self):
        with pytest.raises(InputError, match="returned int, not a torch"):
            build_network(lambda shape, classes: 5, (2,), 2, 0)

    def test_a_callable_is_its_own_factory(self):
        assert model_factory(Normed) is Normed
        assert model_factory("ipfl.training.architectures:MLP") is model_factory("mlp")


class TestLayers:
    def test_top_layers_of_the_mlp(self):
        # 4 inputs: hidden 4·128 + 128 = 640 floats, then out 128·3 + 3 = 387: 1027 in all.
        network = build_network(model_factory("mlp"), (4,), 3, 0)
        assert network.top(1) == slice(640, 1027)
        assert network.top(2) == slice(0, 1027)
        assert network.top(9) == slice(0, 1027)
        # inner 2·3 + 3 = 9, norm 3 + 3 = 6, out 3·5 + 5 = 20; running mean and variance are no layer.
        assert build_network(Normed, (2,), 5, 0).top(2) == slice(9, 35)

    def test_features_are_what_goes_into_the_last_layer(self):
        network = build_network(model_factory("mlp"), (4,), 3, 0)
        batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        features, scores = network.features(batch)
        flatten, hidden, relu, out = network.module
        assert torch.equal(features, relu(hidden(flatten(batch))))
        assert torch.equal(scores, out(features))
        assert network.classifier is out
        assert not out._forward_pre_hooks

    def test_where_the_biases_of_the_outputs_are(self):
        assert build_network(model_factory("mlp"), (4,), 3, 0).output_bias == slice(1024, 1027)
        assert build_network(Normed, (2,), 5, 0).output_bias == slice(30, 35)
        assert Network(nn.Linear(1, 2, bias=False), (1,)).output_bias is None
        assert Network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (3, 3, 1)).output_bias is None

    def test_a_module_without_a_linear_layer_has_no_features(self):
        network = Network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (3, 3, 1))
        with pytest.raises(InputError, match="no linear layer"):
            _ = network.classifier


def test_a_model_that_cannot_be_made_is_one_line():
    """What a user's own code raises is for the user: where, and why."""

    def broken(shape, classes):
        raise RuntimeError("not\ntoday")

    with pytest.raises(InputError, match=r"shape \(4,\) and 2 outputs: RuntimeError: not today \(test_net"):
        build_network(broken, (4,), 2, seed=0)
