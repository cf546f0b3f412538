"""What cannot work is said before the first round, on one line that says what to change."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation import run_here
from torch import nn

import ipfl
from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.dry_pass import check_training
from ipfl.training.sgd import sgd


def clients(sizes=(20, 20), features=4):
    """Client i trains on `sizes[i]` points."""
    rng = np.random.default_rng(0)
    made = []
    for size in sizes:
        whole = round(size / 0.75 / 0.8) + 2
        x, y = rng.normal(size=(whole, features)).astype(np.float32), np.arange(whole) % 2
        made.append({"train": (x, y), "test": (x[:5], y[:5])})
    return made


def normed(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def complaint(model, train=None, data=None):
    task = ipfl.Task.from_clients(data or clients(), model=model)
    with pytest.raises(InputError) as error:
        check_training(task, train or TrainConfig(), 0)
    text = str(error.value)
    assert "\n" not in text
    return text


class TestModel:
    def test_of_the_wrong_shape(self):
        text = complaint(lambda shape, classes: nn.Linear(7, classes))
        assert text.startswith("model Linear cannot take points of shape (4,)")
        assert "batch of shape (2, 4) of float32" in text

    def test_with_too_few_outputs(self):
        text = complaint(lambda shape, classes: nn.Linear(4, 7))
        assert "outputs of shape (2, 7)" in text
        assert "each of 2 classes" in text

    def test_that_returns_no_tensor(self):
        class Pair(nn.Linear):
            def forward(self, x):
                return super().forward(x), x

        assert "returns tuple" in complaint(lambda shape, classes: Pair(4, classes))

    def test_whose_step_fails(self):
        class Untrainable(nn.Linear):
            def forward(self, x):
                return super().forward(x).detach() if self.training else super().forward(x)

        text = complaint(lambda shape, classes: Untrainable(4, classes))
        assert text.startswith("a step of training with model Untrainable")


class TestEffort:
    @pytest.mark.parametrize(("points", "step"), [(40, None), (4000, 128)])
    def test_of_a_full_batch_is_five_steps(self, points, step):
        """Of all points a client has, or of 128; it was a pass per 5 / points of the batch size."""
        trained = []

        class Counting(nn.Linear):
            def forward(self, x):
                trained.extend([len(x)] * self.training)
                return super().forward(x)

        x, y = np.ones((points, 4), np.float32), np.arange(points) % 2
        data = [{"train": (x, y), "test": (x[:5], y[:5])}]
        task = ipfl.Task.from_clients(data, model=lambda shape, classes: Counting(4, classes))
        check_training(task, TrainConfig(batch_size=100_000), 0)
        assert trained == [step or task.data.sizes(0)["train"]] * 5


class TestBatchNorm:
    def test_a_last_batch_of_one_is_left_out(self):
        """Nine points in batches of eight: what is trained is what eight of them give."""
        task = ipfl.Task.from_clients(clients((32,)), model=normed)
        network, x = task.network(0), task.data.parts(0).train.x
        start, y = network.read(), np.arange(9) % 2
        chosen = np.random.default_rng(0).permutation(9)[:8]
        settings = TrainConfig(batch_size=8, epochs=1)
        nine = sgd(network, start, Samples(x[:9], y), settings, np.random.default_rng(0))
        eight = Samples(x[chosen], y[chosen])
        as_they_are = sgd(network, start, eight, settings, np.random.default_rng(0))
        np.testing.assert_allclose(nine, as_they_are, atol=1e-6)
        run_here(task, ipfl.method("fedavg"), rounds=1, train=TrainConfig(batch_size=8))

    def test_batches_of_one_are_for_models_without_it(self):
        assert "use GroupNorm" in complaint(normed, TrainConfig(batch_size=1))
        check_training(ipfl.Task.from_clients(clients(), model="mlp"), TrainConfig(batch_size=1), 0)

    def test_one_image_has_many_values(self):
        """A batch of one is enough where a BatchNorm takes the variance over the pixels."""

        def network(shape, classes):
            layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes)
            return nn.Sequential(*layers)

        images = [(np.ones((12, 8, 8, 1), np.uint8), np.arange(12) % 2)]
        check_training(ipfl.Task.from_clients(images, model=network), TrainConfig(batch_size=1), 0)


class TestLearningRate:
    def test_of_a_run_that_diverges_and_leaves_no_folder_behind(self, tmp_path):
        task = ipfl.Task.from_clients(clients())
        with pytest.raises(InputError, match=r"lower train\.lr \(now 1e\+06\)"):
            run_here(task, ipfl.method("fedavg"), rounds=1, train=TrainConfig(lr=1e6), out=tmp_path / "run")
        assert not (tmp_path / "run/summary.json").exists()

    def test_an_ordinary_one_passes_and_changes_nothing(self):
        task = ipfl.Task.from_clients(clients())
        before = task.network(0).read()
        check_training(task, TrainConfig(), 0)
        assert task.network(0).read().tobytes() == before.tobytes()


def test_data_that_is_elsewhere_is_not_tried():
    class Remote:
        clients = (0,)

        def parts(self, client, round=0):
            raise LookupError("on its node")

    check_training(ipfl.Task(Remote(), lambda shape, classes: nn.Linear(1, 1)), TrainConfig(), 0)
