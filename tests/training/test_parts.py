"""Parts of a network: where they lie in its vector, and that training one leaves the others as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.federation import client, sigma
from tests.small_nets import BatchNormed, Scaled, Standardised
from torch import nn

from ipfl.client.private_client import PrivateClient
from ipfl.config.train_section import PrivacyConfig
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.training.architectures import ResNet8, Softmax
from ipfl.training.network import Network, build_network
from ipfl.training.parts import PARTS
from ipfl.training.sequence_models import Transformer


def names(network: Network, part: str) -> list[str]:
    found = network.part(part)
    return [slot.name for slot in network.slots if found.holds(slot.start)]


class Named(BatchNormed):
    """Says itself what its parts are."""

    parts: ClassVar = {"head": ["2", "4"], "biases": lambda name: name.endswith("bias")}


class TestWhere:
    def test_by_hand(self):
        # Linear(3, 8): 24 + 8; BatchNorm: 8 + 8; Linear(8, 2): 16 + 2; then the running mean and variance.
        network = build_network(BatchNormed, (3,), 2, 0)
        assert network.part("head").stretches == (slice(48, 66),)
        assert network.part("body").stretches == (slice(0, 48), slice(66, 82))
        assert network.part("norms").stretches == (slice(32, 48), slice(66, 82))
        assert network.part("not norms").stretches == (slice(0, 32), slice(48, 66))

    def test_norms_of_every_kind(self):
        assert all(
            "1." in name or "4." in name for name in names(build_network(ResNet8, (8, 8, 1), 2, 0), "norms")
        )
        found = names(build_network(Transformer, (4, 3), 2, 0), "norms")
        assert {name.split(".")[-2] for name in found} == {"norm", "norm1", "norm2"}

    def test_as_the_module_says(self):
        network = build_network(Named, (3,), 2, 0)
        assert names(network, "head") == [
            "2.weight", "2.bias", "4.weight", "4.bias", "2.running_mean", "2.running_var",
        ]  # fmt: skip
        assert names(network, "body") == ["1.weight", "1.bias"]
        assert names(network, "biases") == ["1.bias", "2.bias", "4.bias"]
        assert names(network, "norms") == names(build_network(BatchNormed, (3,), 2, 0), "norms")

    @pytest.mark.parametrize(
        ("module", "part", "says"),
        [
            (Softmax, "norms", "model Softmax has no norms"),
            (Softmax, "not norms", "model Softmax has no norms"),
            (Softmax, "adapters", "model Softmax has no adapters"),
            (Softmax, "body", "model Softmax has nothing but its head"),
            (Softmax, "heda", "unknown part 'heda'; did you mean 'head'"),
            (Named, "bias", "unknown part 'bias'; did you mean 'biases'"),
        ],
    )
    def test_refused(self, module, part, says):
        with pytest.raises(InputError) as refusal:
            build_network(module, (3,), 2, 0).part(part)
        assert str(refusal.value).startswith(says)

    @pytest.mark.parametrize("part", [*PARTS[:3], *(f"not {part}" for part in PARTS[:3])])
    def test_taken_out_and_put_back(self, part):
        network = build_network(BatchNormed, (3,), 2, 0)
        found, rng = network.part(part), np.random.default_rng(0)
        one, other = (rng.normal(size=network.size).astype(np.float32) for _ in range(2))
        both = found.put(one, found.of(other))
        rest = network.part(part.removeprefix("not ") if part.startswith("not ") else f"not {part}")
        assert np.array_equal(found.of(both), found.of(other))
        assert np.array_equal(rest.of(both), rest.of(one))
        assert found.size + rest.size == network.size
        with pytest.raises(InputError, match="cannot be made of"):
            found.put(one, other)


SETTINGS = [
    {},
    {"weight_decay": 0.5},
    {"momentum": 0.9, "weight_decay": 0.5},
    {"optimizer": "adam", "weight_decay": 0.5},
    {"optimizer": "adamw", "weight_decay": 0.5},
]


class TestTrainingOnePart:
    def person(self, module: nn.Module, **settings):
        me = client((1, 0), (2, 1), (3, 0), (4, 1), **{"batch_size": 2, "epochs": 2} | settings)
        return replace(me, network=Network(module, (1,)))

    @pytest.mark.parametrize("settings", SETTINGS)
    @pytest.mark.parametrize("part", ["head", "norms", "body"])
    @pytest.mark.parametrize("is_private", [False, True])
    def test_the_rest_stays_to_the_last_bit(self, settings, part, is_private):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(1, 3), nn.LayerNorm(3), nn.Linear(3, 2))
        me = self.person(module if is_private else BatchNormed((1,), 2), **settings)
        if is_private:
            me = PrivateClient.of(me, PrivacyConfig(noise=1.0), np.random.default_rng(1), Record())
        start = me.network.read()
        trained = me.train(start, only=part)
        assert np.array_equal(me.part(trained, f"not {part}"), me.part(start, f"not {part}"))
        assert (me.part(trained, part) != me.part(start, part)).any()
        # Nothing of it stays behind: the whole network is trained again.
        assert (me.part(me.train(start), f"not {part}") != me.part(start, f"not {part}")).any()

    def test_by_hand(self):
        # At b = 1, h = 0 the gradient of (2, class 0) by h is (−1, 1), by b it is 0: h = 0.1·(1, −1). There
        # the margin is 2·0.2 = 0.4: by h it is 2σ(−0.4), by b 2·0.2·σ(−0.4).
        start, p = np.array([1, 0, 0], np.float32), sigma(-0.4)
        me = replace(client((2, 0), epochs=2), network=Network(Scaled(), (1,)))
        h = 0.1 + 0.1 * 2 * p
        np.testing.assert_allclose(me.train(start), [1 + 0.1 * 0.4 * p, h, -h], rtol=1e-5)
        np.testing.assert_allclose(me.train(start, only="head"), [1, h, -h], rtol=1e-5)
        moved = np.array([1, 0.1, -0.1], np.float32)
        np.testing.assert_allclose(
            me.train(moved, only="body", epochs=1), [1 + 0.1 * 0.4 * p, 0.1, -0.1], rtol=1e-5
        )

    def test_statistics_of_a_norm_belong_to_it(self):
        # Mean 2.5 and variance 5/3 of 1, 2, 3, 4, in one batch: a tenth of the way from 0 and 1.
        me = self.person(Standardised(), batch_size=4, epochs=1)
        start = np.array([1, 0, 0.5, -0.5, 0, 1], np.float32)
        assert me.train(start, only="head")[4:].tolist() == [0, 1]
        np.testing.assert_allclose(me.train(start, only="norms")[4:], [0.25, 0.9 + 1 / 6], rtol=1e-6)

    def test_nothing_to_train(self):
        class Fixed(BatchNormed):
            def __init__(self, shape, classes):
                super().__init__(shape, classes)
                self[4].requires_grad_(False)

        me = self.person(Fixed((1,), 2))
        with pytest.raises(InputError, match="nothing in this part can be trained"):
            me.train(me.network.read(), only="head")


def test_noise_of_dp_sgd_is_drawn_for_the_part_alone():
    """The clip is the length of the part's gradient, whatever the rest would be."""
    me = replace(client((2, 0)), network=Network(Scaled(), (1,)))
    private = PrivateClient.of(me, PrivacyConfig(noise=1e-9, clip=0.5), np.random.default_rng(1), Record())
    # At (b, h) = (1, 0.1, −0.1) the gradient by h, σ(−0.4)·(−2, 2), is longer than 0.5: cut to 0.5.
    trained = private.train(np.array([1, 0.1, -0.1], np.float32), only="head")
    step = 0.1 * 0.5 / 2**0.5
    np.testing.assert_allclose(trained, [1, 0.1 + step, -0.1 - step], rtol=1e-5)
