"""TensorBoard's event files and MLflow's store, read back with their own readers."""

import json
import math
import sys
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from tests.cli.test_cli import ipfl, refused

from ipfl.ledger.lines import check_line
from ipfl.play.tracking import round_figures

TINY = ["--workers", "0", "--set", "task.model=softmax", "--clients", "4", "--quiet"]


def read_scalars(folder):
    """(step, value) of all figures in a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, events


def lines_of(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [check_line(0, line) for line in lines]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of two rounds that is extended to three, told to both."""
    folder = tmp_path_factory.mktemp("tracked")
    for name in ("tensorboard", "mlflow"):
        out = folder / f"by-{name}"
        assert ipfl("run", *TINY, "--rounds", 2, "--track", name, "--out", out).exit_code == 0
        done = ipfl("run", "--resume", out, "--rounds", 3, "--workers", 0, "--quiet", "--track", name)
        assert done.exit_code == 0, done.output
        assert ipfl("ledger", "verify", out).exit_code == 0  # nothing was added to the run's own files
    return folder


def test_figures_by_hand():
    """Two seats in cluster 3, one delivered; 30 tokens bid for it, 10 of them back. Clusters are 0 and 3."""
    line = {
        "seats": [[0, 3, "random", True, False], [3, 3, "random", False, False]],
        "transfers": [["bid", 0, -6, 30, 3, 0], ["refund", -6, 0, 10, 3, 0]],
        "evaluation": {"personalized_accuracy": {"mean": 0.5, "std": 0}, "pma": {"mean": -0.1, "std": 0},
                       "cluster_accuracy": [[0.2, 0.4]], "assessed_models": ["cluster_0", "cluster_3"],
                       "purity": None},
        "economy": {"gini": 0.25}, "bytes_up": 7, "bytes_down": 9, "events": [], "round": 0,
    }  # fmt: skip
    assert round_figures(check_line(0, line)) == {
        "accuracy/personalized": 0.5, "pma/mean": -0.1,
        "cluster_0/accuracy_on_distribution_0": 0.2, "cluster_3/accuracy_on_distribution_0": 0.4,
        "cluster_3/trained": 1, "clients/asked": 2,
        "tokens/moved": 40, "tokens/bid": 30, "tokens/refund": 10,
        "cluster_3/bid_tokens": 30, "cluster_3/refund_tokens": 10,
        "economy/gini": 0.25, "bytes/up": 7, "bytes/down": 9, "events": 0,
    }  # fmt: skip


def test_tensorboard(runs):
    scalars, events = read_scalars(runs / "tensorboard" / "by-tensorboard")
    for line in lines_of(runs / "by-tensorboard"):
        for name, value in round_figures(line).items():
            assert any(
                s == line["round"] and math.isclose(v, value, rel_tol=1e-6) for s, v in scalars[name]
            ), name
    assert [step for step, _ in scalars["tokens/moved"]] == [0, 1, 2]
    assert "config/text_summary" in events.Tags()["tensors"]
    (told, *_) = events.Tensors("config/text_summary")
    assert b"| task.clients | 4 |" in told.tensor_proto.string_val[0]


def test_mlflow(runs, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=(runs / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("ipfl").experiment_id])  # resumed: still one
    assert run.info.status == "FINISHED"
    assert run.data.params["task.clients"] == "4"
    for line in lines_of(runs / "by-mlflow"):
        for name, value in round_figures(line).items():
            history = {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}
            assert history[line["round"]] == pytest.approx(value), name
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept == {"summary.json", "metrics.jsonl", "model"}
    place = url2pathname(urlparse(run.info.artifact_uri).path)
    with open(f"{place}/summary.json") as file:
        assert json.load(file)["rounds"] == 3


def test_a_comparison_tells_pma(tmp_path):
    methods = ["--methods", "fedprox:mu=0.5", "--rounds", 1]
    done = ipfl("compare", *TINY, *methods, "--track", "tensorboard", "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    scalars, _ = read_scalars(tmp_path / "tensorboard" / "c" / "fedprox+mu=0.5" / "seed-0")
    compared = json.loads((tmp_path / "c" / "compare.json").read_text())
    pma = compared["methods"]["fedprox:mu=0.5"]["pma"]["mean"]
    assert scalars["pma/mean"] == [(0, pytest.approx(pma))]
    of_reference, _ = read_scalars(tmp_path / "tensorboard" / "c" / "fedavg" / "seed-0")
    assert "pma/mean" not in of_reference
    assert "global/accuracy_on_distribution_0" in of_reference
    assert not [name for name in of_reference if name.startswith("cluster_")]


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    told = refused("run", *TINY, "--track", "tensorboard", "--out", tmp_path / "out")
    assert 'pip install "ipfl[tensorboard]"' in told
    assert not (tmp_path / "out").exists()
