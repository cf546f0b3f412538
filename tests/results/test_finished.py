"""A finished run gives models to newcomers, by Python and by `ipfl personalize`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.data import load_dataset
from ipfl.errors import InputError
from ipfl.results.finished import FinishedRun
from ipfl.training.architectures import MLP


def command(*arguments):
    return CliRunner().invoke(app, ["personalize", *map(str, arguments)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a short run of the default method on the default task."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = ["rounds=12", "task.model=mlp", "train.per_round=12", "train.lr=0.3"]
    sets = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "--workers", "0", "--quiet", "--out", str(folder), *sets])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Somebody's digits, upright labels: forty to say what is wanted, the rest to see whether it came."""
    digits = load_dataset("digits")
    path = tmp_path_factory.mktemp("points") / "points.npz"
    np.savez(
        path, x=digits.x_test[:40], y=digits.y_test[:40], x_test=digits.x_test[40:], y_test=digits.y_test[40:]
    )
    return path


def test_newcomer_gets_an_ordinary_state_dict_for_its_own_distribution(finished, points, tmp_path):
    """One model for both distributions gives about half; the right cluster's model is far above it."""
    done = command(finished, "--data", points, "--out", tmp_path / "model.safetensors")
    assert done.exit_code == 0, done.output
    run, data = FinishedRun.open(finished), np.load(points)
    module = MLP((8, 8, 1), 10)
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    module.eval()
    with torch.no_grad():
        guess = module(run.network.inputs(run.network.put(data["x_test"]))).argmax(1).numpy()
    accuracy = float((guess == data["y_test"]).mean())
    assert accuracy > 0.7
    assert f"accuracy on x_test: {100 * accuracy:.1f} %" in done.stdout
    assert run.accuracy(run.personalize(data["x"], data["y"]), data["x_test"], data["y_test"]) == accuracy


def test_grey_images_may_come_without_a_channel_axis(finished, points):
    run, data = FinishedRun.open(finished), np.load(points)
    flat = run.personalize(data["x"][..., 0], data["y"])
    np.testing.assert_array_equal(flat, run.personalize(data["x"], data["y"]))


class TestBadInput:
    def refused(self, *arguments) -> str:
        done = command(*arguments)
        assert done.exit_code == 2, done.output
        assert done.stderr.count("\n") == 1
        return done.stderr

    def test_no_run(self, tmp_path, points):
        assert "holds no finished run" in self.refused(tmp_path, "--data", points, "--out", tmp_path / "m")

    def test_no_points(self, finished, tmp_path):
        (tmp_path / "empty.npz").write_bytes(b"PK")
        says = self.refused(finished, "--data", tmp_path / "empty.npz", "--out", tmp_path / "m")
        assert "cannot read" in says
        np.savez(tmp_path / "other.npz", images=np.zeros(2))
        says = self.refused(finished, "--data", tmp_path / "other.npz", "--out", tmp_path / "m")
        assert "has no x and no y; it holds images" in says
        assert not (tmp_path / "m").exists()

    def test_model_file_is_kept(self, finished, points, tmp_path):
        (tmp_path / "m").write_text("mine")
        assert "--overwrite" in self.refused(finished, "--data", points, "--out", tmp_path / "m")
        assert (tmp_path / "m").read_text() == "mine"


def test_a_run_that_predicts_numbers(tmp_path):
    """Units and learning rate come from the folder: a newcomer gets a model for its own numbers."""
    x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    y = 1000 + 100 * x[:, 0]
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    task = ["dataset=npz", f"path={tmp_path / 'numbers.npz'}", "predict=regression", "distributions=iid"]
    settings = [f"task.{one}" for one in (*task, "clients=4", "model=softmax")]
    settings += ["rounds=4", "method.name=finetune", "train.lr_decay=cosine", "train.lr=0.2"]
    sets = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(
        app, ["run", "--workers", "0", "--quiet", "--out", str(tmp_path / "run"), *sets]
    )
    assert done.exit_code == 0, done.output
    run = FinishedRun.open(tmp_path / "run")
    assert run.network.target.mean == pytest.approx((y.mean(),), rel=0.05)
    model = run.personalize(x[:20], y[:20])
    # exp(−ℓ) of one that says the mean is about 0.58.
    assert run.accuracy(model, x[20:40], y[20:40]) > 0.7
    with pytest.raises(InputError, match="expected 1 values to predict per point, not 2"):
        run.accuracy(model, x[:5], np.ones((5, 2)))


@pytest.mark.parametrize("newcomers", [False, True])
def test_the_last_step_is_for_newcomers_only_if_asked_for(points, tmp_path, newcomers):
    """Those of `task.unseen` and of `ipfl personalize`; members have it, also from the files of the run."""
    out, task = tmp_path / "run", ipfl.Task.load(clients=6, samples=20, unseen=1, model="softmax")
    config = {"rounds": 1, "adapt": {"newcomers": newcomers}}
    engine = ipfl.local_engine(workers=0)
    ran = ipfl.run(task, "fedavg+adapt", config, engine=engine, out=out, progress=False)
    plain = ipfl.run(task, "fedavg", {"rounds": 1}, engine=engine, progress=False)
    run, data, (unseen,) = FinishedRun.open(out), np.load(points), task.data.unseen
    shared = plain.models["global"]
    assert np.array_equal(ran.models["global"], shared)
    assert np.array_equal(run.personalize(data["x"], data["y"]), shared) != newcomers
    assert np.array_equal(run.predictor(unseen), shared) != newcomers
    assert not np.array_equal(run.predictor(0), shared)
    assert ran.summary["method"] == "fedavg+adapt"
