"""What a run tells TensorBoard or MLflow: figures of every round, its settings, and at the end its files.

Nothing is written into the run's folder, whose files the ledger covers, but beside it: `tensorboard/` and
`mlflow/` hold all runs of the folder that they are in. Both packages are extras, imported when needed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from ipfl.core import NO_CLUSTER, cluster_name
from ipfl.errors import require_extra
from ipfl.keep.file_names import METRICS_FILE, SERVER_MODELS, SUMMARY_FILE
from ipfl.play.metrics import assessed_models
from ipfl.results.overview import flat_settings
from ipfl.results.result import Line, Observer, Result

TrackerName = Literal["tensorboard", "mlflow"]
ACCURACIES = {
    "accuracy/personalized": "personalized_accuracy",
    "accuracy/global": "global_accuracy",
    "accuracy/unseen": "unseen_accuracy",
    "pma/mean": "pma",
}
"""Name of a figure → key of the evaluation, a mean over clients."""
FILE_STORE = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow wants to be told that a folder is meant, and not a database."""
MAX_BATCH = 100
"""Settings that MLflow takes at once."""
MAX_SETTING = 500
"""Characters of a setting that MLflow is told."""


class Tracker(Observer, Protocol):
    """An observer that is also told how the run ended."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """All files of the run are written."""


def round_figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one round: accuracies and PMA if it was evaluated, tokens, clusters, traffic."""
    figures = dict(_evaluation_figures(line.get("evaluation") or {}))
    trained, tokens = Counter[str](), Counter[str]()
    for seat in line["seats"]:
        where = "clients" if seat.cluster == NO_CLUSTER else cluster_name(seat.cluster)
        trained[f"{where}/trained"] += int(seat.delivered)
    for transfer in line.get("transfers", ()):
        tokens["tokens/moved"] += transfer.amount
        tokens[f"tokens/{transfer.kind}"] += transfer.amount
        if transfer.cluster != NO_CLUSTER:
            tokens[f"{cluster_name(transfer.cluster)}/{transfer.kind}_tokens"] += transfer.amount
    for row in line.get("cluster_probe_accuracy", ()):
        if row.value is not None:
            figures[f"{cluster_name(row.cluster)}/probe_accuracy"] = row.value
    for key, value in (line.get("economy") or {}).items():
        figures[f"economy/{key}"] = value
    counts = {"clients/asked": len({seat.client for seat in line["seats"]}), "events": len(line["events"])}
    traffic = {"bytes/up": line["bytes_up"], "bytes/down": line["bytes_down"]}
    return {key: float(value) for key, value in {**figures, **trained, **tokens, **counts, **traffic}.items()}


def _evaluation_figures(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, key in ACCURACIES.items():
        if evaluation.get(key) is not None:
            yield name, evaluation[key]["mean"]
    for key in ("purity", "opt_outs"):
        if evaluation.get(key) is not None:
            yield key, evaluation[key]
    models = assessed_models(evaluation)
    for distribution, row in enumerate(evaluation.get("cluster_accuracy") or ()):
        for model, accuracy in zip(models, row, strict=True):
            yield f"{model}/accuracy_on_distribution_{distribution}", accuracy


class TensorBoardTracker:
    """Writes an event file.

    Args:
        folder: Where the event files of this run go.
        settings: Of the run, by dotted key.
        is_resumed: Whether older event files of the run are kept.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, is_resumed: bool):
        require_extra("tensorboard", "tensorboard")
        self.folder, self.settings, self.is_resumed = folder, settings, is_resumed
        self._writer: Any = None

    def start(self, method: str, rounds: int) -> None:
        """Begins the file, with the settings as a table."""
        from torch.utils.tensorboard import SummaryWriter

        for old in () if self.is_resumed else self.folder.glob("*.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(self.folder)
        rows = [f"| {key} | {json.dumps(value)} |" for key, value in self.settings.items()]
        self._writer.add_text("config", "\n".join(["| setting | value |", "|---|---|", *rows]), 0)

    def round(self, line: Mapping[str, Any]) -> None:
        """Writes the figures of a round; its number is the step."""
        for name, value in round_figures(line).items():
            self._writer.add_scalar(name, value, line["round"])
        self._writer.flush()

    def finish(self) -> None:
        """The file stays open until `end`."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Writes the summary as text, and closes the file."""
        if self._writer is None:
            return
        shown = {key: value for key, value in summary.items() if key != "config"}
        self._writer.add_text("summary", f"    {json.dumps(shown)}", summary["rounds"])
        self._writer.close()
        self._writer = None


class MLflowTracker:
    """Makes a run of MLflow's, or goes on with the one that was made for the same folder.

    Args:
        place: MLflow's store: a URL, or a folder.
        run_folder: The run's own folder.
        settings: Of the run, by dotted key.
        is_resumed: Whether to look for the run of this folder.
    """

    def __init__(self, place: str | Path, run_folder: Path, settings: Mapping[str, Any], *, is_resumed: bool):
        if isinstance(place, Path):
            os.environ.setdefault(FILE_STORE, "true")
            place = place.resolve().as_uri()
        self._entities = require_extra("mlflow.entities", "mlflow")
        tracking = require_extra("mlflow.tracking", "mlflow")
        self.client = tracking.MlflowClient(tracking_uri=place)
        self.run_folder, self.settings, self.is_resumed = run_folder.resolve(), settings, is_resumed
        self.run_id: str | None = None

    def start(self, method: str, rounds: int) -> None:
        """Finds or makes the run, and tells its settings."""
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "ipfl"))
        found = self._earlier(experiment) if self.is_resumed else None
        if found is not None:
            self.run_id = found
            self.client.update_run(found, status="RUNNING")
            return
        tags = {"ipfl.folder": self.run_folder.as_uri(), "method": method}
        made = self.client.create_run(experiment, run_name=self.run_folder.name, tags=tags)
        self.run_id = made.info.run_id
        told = [
            self._entities.Param(key, json.dumps(value)[:MAX_SETTING]) for key, value in self.settings.items()
        ]
        for first in range(0, len(told), MAX_BATCH):
            self.client.log_batch(self.run_id, params=told[first : first + MAX_BATCH])

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(self.client.create_experiment(name) if found is None else found.experiment_id)

    def _earlier(self, experiment: str) -> str | None:
        """The newest run of this folder; None if there is none."""
        named = f"tags.`ipfl.folder` = '{self.run_folder.as_uri()}'"
        found = self.client.search_runs([experiment], filter_string=named, max_results=1)
        return str(found[0].info.run_id) if found else None

    def round(self, line: Mapping[str, Any]) -> None:
        """Tells the figures of a round; its number is the step."""
        now = int(time.time() * 1000)
        figures = [
            self._entities.Metric(name, value, now, line["round"])
            for name, value in round_figures(line).items()
        ]
        self.client.log_batch(self.run_id, metrics=figures)

    def finish(self) -> None:
        """The run stays open until `end`."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Adds the run's files, and closes the run."""
        if self.run_id is None:
            return
        for name in (SUMMARY_FILE, METRICS_FILE):
            self.client.log_artifact(self.run_id, str(self.run_folder / name))
        self.client.log_artifacts(self.run_id, str(self.run_folder / SERVER_MODELS), SERVER_MODELS)
        self.client.set_terminated(self.run_id, "KILLED" if summary["interrupted"] else "FINISHED")


def make_tracker(
    name: TrackerName,
    run_folder: Path,
    config: Mapping[str, Any],
    *,
    top: Path | None = None,
    is_resumed: bool,
) -> Tracker:
    """What tells TensorBoard or MLflow about a run.

    Args:
        name: Which of them.
        run_folder: The run's folder.
        config: Its settings, as in `summary.json`.
        top: The folder beside which the tracker writes; None: the run's own.
        is_resumed: Whether the run goes on with what was told of it before.

    Raises:
        InputError: The package is not installed.
    """
    beside = (top or run_folder).resolve().parent
    settings = dict(flat_settings(config))
    if name == "tensorboard":
        folder = beside / name / run_folder.resolve().relative_to(beside)
        return TensorBoardTracker(folder, settings, is_resumed=is_resumed)
    place = os.environ.get("MLFLOW_TRACKING_URI") or beside / name
    return MLflowTracker(place, run_folder, settings, is_resumed=is_resumed)


def track_result(name: TrackerName, run_folder: Path, result: Result, *, top: Path) -> None:
    """Tells all of a run that is over, such as one of a comparison."""
    config = result.summary["config"]
    tracker = make_tracker(name, run_folder, config, top=top, is_resumed=False)
    tracker.start(result.summary["method"], config["rounds"])
    for line in result.history:
        tracker.round(line)
    tracker.finish()
    tracker.end(result.summary)


class ObserverGroup:
    """Several observers of one run."""

    def __init__(self, observers: Sequence[Observer]):
        self.observers = observers

    def start(self, method: str, rounds: int) -> None:
        """Tells all."""
        for observer in self.observers:
            observer.start(method, rounds)

    def round(self, line: Line | Mapping[str, Any]) -> None:
        """Tells all."""
        for observer in self.observers:
            observer.round(line)

    def finish(self) -> None:
        """Tells all."""
        for observer in self.observers:
            observer.finish()
