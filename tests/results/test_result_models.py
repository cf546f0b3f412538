"""Clients get their models: ordinary modules that take raw points, from a result and from its folder."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from tests.small_nets import small_model
from tests.small_runs import InterruptAfter, run_small, small_task
from torch import nn

import ipfl
from ipfl.errors import InputError, NotSupportedError
from ipfl.methods import METHODS, method_class
from ipfl.results.client_model import MixtureModel, NetworkModel, PrototypeModel

NO_NEWCOMERS = {"fedamp", "fedproto", "local"}
"""Methods whose modules say that a client that never took part cannot be served."""


class Net(nn.Module):
    """All that can go wrong on the way: convolutions, BatchNorm, tied weights, a buffer that is not saved."""

    def __init__(self, shape, classes):
        super().__init__()
        height, width, channels = shape
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.first = nn.Linear(6 * height * width, 12)
        self.second, self.third = nn.Linear(12, 12), nn.Linear(12, 12)
        self.third.weight = self.second.weight
        self.out = nn.Linear(12, classes)
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1) * self.scale
        return self.out(torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x)))))))


def coloured_points(n, seed):
    """Images 6×6×3 of noise in which one corner of three is bright: the class."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 120, (n, 6, 6, 3)).astype(np.uint8), rng.integers(0, 3, n)
    for corner, (row, column, channel) in enumerate([(0, 0, 0), (0, 4, 1), (4, 0, 2)]):
        x[y == corner, row : row + 2, column : column + 2, channel] = 250
    return x, y


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """A run on images of one's own, with a network of one's own, and its folder."""
    task = ipfl.Task.from_clients([coloured_points(90, seed) for seed in range(4)], model=Net)
    out = tmp_path_factory.mktemp("coloured") / "run"
    train = ipfl.TrainConfig(lr=0.1, epochs=4, per_round=4, batch_size=16)
    return task, run_small(task, "fedavg", out, rounds=8, train=train), out


def accuracy(module, inputs, y):
    module.eval()
    with torch.no_grad():
        return float((module(inputs).argmax(1).numpy() == y).mean())


class TestPlainNetworks:
    """State dicts that leave load into the user's own network, and are as good there."""

    X, Y = coloured_points(300, 99)
    INPUTS = torch.tensor(X).float().div(127.5).sub(1).permute(0, 3, 1, 2)
    """As docs/own-data.md says: colours from −1 to 1, channels first."""

    def test_same_accuracy_in_a_plain_network(self, coloured):
        _, result, _ = coloured
        model = result.model(2)
        assert accuracy(model, torch.tensor(self.X), self.Y) > 0.9, "or nothing is tested here"
        plain = Net((6, 6, 3), 3)
        plain.load_state_dict(model.state_dict())
        assert accuracy(plain, self.INPUTS, self.Y) == accuracy(model, torch.tensor(self.X), self.Y)

    def test_tied_weights_stay_tied(self, coloured):
        model = coloured[1].model(0)
        assert model.network.third.weight is model.network.second.weight
        state = model.state_dict()
        assert torch.equal(state["third.weight"], state["second.weight"])
        assert "scale" not in state
        assert state["norm.num_batches_tracked"].dtype == torch.int64

    def test_inside_another_module(self, coloured):
        """Names have the prefix of the place, and a state goes out and in."""
        outer = nn.Sequential(coloured[1].model("global"), nn.Softmax(1))
        assert "0.conv.weight" in outer.state_dict()
        outer.load_state_dict(outer.state_dict())

    def test_it_can_be_trained_further(self, coloured):
        model = coloured[1].model(0)
        before = model.network.conv.weight.detach().clone()
        nn.functional.cross_entropy(model(torch.tensor(self.X)), torch.tensor(self.Y)).backward()
        with torch.no_grad():
            model.network.conv.weight -= model.network.conv.weight.grad
        assert not torch.equal(model.network.conv.weight, before)
        again = coloured[1].model(0).network.conv.weight
        assert torch.equal(again, before), "each call gives a new one"


@pytest.mark.parametrize("name", METHODS)
def test_the_model_is_what_was_evaluated(name, tmp_path):
    """Of every method, client and kind of predictor: the accuracy on test data is the recorded one.

    From the result, and from its folder without data; the network is the only thing that is looked up.
    """
    given = small_task(clients=5)
    own = [
        {"train": (parts.train.x, parts.train.y), "test": (parts.test.x, parts.test.y)}
        for parts in map(given.data.parts, range(5))
    ]
    model = small_model(name) if method_class(name).needs_parts else "mlp"
    task = ipfl.Task.from_clients(own, model=model, unseen=[4])
    result = run_small(task, name, tmp_path / "run", rounds=2)
    assert result.last is not None
    recorded = {**result.last.personalized, **result.last.unseen}
    for one in (result, ipfl.load(tmp_path / "run")):
        for client, expected in recorded.items():
            test = task.data.parts(client, 1).test
            assert float((one.predict(client, test.x) == test.y).mean()) == expected
        goal = task.data.parts(0).goal
        if name in NO_NEWCOMERS:
            with pytest.raises(NotSupportedError, match=r"^not supported"):
                one.personalize(goal.x, goal.y)
        else:
            assert one.personalize(goal.x, goal.y)(torch.tensor(goal.x)).shape == (len(goal), 10)
    kinds = {"fedem": MixtureModel, "fedproto": PrototypeModel}
    assert type(result.model(0)) is kinds.get(name, NetworkModel)


def same_parameters(one, other, client):
    here, there = one.model(client).state_dict(), other.model(client).state_dict()
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run whose data a config names, with a data seed that is not the run's."""
    task, out = small_task(seed=5), tmp_path_factory.mktemp("named") / "run"
    return task, run_small(task, "finetune", out, rounds=2, seed=1), out


POINTS = np.zeros((2, 8, 8, 1), np.uint8)


class TestNamedData:
    def test_from_the_folder_the_data_is_made_again(self, named):
        """FineTune trains each client's model on its data: it must be the same data, and the same stream."""
        task, result, out = named
        assert not (out / "predictors").exists()
        loaded, other = ipfl.load(out), run_small(task, "finetune", rounds=2, seed=1, workers=2)
        for client in task.data.clients:
            assert same_parameters(result, loaded, client)
            assert same_parameters(result, other, client), "any number of workers makes the same models"

    def test_same_history_models_and_tables(self, named):
        _, result, out = named
        loaded = ipfl.load(out)
        assert json.loads(json.dumps(loaded.history)) == json.loads(json.dumps(result.history))
        assert loaded.last == result.last
        assert loaded.models["global"].tobytes() == result.models["global"].tobytes()
        for table in ("clients", "rounds", "ledger"):
            assert getattr(loaded, table)().equals(getattr(result, table)())

    def test_grey_images_and_lists(self, named):
        task, result, _ = named
        x = task.data.parts(0).test.x
        assert x.shape[1:] == (8, 8, 1)
        expected = result.predict(0, x)
        for given in (x[..., 0], x.tolist(), torch.tensor(x)):
            np.testing.assert_array_equal(result.predict(0, given), expected)
        shares = result.predict_proba(0, x)
        np.testing.assert_array_equal(shares.argmax(1), expected)
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)

    @pytest.mark.parametrize(
        "which, x, says",
        [
            (0, np.zeros((2, 9, 9, 1), np.uint8), r"expected points \(n, 8, 8, 1\), not \(2, 9, 9, 1\)"),
            (0, np.zeros((2, 8, 8, 1)), "the points of this run are uint8, these are float64"),
            (0, np.full((2, 8, 8, 1), 300), "do not fit the run's points"),
            (0, np.array([["a"]]), "expected points of numbers"),
            (6, POINTS, "there is no client 6; there are 0 to 5"),
            ("cluster_0", POINTS, r"unknown model 'cluster_0' \(known: global\)"),
        ],
    )
    def test_what_does_not_fit(self, named, which, x, says):
        with pytest.raises(InputError, match=says):
            named[1].predict(which, x)


class TestOwnNetworks:
    def test_one_that_can_be_imported_is_found(self, coloured):
        _, result, out = coloured
        assert result.summary["model"] == f"{__name__}:Net"
        x, _ = coloured_points(20, 5)
        np.testing.assert_array_equal(ipfl.load(out).predict(1, x), result.predict(1, x))

    def test_one_that_cannot_is_asked_for(self, tmp_path):
        rng = np.random.default_rng(0)
        clients = [(rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for _ in range(3)]

        def network(shape, classes):
            return nn.Linear(*shape, classes)

        task = ipfl.Task.from_clients(clients, model=network)
        result = run_small(task, "ditto", tmp_path / "run", rounds=1)
        x = clients[0][0]
        with pytest.raises(NotSupportedError, match="pass it, such as"):
            ipfl.load(tmp_path / "run").model(1)
        for given in ({"model": network}, {"task": task}):
            np.testing.assert_array_equal(
                ipfl.load(tmp_path / "run", **given).predict(1, x), result.predict(1, x)
            )

    def test_a_task_that_is_another(self, coloured, named):
        with pytest.raises(InputError, match="the task has points of shape"):
            ipfl.load(coloured[2], task=named[0]).model("global")


class TestKept:
    """Files of what clients predict with, for data that cannot be found again."""

    @pytest.mark.parametrize("damage", ["vector", "client", "missing"])
    def test_damaged(self, coloured, tmp_path, damage):
        import shutil

        copy = tmp_path / "run"
        shutil.copytree(coloured[2], copy)
        vector = next((copy / "predictors" / "vectors").iterdir())
        if damage == "vector":
            vector.write_bytes(b"\x00" * 30)
        elif damage == "client":
            shutil.copy(vector, copy / "predictors" / "1.safetensors")
        else:
            vector.unlink()
        with pytest.raises(InputError, match=re.escape(str(copy / "predictors"))):
            ipfl.load(copy).model(1)


def test_an_interrupted_run_has_models_of_its_last_round(tmp_path):
    task = small_task()
    with pytest.raises(ipfl.Interrupted) as stopped:
        run_small(task, "ditto", tmp_path / "run", rounds=5, observer=InterruptAfter(1))
    two = run_small(task, "ditto", rounds=2)
    for one in (stopped.value.result, ipfl.load(tmp_path / "run")):
        assert same_parameters(one, two, 3)


def test_a_run_without_its_checkpoint(tmp_path):
    run_small(small_task(), "ditto", tmp_path / "run", rounds=1)
    (tmp_path / "run" / "checkpoint" / "round-0.safetensors").unlink()
    with pytest.raises(InputError, match="is missing: resume the run"):
        ipfl.load(tmp_path / "run").model(0)


def test_clients_with_names(tmp_path):
    rng = np.random.default_rng(0)
    given = {
        name: (rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in ("north", "south")
    }
    task = ipfl.Task.from_clients(given, model="softmax")
    result, x = run_small(task, "ditto", tmp_path / "run", rounds=1), given["south"][0]
    for one in (result, ipfl.load(tmp_path / "run")):
        np.testing.assert_array_equal(one.predict_proba("south", x), one.predict_proba(1, x))
        assert one.model("north")
        with pytest.raises(InputError, match="unknown model 'west'"):
            one.model("west")
