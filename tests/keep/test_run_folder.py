"""The files of a run, which are all that a script has to read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.small_runs import run_small, small_task

from ipfl.config.run_config import EvaluateConfig, RunConfig
from ipfl.errors import InputError
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.training.architectures import Softmax

NAMES = ("fedavg", "ipfl-plus", "local")


def strict(text: str):
    """JSON as the standard has it: Python alone would take NaN and Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def task():
    return small_task(unseen=1)


def run_three_rounds(task, name, out, **options):
    return run_small(
        task, name, out, **({"rounds": 3, "seed": 4, "evaluate": EvaluateConfig(every=2)} | options)
    )


@pytest.fixture(scope="module")
def done(task, tmp_path_factory):
    """Folders of runs of a method with one model, with clusters, and with none."""
    folder = tmp_path_factory.mktemp("runs")
    for name in NAMES:
        run_three_rounds(task, name, folder / name)
    return folder


def test_summary_of_one_model(done):
    summary = strict((done / "fedavg" / "summary.json").read_text())
    assert summary["method"] == "fedavg"
    config = RunConfig(rounds=3, seed=4, evaluate=EvaluateConfig(every=2)).model_dump(mode="json")
    task = summary["config"].pop("task")
    assert summary["config"] == {**config, "method": {"name": "fedavg"}}
    assert (task["dataset"], task["model"]) == (summary["dataset"], summary["model"])
    # One model for all: what is deployed is the global model.
    assert summary["global_accuracy"] == summary["personalized_accuracy"]
    assert np.shape(summary["cluster_accuracy"]) == (2, 1)
    for absent in ("clusters", "purity", "pma", "opt_outs", "participation_rate"):
        assert summary[absent] is None, absent


class TestMetrics:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_line_of_json_for_every_round(self, done, name):
        text = (done / name / "metrics.jsonl").read_text()
        assert text.endswith("\n")
        lines = [strict(line) for line in text.splitlines()]
        assert [line["round"] for line in lines] == [0, 1, 2]
        assert ["evaluation" in line for line in lines] == [False, True, True]
        summary = strict((done / name / "summary.json").read_text())
        assert lines[-1]["evaluation"]["personalized_accuracy"] == summary["personalized_accuracy"]

    def test_traffic(self, done, task):
        """FedAvg: half of 5 clients, 2, get the model in every round and send it back with {"n": 16}."""
        size = 4 * task.network(0).size
        for line in map(strict, (done / "fedavg" / "metrics.jsonl").read_text().splitlines()):
            assert line["bytes_down"] == 2 * size
            assert line["bytes_up"] == 2 * (size + len('{"n": 16}'))
        summary = strict((done / "fedavg" / "summary.json").read_text())
        assert summary["bytes_down"] == 3 * 2 * size


class TestModels:
    def test_reproduce_the_global_accuracy_in_plain_torch(self, done, task):
        module = Softmax(task.data.input_shape, task.data.classes)
        module.load_state_dict(load_file(done / "fedavg" / "model" / "global.safetensors"))
        shares = []
        for client in task.data.clients:
            test = task.data.parts(client, 2).test
            batch = torch.from_numpy(test.x.transpose(0, 3, 1, 2).astype(np.float32) / 255)
            with torch.no_grad():
                shares.append(float(np.mean(module(batch).argmax(1).numpy() == test.y)))
        summary = strict((done / "fedavg" / "summary.json").read_text())
        assert summary["global_accuracy"]["mean"] == pytest.approx(np.mean(shares))
        assert summary["global_accuracy"]["std"] == pytest.approx(np.std(shares))

    def test_one_file_for_each_server_model(self, done):
        files = {name: sorted(file.name for file in (done / name / "model").glob("*")) for name in NAMES}
        assert files == {
            "fedavg": ["global.safetensors"],
            "ipfl-plus": ["cluster_0.safetensors", "cluster_1.safetensors"],
            "local": [],
        }


class TestFolder:
    @pytest.mark.parametrize("left", ["metrics.jsonl", "summary.json"])
    def test_a_run_is_not_overwritten_by_accident(self, task, tmp_path, left):
        (tmp_path / left).write_text("precious")
        with pytest.raises(InputError, match="already holds a run"):
            run_three_rounds(task, "fedavg", tmp_path)
        assert (tmp_path / left).read_text() == "precious"

    def test_overwriting_leaves_nothing_of_the_old_run(self, task, tmp_path):
        run_three_rounds(task, "ditto", tmp_path, rounds=4)
        (tmp_path / "model" / "cluster_0.safetensors").touch()
        assert any((tmp_path / "memory").iterdir())
        (tmp_path / "notes.txt").write_text("mine")
        run_three_rounds(task, "fedavg", tmp_path, rounds=2, overwrite=True)
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
        assert [file.name for file in (tmp_path / "model").iterdir()] == ["global.safetensors"]
        assert strict((tmp_path / "summary.json").read_text())["method"] == "fedavg"
        assert not (tmp_path / "memory").exists()
        assert (tmp_path / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("name", ["model", "checkpoint", "memory/0"])
    def test_what_a_link_leads_to_is_not_touched(self, task, tmp_path, name):
        """A folder of a run may come from somebody else, who must not remove or move files of the reader."""
        elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
        run_three_rounds(task, "ditto", run, rounds=2)
        shutil.move(run / name, elsewhere)
        (elsewhere / "0.safetensors").write_text("mine")
        (elsewhere / "round-0.safetensors").write_text("mine")
        (run / name).symlink_to(elsewhere)
        before = sorted(elsewhere.iterdir())
        with pytest.raises(InputError, match="is a link to a folder elsewhere"):
            run_three_rounds(task, "ditto", run, resume=True)
        run_three_rounds(task, "ditto", run, overwrite=True)
        assert sorted(elsewhere.iterdir()) == before
        assert not (run / name).is_symlink()

    def test_a_file_where_the_folder_should_be(self, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(InputError, match="is a file, not a folder"):
            RunFolder(RunOutput(tmp_path / "out"))
