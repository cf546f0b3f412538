"""`ipfl export`: models of a finished run as files, and what it refuses; `ipfl personalize` for newcomers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.test_cli import ipfl as command
from tests.cli.test_cli import refused
from tests.small_runs import run_small, small_task
from torch import nn

import ipfl
from ipfl.methods import DEFAULT
from ipfl.training.architectures import CNN
from ipfl.training.sgd import Mixture, NearestPrototype


@pytest.fixture(scope="module")
def task():
    return small_task(clients=4, model="cnn")


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    """A run of the default method with the paper's CNN, whose vectors have convolutions channels-last."""
    folder = tmp_path_factory.mktemp("export") / "run"
    run_small(task, DEFAULT, folder, rounds=2)
    return folder


@pytest.fixture(scope="module")
def points(task):
    return task.data.parts(2).test


class TestExport:
    def test_a_clients_model_in_a_plain_network(self, finished, points, tmp_path):
        done = command("export", finished, "2", "--out", tmp_path / "mine.safetensors")
        assert (done.exit_code, done.stdout) == (0, f"client 2: {tmp_path / 'mine.safetensors'}\n")
        plain = CNN((8, 8, 1), 10).eval()
        plain.load_state_dict(load_file(tmp_path / "mine.safetensors"))
        with torch.no_grad():
            scores = plain(torch.tensor(points.x).float().div(255).permute(0, 3, 1, 2))
        np.testing.assert_array_equal(scores.argmax(1).numpy(), ipfl.load(finished).predict(2, points.x))

    def test_all_clients_and_a_cluster(self, finished):
        for which in ([], ["cluster_1"]):
            done = command("export", finished, *which)
            assert done.exit_code == 0, done.output
        names = {path.name for path in (finished / "export").iterdir()}
        assert names == {*(f"client-{i}.safetensors" for i in range(4)), "cluster_1.safetensors"}
        assert "--overwrite" in refused("export", finished, "0")
        assert command("export", finished, "0", "--overwrite").exit_code == 0
        verified = command("ledger", "verify", finished)
        assert verified.exit_code == 0, "what was exported is no change of the run: " + verified.output

    def test_a_network_that_was_made_in_a_script(self, tmp_path, monkeypatch):
        """It cannot be found again; `--network` says where it is now."""
        task = ipfl.Task.from_clients(
            [(np.zeros((9, 3)), np.arange(9) % 2)] * 2,
            model=lambda shape, classes: nn.Linear(*shape, classes),
        )
        run_small(task, "fedavg", tmp_path / "run", rounds=1)
        says = refused("export", tmp_path / "run", "global")
        assert says.endswith("a function that cannot be imported: name it with --network module:callable\n")
        (tmp_path / "found_now.py").write_text(
            "from torch import nn\ndef network(shape, classes): return nn.Linear(*shape, classes)\n"
        )
        monkeypatch.chdir(tmp_path)
        for which in ("global", 1):
            done = command("export", "run", which, "--network", "found_now:network", "--out", "models")
            assert done.exit_code == 0, done.output
        assert set(load_file("models/client-1.safetensors")) == {"weight", "bias"}

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["mixture", "prototypes"])
    def test_onnx_takes_raw_points(self, finished, points, tmp_path, kind):
        onnxruntime = pytest.importorskip("onnxruntime")
        from ipfl.results.client_model import make_model
        from ipfl.results.model_files import export_model

        source = ipfl.load(finished).source
        vectors = [source.predictor(client) for client in (0, 1)]
        prototypes = np.random.default_rng(0).normal(size=(10, 128)).astype(np.float32)
        prototypes[3] = np.nan
        predictors = {
            "mixture": Mixture(tuple(vectors), (0.3, 0.7)),
            "prototypes": NearestPrototype(vectors[0], prototypes),
        }
        model = make_model(source.network, predictors[kind], "uint8")
        export_model(model, tmp_path / "model.onnx", "onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
        (scores,) = session.run(None, {"points": points.x})
        with torch.no_grad():
            expected = model(torch.tensor(points.x)).numpy()
        np.testing.assert_array_equal(np.isneginf(scores), np.isneginf(expected))
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        "arguments, says",
        [
            (["9"], "there is no client 9; there are 0 to 3"),
            (["cluster_7"], "unknown model 'cluster_7'"),
            (["1", "--format", "pickle"], "pickle"),
            (["--out", "summary.json"], "is a file, not a folder for 4 models"),
        ],
    )
    def test_refused(self, finished, monkeypatch, arguments, says):
        monkeypatch.chdir(finished)
        assert says in refused("export", ".", *arguments)

    def test_without_the_extra(self, finished, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert 'pip install "ipfl[onnx]"' in refused("export", finished, "1", "--format", "onnx")

    def test_a_network_that_a_format_cannot_hold(self, tmp_path):
        from ipfl.errors import InputError
        from ipfl.results.client_model import NetworkModel
        from ipfl.results.model_files import export_model
        from ipfl.training.network import Network

        class Odd(torch.nn.Linear):
            def forward(self, x):
                raise RuntimeError("not\nin here")

        network = Network(Odd(2, 2), (2,))
        model = NetworkModel(network, None, network.read())
        with pytest.raises(InputError, match="cannot be exported as onnx: not in here"):
            export_model(model, tmp_path / "odd.onnx", "onnx")
        assert not list(tmp_path.iterdir())


def test_no_model_for_newcomers(tmp_path):
    """One line; `tests/results/test_result_models.py` asks all methods."""
    task = small_task(clients=4)
    run_small(task, "local", tmp_path / "run", rounds=1)
    points = task.data.parts(0).test
    np.savez(tmp_path / "points.npz", x=points.x, y=points.y)
    out = tmp_path / "models/m"
    said = refused("personalize", tmp_path / "run", "--data", tmp_path / "points.npz", "--out", out)
    assert said == "error: not supported: local has no model for clients that it never met\n"
    assert not out.parent.exists()
