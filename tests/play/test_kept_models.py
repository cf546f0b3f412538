"""Clients' models in the folder of a run on data of one's own: those that its last evaluation scored."""

from __future__ import annotations

import numpy as np
import pytest
from tests.small_runs import InterruptAfter, run_small

import ipfl
from ipfl.client.kept_predictors import kept_clients
from ipfl.training.sgd import evaluate

CLIENTS, ROUNDS = 5, 3
SETTINGS = {
    "rounds": ROUNDS,
    "seed": 3,
    "train": ipfl.TrainConfig(per_round=3, epochs=1),
    "adapt": {"epochs": "auto"},  # so that every client has a model of its own
}


@pytest.fixture(scope="module")
def task():
    """Five clients whose points lie in two clouds; the second half has the labels exchanged."""
    rng = np.random.default_rng(0)
    clients = []
    for client in range(CLIENTS):
        y = np.arange(20) % 2
        x = rng.normal(size=(20, 3)) + np.where(y == client // 3, 1.0, -1.0)[:, None]
        clients.append((x.astype(np.float32), y))
    return ipfl.Task.from_clients(clients, model="softmax")


def files(folder):
    found = (path for path in (folder / "predictors").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def whole(task, tmp_path_factory):
    """A run in which everyone is evaluated, and its kept files."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = run_small(task, "ipfl-plus", out, **SETTINGS)
    return result, out, files(out)


class TestWhatIsKept:
    def test_is_the_result_s_model_with_the_accuracy_that_is_reported(self, task, whole):
        result, out, _ = whole
        loaded = ipfl.load(out)
        for client in range(CLIENTS):
            kept = loaded.source.predictor(client)
            np.testing.assert_array_equal(kept, result.source.predictor(client))
            test = task.data.parts(client, ROUNDS - 1).test
            network = loaded.source.network
            score = evaluate(network, kept, network.points(test))
            assert score.accuracy == result.last.personalized[client]
        assert result.summary["evaluated_round"] == ROUNDS - 1

    @pytest.mark.parametrize("workers, evaluated", [(2, None), (0, 2)])
    def test_is_the_same_whoever_works_and_is_evaluated(self, task, tmp_path, whole, workers, evaluated):
        evaluate = ipfl.EvaluateConfig(clients=evaluated)
        run_small(task, "ipfl-plus", tmp_path / "run", workers=workers, evaluate=evaluate, **SETTINGS)
        assert files(tmp_path / "run") == whole[2]


class TestEndsWithTheSameFiles:
    def test_interrupted_and_resumed(self, task, tmp_path, whole):
        """The models of an interrupted run are those after its last round so far, and are replaced later."""
        out = tmp_path / "run"
        with pytest.raises(ipfl.Interrupted):
            run_small(task, "ipfl-plus", out, observer=InterruptAfter(ROUNDS - 2), **SETTINGS)
        assert kept_clients(out / "predictors") == tuple(range(CLIENTS))
        assert files(out) != whole[2]
        run_small(task, "ipfl-plus", out, resume=True, **SETTINGS)
        assert files(out) == whole[2]


def test_a_folder_that_keeps_none(task, tmp_path):
    """Nor does it keep those that it had: they are of fewer rounds."""
    out = tmp_path / "run"
    run_small(task, "ipfl-plus", out, **SETTINGS | {"rounds": 2})
    assert files(out)
    output = ipfl.RunOutput(out, resume=True, keep_models=False)
    config = ipfl.RunConfig(**SETTINGS)
    ipfl.run(task, ipfl.method("ipfl-plus"), config, engine=ipfl.local_engine(0), out=output, progress=False)
    assert not (out / "predictors").exists()
    with pytest.raises(ipfl.NotSupportedError, match="pass the task"):
        ipfl.load(out).model(0)
