"""Clients' models in the folder of a run on data of one's own: those of its last evaluation, made once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.play.killed_runs import die_at_call, is_killed
from tests.small_runs import InterruptAfter, run_small

import ipfl
from ipfl.client import kept_predictors
from ipfl.client.kept_predictors import kept_clients
from ipfl.results.kept_models import KeptModels
from ipfl.training.sgd import evaluate

CLIENTS, ROUNDS = 5, 3
SETTINGS = {
    "rounds": ROUNDS,
    "seed": 3,
    "train": ipfl.TrainConfig(per_round=3, epochs=1),
    "adapt": {"epochs": "auto"},  # so that every client has a model of its own
}
SOME = ipfl.EvaluateConfig(clients=2)


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


@pytest.fixture
def calls(monkeypatch):
    """How often each client was personalized after each round; with a last step that is a training."""
    counted = Counter()
    cls = type(ipfl.method("ipfl-plus"))
    personalize = cls.personalize

    def counting(self, offer, mine, me):
        counted[me.round, me.id] += 1
        return personalize(self, offer, mine, me)

    monkeypatch.setattr(cls, "personalize", counting)
    return counted


class Notes(InterruptAfter):
    """Collects what a run says beside its rounds; may interrupt it."""

    def __init__(self, round=-1):
        super().__init__(round)
        self.texts = []

    def note(self, text):
        """Keeps it."""
        self.texts.append(text)


def files(folder):
    found = (path for path in (folder / "predictors").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def whole(task, tmp_path_factory):
    """A run in which everyone is evaluated, and its kept files."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = run_small(task, "ipfl-plus", out, **SETTINGS)
    return result, out, files(out)


class TestMadeOnce:
    def test_everyone_is_evaluated(self, task, calls, tmp_path):
        notes = Notes()
        run_small(task, "ipfl-plus", tmp_path / "run", observer=notes, **SETTINGS)
        assert {client: calls[ROUNDS - 1, client] for client in range(CLIENTS)} == dict.fromkeys(
            range(CLIENTS), 1
        )
        assert kept_clients(tmp_path / "run" / "predictors") == tuple(range(CLIENTS))
        assert notes.texts == []

    def test_some_are_evaluated_and_it_is_said_that_others_are_made(self, task, calls, tmp_path, whole):
        notes = Notes()
        run_small(task, "ipfl-plus", tmp_path / "run", observer=notes, evaluate=SOME, **SETTINGS)
        assert all(calls[ROUNDS - 1, client] == 1 for client in range(CLIENTS))
        said = "making the models of 3 clients, which the last evaluation did not leave in the folder"
        assert notes.texts == [said]
        assert files(tmp_path / "run") == whole[2]

    def test_a_run_that_stops_early(self, task, calls, tmp_path):
        """Nothing is learned: round 0 stays the best, and the run ends when 2 − 0 ≥ 2."""
        notes = Notes()
        result = run_small(
            task,
            "ipfl-plus",
            tmp_path / "run",
            observer=notes,
            patience=2,
            evaluate={"every": 1},
            rounds=9,
            train={"lr": 1e-9, "per_round": 3},
        )
        assert len(result.history) == 3
        assert all(calls[2, client] == 1 for client in range(CLIENTS))
        assert notes.texts == []
        for client in range(CLIENTS):
            kept = ipfl.load(tmp_path / "run").source.predictor(client)
            np.testing.assert_array_equal(kept, result.source.predictor(client))


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

    def test_is_the_same_in_worker_processes(self, task, tmp_path, whole):
        run_small(task, "ipfl-plus", tmp_path / "run", workers=2, **SETTINGS)
        assert files(tmp_path / "run") == whole[2]

    @pytest.mark.parametrize("evaluated", [None, 2])
    def test_no_more_than_a_limit(self, task, tmp_path, whole, monkeypatch, evaluated):
        """Room for three vectors: as many clients as have no more than three, in the order of their ids."""
        network = task.network(0)
        monkeypatch.setattr(kept_predictors, "MAX_KEPT_BYTES", 3 * 4 * network.size)
        vectors, room = set(), 0
        for client in range(CLIENTS):
            vectors |= {*kept_predictors.kept_vectors(whole[1] / "predictors", client)}
            room += len(vectors) <= 3
        assert 0 < room < CLIENTS
        run_small(
            task, "ipfl-plus", tmp_path / "run", evaluate=ipfl.EvaluateConfig(clients=evaluated), **SETTINGS
        )
        kept = files(tmp_path / "run")
        assert kept.items() <= whole[2].items()
        assert kept_clients(tmp_path / "run" / "predictors") == tuple(range(room))
        assert sum("vectors" in name for name in kept) <= 3


class TestEndsWithTheSameFiles:
    @pytest.mark.parametrize("after", [False, True])
    def test_killed_between_the_last_evaluation_and_the_results(self, task, tmp_path, whole, after):
        out = tmp_path / "run"
        assert is_killed(
            task, "ipfl-plus", out, lambda: die_at_call(KeptModels, "complete", 1, after=after), **SETTINGS
        )
        assert not (out / "summary.json").exists()
        notes = Notes()
        run_small(task, "ipfl-plus", out, resume=True, observer=notes, **SETTINGS)
        assert files(out) == whole[2]
        assert "5 clients" in notes.texts[0]

    def test_interrupted_and_resumed(self, task, tmp_path, whole):
        """The models of an interrupted run are those after its last round so far, and are replaced later."""
        out, notes = tmp_path / "run", Notes(ROUNDS - 2)
        with pytest.raises(ipfl.Interrupted):
            run_small(task, "ipfl-plus", out, observer=notes, **SETTINGS)
        assert kept_clients(out / "predictors") == tuple(range(CLIENTS))
        assert files(out) != whole[2]
        assert len(notes.texts) == 1
        run_small(task, "ipfl-plus", out, resume=True, **SETTINGS)
        assert files(out) == whole[2]


def test_a_folder_that_keeps_none(task, calls, tmp_path):
    """Nor does it keep those that it had: they are of fewer rounds."""
    out = tmp_path / "run"
    run_small(task, "ipfl-plus", out, **SETTINGS | {"rounds": 2})
    assert files(out)
    calls.clear()
    output = ipfl.RunOutput(out, resume=True, keep_models=False)
    config = ipfl.RunConfig(evaluate=SOME, **SETTINGS)
    ipfl.run(task, ipfl.method("ipfl-plus"), config, engine=ipfl.local_engine(0), out=output, progress=False)
    assert not (out / "predictors").exists()
    assert sum(calls[ROUNDS - 1, client] for client in range(CLIENTS)) == 2
    with pytest.raises(ipfl.NotSupportedError, match="pass the task"):
        ipfl.load(out).model(client=0)
