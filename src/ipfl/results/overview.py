"""Runs in folders: a line for each, and the differences between two."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ipfl.errors import InputError
from ipfl.keep.file_names import METRICS_FILE, PLAN_FILE, SUMMARY_FILE
from ipfl.results.summaries import mean_of, read_summary

if TYPE_CHECKING:
    from ipfl.results.result import Result

RESULT_FIGURES = (
    "personalized_accuracy",
    "global_accuracy",
    "unseen_accuracy",
    "pma",
    "opt_outs",
    "purity",
    "left",
    "rounds",
    "bytes_up",
    "bytes_down",
    "seconds",
)
"""Figures of a summary that two runs are compared by."""
SHARE_FIGURES = frozenset({"personalized_accuracy", "global_accuracy", "unseen_accuracy", "pma", "purity"})
"""Those of them that are shares."""


@dataclass(frozen=True)
class RunEntry:
    """One run in a list; what is not known of a run that has not ended is None."""

    folder: str
    state: Literal["finished", "interrupted", "not finished", "damaged"]
    method: str | None = None
    dataset: str | None = None
    clients: int | None = None
    rounds: int | None = None
    """Rounds that were played."""
    planned_rounds: int | None = None
    seed: int | None = None
    accuracy: float | None = None
    """Mean over clients of their personalized models."""


def find_runs(folder: Path) -> list[RunEntry]:
    """All runs in a folder and in folders below it, by the names of their folders.

    Raises:
        InputError: There is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    return [_entry(run) for run in _run_folders(folder)]


def _run_folders(folder: Path) -> Iterator[Path]:
    """Folders of runs, in order; what is inside of one is not looked at."""
    for place, below, files in os.walk(folder):
        if "meta.yaml" in files:  # of MLflow, with copies of runs that are listed already
            below.clear()
        elif METRICS_FILE in files:
            below.clear()
            yield Path(place)
        below.sort()


def _entry(folder: Path) -> RunEntry:
    if not (folder / SUMMARY_FILE).exists():
        if not (folder / METRICS_FILE).is_file():  # a pipe would be waited for
            return RunEntry(str(folder), "damaged")
        with (folder / METRICS_FILE).open("rb") as file:
            return RunEntry(str(folder), "not finished", rounds=sum(1 for _ in file))
    try:
        summary = read_summary(folder)
        accuracy, config = summary.get("personalized_accuracy"), summary["config"]
        return RunEntry(
            folder=str(folder),
            state="interrupted" if summary.get("interrupted") else "finished",
            method=summary["method"],
            dataset=summary.get("dataset"),
            clients=summary.get("clients"),
            rounds=summary["rounds"],
            planned_rounds=config.get("rounds"),
            seed=summary["seed"],
            accuracy=None if accuracy is None else float(accuracy["mean"]),
        )
    except (InputError, LookupError, TypeError, ValueError):
        return RunEntry(str(folder), "damaged")


def refuse_comparison(folder: Path) -> None:
    """Says what to do with the folder of a comparison where a run is wanted."""
    if (folder / PLAN_FILE).exists() and not (folder / METRICS_FILE).exists():
        raise InputError(f"{folder} holds a comparison: `ipfl list {folder}` shows its runs")


def changed_settings(one: Result, other: Result) -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two runs, by dotted key; None where a run has no such key.

    Of two methods, only hyper-parameters that both have are compared; of data that was given in Python,
    which has no settings, only the name.
    """
    ours, theirs = (dict(flat_settings(result.summary["config"])) for result in (one, other))
    keys = dict.fromkeys([*ours, *theirs])
    if "task" not in one.summary["config"] or "task" not in other.summary["config"]:  # data given in Python
        keys = dict.fromkeys(key for key in keys if not key.startswith("task."))
        ours["data"], theirs["data"] = one.summary.get("dataset"), other.summary.get("dataset")
        keys["data"] = None
    if ours.get("method.name") != theirs.get("method.name"):
        both = ours.keys() & theirs.keys()
        keys = dict.fromkeys(key for key in keys if key in both or not key.startswith("method."))
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def flat_settings(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a config by dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def result_figures(one: Result, other: Result) -> dict[str, tuple[Any, Any]]:
    """Figures of two runs side by side, means over clients; those that both lack are left out."""
    pairs = {key: (mean_of(one.summary.get(key)), mean_of(other.summary.get(key))) for key in RESULT_FIGURES}
    return {key: pair for key, pair in pairs.items() if pair != (None, None)}


def client_gains(one: Result, other: Result) -> dict[int, float]:
    """The gain of each client in accuracy from the first to the second run; of those that both evaluated."""
    theirs = other.accuracies
    return {client: theirs[client] - own for client, own in one.accuracies.items() if client in theirs}


def to_json(value: Any) -> str:
    """A setting as one reads it in a config."""
    return json.dumps(value, ensure_ascii=False)
