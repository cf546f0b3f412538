"""The files of the paper's experiments: all there, all can be built, at every scale."""

import re
from typing import get_args

import pytest

from ipfl.errors import InputError
from ipfl.report.figure_list import FIGURES
from ipfl.reproduce.experiments import Scale, experiment_names, read_common, read_experiment
from ipfl.reproduce.measures import MEASURES
from ipfl.reproduce.plan import plan_experiment

NAMES = experiment_names()


def test_every_file_has_its_place():
    assert read_common().order == tuple(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_file_names_exists(name):
    experiment = read_experiment(name)
    assert set(experiment.measures) <= set(MEASURES)
    assert set(experiment.figures) <= set(FIGURES)
    for column, measures in experiment.printed.items():
        assert column in experiment.columns
        assert set(measures) <= set(experiment.measures)
        for methods in measures.values():
            assert set(methods) <= set(experiment.labels)
            assert all(re.match(r"-?\d", str(text)) for text in methods.values())
    assert experiment.ours
    tuned = read_experiment(experiment.tuning) if experiment.tuning else experiment
    assert tuned.tuning is None
    missing = read_common().grid.main.keys() & set(experiment.labels)
    assert missing <= {*tuned.labels, *tuned.also_tuned}, "methods that nobody tunes"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", get_args(Scale))
def test_every_run_can_be_built(name, scale):
    experiment = read_experiment(name)
    columns = plan_experiment(experiment, scale, [0])
    runs = [run for column in columns.values() for run in column.values()]
    assert len(runs) == len(experiment.columns) * len(experiment.labels)
    for run in runs:
        config = run.config
        if scale == "smoke":
            assert config.task.dataset == "digits"  # comes with the package
            assert config.rounds <= 8
        if scale == "paper" and experiment.task != "digits":
            assert config.task.clients == 100
            assert config.train.batch_size == 128
            assert config.train.lr == 0.01
            assert 150 <= config.rounds <= 500
        assert config.train.use_probe != config.clients.leave or run.label == experiment.reference


def test_tables_share_runs():
    """The convergence figure needs fewer new runs than it has: those of the accuracy table are the same."""

    def keys(name):
        columns = plan_experiment(read_experiment(name), "cpu", [0])
        return {run.key for column in columns.values() for run in column.values()}

    # 4 partitions × the methods of both: FedAvg, ours (3), Ditto, FedProx, FedALA, Per-FedAvg, FedProto.
    assert len(keys("convergence") & keys("emnist-accuracy")) == 4 * 9
    assert keys("reference-local") == keys("emnist-accuracy")


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'drift'"):
        read_experiment("drfit")
