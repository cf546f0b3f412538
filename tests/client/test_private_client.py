from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.federation import ZERO, client, points

from ipfl.client.private_client import (
    HAS_LOOKED,
    MAX_LOSS,
    NoisyGradient,
    PoissonBatches,
    PrivateClient,
    clipped_sum,
    noise_path,
    point_gradients,
)
from ipfl.config.train_section import PrivacyConfig
from ipfl.core import EMPTY, Record
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.architectures import model_factory
from ipfl.training.network import Network
from ipfl.training.sgd import Batch, mean_gradient

TINY = 1e-9
"""Noise that changes nothing that a test looks at."""


def private(*pairs, noise=TINY, clip=1.0, mine=EMPTY, probe=None, **settings):
    config, plain = PrivacyConfig(noise=noise, clip=clip), client(*pairs, **settings)
    if probe is not None:
        plain = replace(plain, parts=replace(plain.parts, probe=probe))
    return PrivateClient.of(plain, config, np.random.default_rng(0), mine)


def batch_of(network, samples):
    found = network.points(samples)
    return Batch(network.inputs(found.x), found.y, torch.arange(len(found)))


class TestGradientsOfPoints:
    def test_by_hand(self):
        # At w = 0: (2, class 0) has (−1, 1), and (1, class 1) has (½, −½).
        me = client((2.0, 0), (1.0, 1))
        me.network.load(ZERO)
        found = point_gradients(me.network, batch_of(me.network, points((2.0, 0), (1.0, 1))))
        assert found.numpy() == pytest.approx(np.array([[-1, 1], [0.5, -0.5]]))

    def test_only_long_ones_are_clipped(self):
        # (−1, 1) has length √2 and becomes (−1, 1)/√2; (½, −½) has length 1/√2 and stays.
        me = client((2.0, 0), (1.0, 1))
        me.network.load(ZERO)
        total = clipped_sum(me.network, batch_of(me.network, points((2.0, 0), (1.0, 1))), 1.0)
        assert total.numpy() == pytest.approx(np.array([-1, 1]) * (np.sqrt(0.5) - 0.5), abs=1e-6)

    def test_convolutions_lie_where_the_vector_has_them(self):
        network = Network(model_factory("cnn")((28, 28, 1), 10), (28, 28, 1))
        rng = np.random.default_rng(0)
        samples = Samples(rng.integers(0, 255, (5, 28, 28, 1), dtype=np.uint8), rng.integers(0, 10, 5))
        params = network.read()
        expected = mean_gradient(network, params, samples)
        total = clipped_sum(network, batch_of(network, samples), 1e6)
        assert total.numpy() / 5 == pytest.approx(expected[: network.trained], abs=1e-5)

    def test_batch_norm_is_refused(self):
        network = Network(torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 2)), (1,))
        network.module.train()
        with pytest.raises(InputError, match="no batch norm"):
            point_gradients(network, batch_of(network, points((2.0, 0), (1.0, 1))))

    def test_an_empty_batch_is_noise_alone(self):
        me = client((2.0, 0))
        me.network.load(ZERO)
        me.network.grad.zero_()
        NoisyGradient(1.0, 3.0, 2.0, np.random.default_rng(5))(
            me.network, batch_of(me.network, points((2.0, 0)))[0:0]
        )
        noise = np.random.default_rng(5).normal(0, 3.0, 2) / 2
        assert me.network.grad.numpy() == pytest.approx(noise, abs=1e-6)

    def test_batches(self):
        # 10 points, 4 expected in a batch: 3 batches per epoch, each point in each with chance 0.4.
        batches = PoissonBatches(10, 4)
        assert (batches.rate, batches.steps) == (0.4, 3)
        rng = np.random.default_rng(0)
        sizes = [len(chosen) for _ in range(400) for chosen in batches(rng, 10)]
        assert len(sizes) == 1200
        # Binomial: mean 4, variance 2.4; four standard errors of the mean are 0.18.
        assert np.mean(sizes) == pytest.approx(4, abs=0.18)
        assert len({*sizes}) > 4


class TestScores:
    def test_a_number_costs_when_it_is_first_looked_at(self):
        me = private((2.0, 0), (1.0, 1), (1.0, 1), probe=points((2.0, 0), (1.0, 1), (1.0, 1)))
        score = me.score(np.array([0.0, 1.0], np.float32), "probe")
        assert (score.n, me.log.releases) == (3, {})
        # Class 1 wherever x > 0: two of three.
        assert score.hits == score.hits == pytest.approx(2, abs=1e-6)
        assert me.log.releases == {(TINY, 1.0): 1}
        assert score.soft == pytest.approx(0.1192 + 2 * 0.7311, abs=1e-3)
        assert me.log.releases == {(TINY, 1.0): 2}
        assert not me.log.has_looked

    def test_loss_of_a_point_has_a_limit(self):
        # logits (0, 100): the loss of class 0 would be 100.
        me = private((1.0, 0), probe=points((1.0, 0)))
        assert me.score(np.array([0.0, 100.0], np.float32), "probe").loss == pytest.approx(MAX_LOSS, abs=1e-6)

    def test_noise_stays_within_what_is_possible(self):
        me = private((1.0, 1), probe=points((1.0, 1), (1.0, 1)), noise=100.0)
        hits = [me.score(ZERO, "probe").hits for _ in range(50)]
        assert min(hits) == 0
        assert max(hits) == 2


class TestReplies:
    def test_sizes_are_no_secret(self):
        me = private((2.0, 0), (1.0, 1))
        reply = Record({}, {"n": len(me.data("train")), "choice": 3})
        assert me.protect(reply) is reply

    @pytest.mark.parametrize(
        "look",
        [
            lambda me: me.data("train").y,
            lambda me: me.losses(ZERO, "train"),
            lambda me: me.predict(ZERO, "train"),
            lambda me: me.points("train"),
        ],
    )
    def test_after_a_look_nothing_leaves_but_sizes(self, look):
        me = private((2.0, 0), (1.0, 1), (1.0, 1))
        look(me)
        assert me.protect(Record({}, {"n": 3})).facts == {"n": 3}
        with pytest.raises(InputError, match="cannot protect 'choice'"):
            me.protect(Record({}, {"n": 3, "choice": 1}))
        with pytest.raises(InputError, match="cannot protect 'n'"):
            me.protect(Record({}, {"n": 2}))
        with pytest.raises(InputError, match="cannot protect 'model'"):
            me.protect(Record({"model": ZERO}, {"n": 3}))

    def test_what_was_seen_is_remembered_as_seen(self):
        me = private((2.0, 0))
        me.losses(ZERO, "train")
        kept = me.remember(Record({}, {"best": 1}), EMPTY)
        later = private((2.0, 0), mine=kept)
        assert HAS_LOOKED in kept.facts
        with pytest.raises(InputError, match="cannot protect 'best'"):
            later.protect(Record({}, {"best": 1}))

    def test_a_noisy_gradient_leaves_as_it_is(self):
        me = private((2.0, 0), probe=points((2.0, 0), (1.0, 1)))
        gradient = me.gradient(ZERO, "probe")
        assert gradient == pytest.approx(np.array([-1, 1]) * (np.sqrt(0.5) - 0.5) / 2, abs=1e-6)
        assert me.protect(Record({"model": gradient})).params["model"] is gradient
        assert me.log.releases == {(TINY, 1.0): 1}


class TestNoisyTraining:
    def test_one_step_by_hand(self):
        # All points in the batch; (−1, 1) is clipped to length 1, and the step is 0.1 long.
        me = private((2.0, 0))
        trained = me.train(ZERO)
        assert trained == pytest.approx(0.1 * np.array([1, -1]) * np.sqrt(0.5), abs=1e-6)
        assert me.protect(Record({"model": trained}, {"n": 1})).params["model"] is trained
        assert me.log.releases == {(TINY, 1.0): 1}

    def test_steps_are_counted_with_their_rate(self):
        me = private(*[(1.0, 1)] * 10, batch_size=4, epochs=2)
        me.train(ZERO)
        assert me.log.releases == {(TINY, 0.4): 6}

    def test_what_is_no_sum_over_points_is_refused(self):
        with pytest.raises(InputError, match="this method trains on another one"):
            private((2.0, 0)).train(ZERO, objective=lambda network, batch: None)


def test_two_asks_have_noise_of_their_own():
    one, other = Record({"a": ZERO}, {"k": 1}), Record({"a": ZERO}, {"k": 2})
    assert noise_path(one) == noise_path(Record({"a": ZERO.copy()}, {"k": 1}))
    assert noise_path(one) != noise_path(other)
    assert noise_path(one) != noise_path(Record({"a": ZERO + 1}, {"k": 1}))
