"""Runs in folders, a line for each; and the settings of a run by dotted key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ipfl.errors import InputError
from ipfl.keep.file_names import METRICS_FILE, PLAN_FILE, SUMMARY_FILE
from ipfl.results.summaries import read_summary


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


def flat_settings(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a config by dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
