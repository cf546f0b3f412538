"""Figures of experiments, drawn from the numbers that are kept of runs by what `ipfl plot` draws with."""

from __future__ import annotations

import re
from pathlib import Path

from ipfl.errors import InputError
from ipfl.play.metrics import Evaluation, mean_and_std
from ipfl.report.figure_list import FIGURES, make_figure
from ipfl.report.run_set import RunSet
from ipfl.reproduce.experiments import Experiment, read_common
from ipfl.reproduce.results_file import ColumnRecord, ExperimentRecord, RunRecord
from ipfl.results.result import Result


def run_set(experiment: Experiment, record: ExperimentRecord, name: str) -> RunSet:
    """The runs of a column as figures want them, methods by the names of the paper."""
    column, names = record.columns[name], read_common().names
    labels = [label for label in experiment.labels if column.runs.get(label)]
    runs = {
        names.get(label, label): {seed: _as_result(run, column) for seed, run in column.runs[label].items()}
        for label in labels
    }
    reference = names.get(record.reference, record.reference)
    return RunSet(runs, reference if reference in runs else None)


def _as_result(run: RunRecord, column: ColumnRecord) -> Result:
    """A run as it was, but for the rounds before the last: of those only means over the clients are kept."""
    task = column.config["task"]
    last = max(point[0] for point in run.curve)
    evaluations = {
        number: Evaluation(number, run.accuracy if number == last else {0: mean}, {}, None, purity)
        for number, mean, purity, _ in run.curve
    }
    summary = {
        "dataset": task["dataset"],
        "partition": task["partition"],
        "clients": task["clients"],
        "personalized_accuracy": mean_and_std(run.accuracy),
        "cluster_accuracy": run.cluster_accuracy,
        "clusters": len(run.cluster_accuracy[0]) if run.cluster_accuracy else None,
    }
    return Result(summary, [], evaluations, None)


def picture_name(experiment: Experiment, column: str, figure: str) -> str:
    """Of a file."""
    parts = [experiment.name, column, figure]
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()) for part in parts if part) + ".png"


def pictures(experiment: Experiment, record: ExperimentRecord, column: str) -> list[str]:
    """The figures of a column for which there are numbers."""
    shown = run_set(experiment, record, column)
    return [figure for figure in experiment.figures if shown.runs and FIGURES[figure].has_data(shown)]


def save_pictures(experiment: Experiment, record: ExperimentRecord, folder: Path) -> list[Path]:
    """Draws all figures of an experiment; returns the files."""
    from ipfl.figure_style import save_figure

    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for column in record.columns:
            shown = run_set(experiment, record, column)
            for figure in pictures(experiment, record, column):
                files.append(folder / picture_name(experiment, column, figure))
                save_figure(make_figure(figure, shown), files[-1])
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return files
