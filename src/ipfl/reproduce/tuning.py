"""The same grid for every method: learning rate × its one main parameter, chosen without test data.

Seeds are from `FIRST_SEED` on, so that no run of a table was tuned on. What decides is the clients' mean
accuracy on `goal`: held-back training points, the same as `probe` but for tasks whose test data is mixed in
another way, where it is a sample of what clients want. While tuning, nobody trains on held-back points, and
clients take no last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ipfl.config.whole_config import Config
from ipfl.errors import InputError, unknown
from ipfl.reproduce.experiments import Experiment, Scale, Settings, read_common
from ipfl.reproduce.plan import base_settings, plan_run
from ipfl.reproduce.results_file import RunRecord, read_json_if_any
from ipfl.study.study_run import StudyRun

FIRST_SEED = 100


@dataclass(frozen=True)
class Candidate:
    """One point of the grid of a method."""

    label: str
    settings: Settings
    runs: tuple[StudyRun, ...]
    """One for each seed."""


def tuning_file(folder: Path, experiment: Experiment, scale: Scale) -> Path:
    """The file with the tuning that an experiment uses."""
    return folder / (experiment.tuning or experiment.name) / f"{scale}-tuning.json"


def plan_tuning(experiment: Experiment, scale: Scale, seeds: Sequence[int]) -> list[Candidate]:
    """All points of the grid of all methods of an experiment.

    Raises:
        InputError: A seed belongs to the tables.
    """
    if experiment.tuning is not None:
        raise InputError(f"{experiment.name} uses the tuning of {experiment.tuning}: tune that")
    if low := [seed for seed in seeds if seed < FIRST_SEED]:
        raise InputError(
            f"tuning uses seeds from {FIRST_SEED} on, not {low[0]}: those below are for the results"
        )
    column = experiment.tuned_column or next(iter(experiment.columns))
    base = {
        **base_settings(experiment, scale),
        **experiment.columns[column],
        "train.use_probe": False,
        "adapt.epochs": 0,
        "adapt.label_prior": False,
        "clients.leave": False,
    }
    whole = Config.load(None, (), base)
    base["rounds"] = max(1, round(read_common().grid.rounds_share * whole.rounds))
    rate = whole.train.lr
    found = []
    for label in dict.fromkeys([*experiment.labels, *experiment.also_tuned]):
        if label not in read_common().grid.main:
            continue
        given = read_common().settings.get(label, {})
        for settings in grid_points(label, rate):
            runs = tuple(plan_run(label, seed, base, {**given, **settings}) for seed in seeds)
            found.append(Candidate(label, settings, runs))
    return found


def check_methods(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuses methods that are not there.

    Raises:
        InputError: Which one, and what there is.
    """
    for label in given:
        if label not in known:
            raise unknown(kind, label, dict.fromkeys(known))


def grid_points(label: str, rate: float) -> list[Settings]:
    """Learning rates × values of the main parameter of a method."""
    main = read_common().grid.main[label]
    rates = [float(f"{rate * factor:.3g}") for factor in read_common().grid.lr_factors]
    return [{"train.lr": one, main.key: value} for one in rates for value in main.values]


def choose_best(candidates: Sequence[Candidate], records: Mapping[str, RunRecord]) -> dict[str, Any]:
    """The tuning as it is written down: every point with its accuracies, and the best one of each method.

    Of equal ones the first is taken. Points of which a run failed cannot be chosen.
    """
    methods: dict[str, Any] = {}
    for one in candidates:
        scores = [records[run.key].goal if run.key in records else None for run in one.runs]
        known = [score for score in scores if score is not None]
        mean = round(fmean(known), 4) if len(known) == len(scores) else None
        entry = methods.setdefault(one.label, {"chosen": None, "goal_accuracy": None, "grid": []})
        entry["grid"].append({"settings": one.settings, "goal_accuracy": scores, "mean": mean})
        if mean is not None and (entry["goal_accuracy"] is None or mean > entry["goal_accuracy"]):
            entry["chosen"], entry["goal_accuracy"] = one.settings, mean
    return methods


def read_tuning(folder: Path, experiment: Experiment, scale: Scale) -> dict[str, Any] | None:
    """The tuning of an experiment's methods; None: there was none."""
    return read_json_if_any(tuning_file(folder, experiment, scale))


def tuned_settings(tuning: Mapping[str, Any] | None) -> dict[str, Settings]:
    """The chosen settings, by label."""
    methods = {} if tuning is None else tuning["methods"]
    return {label: entry["chosen"] for label, entry in methods.items() if entry["chosen"]}
