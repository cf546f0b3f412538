"""Several methods on the same task, budget and seeds; PMA of each against the reference method.

A comparison is a list of runs (`run_list`). The reference's accuracy per client is the threshold ρ_i that
the other runs are measured by, round for round, and PMA is part of what their ledgers prove. Any method can
be the reference: the paper has FedAvg, and local training in its Limitations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipfl.config.run_config import MAX_SEED, RunConfig
from ipfl.config.train_section import AdaptConfig
from ipfl.config.whole_config import Config
from ipfl.core import Method
from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, PLAN_FILE
from ipfl.keep.run_folder import check_folder_path
from ipfl.methods import REFERENCE, check_clusters, check_parts
from ipfl.play.setup import trainings_per_round
from ipfl.results.finished import FinishedRun
from ipfl.results.frames import comparison_frame
from ipfl.results.result import Result
from ipfl.study.comparison_folder import clear_folder, locked_folder
from ipfl.study.method_labels import Methods, folder_names, label_methods, suitable_methods
from ipfl.study.run_list import MakeObserver, RunList
from ipfl.study.run_pool import MakePool, local_pool
from ipfl.study.study_run import MakeTask, RunOutcome, StudyRun, TaskCache, make_task_cache
from ipfl.system.files import read_text, write_json
from ipfl.system.plugins import source_commit
from ipfl.training.hardware import decide_hardware
from ipfl.training.task import Task

if TYPE_CHECKING:
    import pandas as pd


COMPARED_FIGURES = (
    "personalized_accuracy",
    "global_accuracy",
    "unseen_accuracy",
    "metrics",
    "pma",
    "opt_outs",
    "participation_rate",
    "purity",
    "last_step_passes",
    "last_step_seconds",
    "seconds_per_round",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
)
"""Figures of a run in `compare.json`; the last three are derived from its summary."""


@dataclass
class MethodRuns:
    """All runs of one method."""

    method: Method[Any]
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    """The last step at its clients."""
    results: dict[int, Result] = field(default_factory=dict)
    """Whole runs by seed."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why a run did not finish, by seed."""

    @property
    def void_seeds(self) -> list[int]:
        """Seeds of runs in which no round counted."""
        return [seed for seed, result in self.results.items() if result.summary.get("counted") == 0]

    def sort(self, seeds: Sequence[int]) -> None:
        """Puts all in the order of the seeds: figures must not depend on the order in which runs end."""
        self.results = {seed: self.results[seed] for seed in seeds if seed in self.results}
        self.failures = {seed: self.failures[seed] for seed in seeds if seed in self.failures}

    def figures(self) -> dict[str, Any]:
        """Means over the seeds of what each run's summary says, and the runs' own figures."""
        failures = {str(seed): why for seed, why in self.failures.items()}
        return {**mean_figures(self.results), "failures": failures}


def mean_figures(results: Mapping[int, Result]) -> dict[str, Any]:
    """Means over the seeds of what the summaries of some runs say, and the figures of each (`seeds`)."""
    seeds = {str(seed): _figures(result) for seed, result in results.items()}
    means = {name: _mean_figure(one[name] for one in seeds.values()) for name in COMPARED_FIGURES}
    return {**means, "seeds": seeds}


def _figures(result: Result) -> dict[str, Any]:
    """Figures of one run. Traffic is divided by the rounds and by all clients, asked or not."""
    summary = result.summary
    rounds = max(1, summary["rounds"])  # a run that was interrupted in its first round may be shown, too
    client_rounds = rounds * max(1, summary["clients"])
    derived = {
        "seconds_per_round": summary["seconds"] / rounds,
        "bytes_up_per_client_round": summary["bytes_up"] / client_rounds,
        "bytes_down_per_client_round": summary["bytes_down"] / client_rounds,
    }
    return {name: derived[name] if name in derived else summary.get(name) for name in COMPARED_FIGURES}


def _mean_figure(values: Iterable[Any]) -> Any:
    """Mean of numbers, or of {mean, std} part by part; None where no run has a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], Mapping):
        return {part: _mean_figure(value[part] for value in known) for part in known[0]}
    return float(np.mean(known))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side."""

    config: RunConfig
    seeds: tuple[int, ...]
    entries: dict[str, MethodRuns]
    """By method, in the order asked for."""
    reference: str = REFERENCE
    """The one among them that PMA is measured against."""
    interrupted: bool = False
    out: Path | None = None

    @property
    def failed(self) -> bool:
        """True if any run failed."""
        return any(entry.failures for entry in self.entries.values())

    def summary(self) -> dict[str, Any]:
        """The content of `compare.json`."""
        return {
            "seeds": list(self.seeds),
            "reference": self.reference,
            "interrupted": self.interrupted,
            "methods": {name: entry.figures() for name, entry in self.entries.items()},
            "config": self.config.record([entry.method for entry in self.entries.values()]),
            "commit": source_commit(),
        }

    def table(self) -> pd.DataFrame:
        """A row for each method: means over clients and seeds, and how many runs failed. Needs pandas."""
        return comparison_frame(self)

    def __repr__(self) -> str:
        lines = [f"Comparison of {len(self.entries)} methods, seeds {', '.join(map(str, self.seeds))}"]
        for label, entry in self.entries.items():
            accuracy = entry.figures()["personalized_accuracy"]
            shown = "no finished run" if accuracy is None else f"{100 * accuracy['mean']:.1f} %"
            lines.append(f"  {label:<24}{shown}")
        return "\n".join(lines)


def _check_task(task: Task, methods: Iterable[Method[Any]], config: RunConfig, seed: int) -> None:
    """Finds what would stop a run of one of these methods on a task."""
    network = task.network(seed)
    for method in methods:
        check_clusters(method, len(task.data.clients))
        check_parts(method, network)
        trainings_per_round(method, config, len(task.data.clients))
    config.train.check_quorum(len(task.data.clients))


def compare(
    config: RunConfig,
    methods: Methods | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    task: Task | MakeTask | None = None,
    reference: str | Method[Any] = REFERENCE,
    out: Path | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    workers: int | None = None,
    make_observer: MakeObserver | None = None,
    make_pool: MakePool | None = None,
) -> Comparison:
    """Runs several methods, each with every seed, on the same data and the same budget.

    As `ipfl.compare`, which shows progress and draws figures; a whole `Config` says which task there is.
    Without `methods`, all of this package that suit the network, the target and `[adapt]`.

    Returns:
        The comparison. A method that failed is in it with the reason; after Ctrl-C, it holds what was
        finished until then. A result from another process has no `state`.
    """
    # Once for all runs, wherever they are played, and whenever they are resumed.
    precision = decide_hardware(config.train).precision
    config = config.model_copy(update={"train": config.train.model_copy(update={"precision": precision})})
    chosen_seeds = _choose_seeds(seeds, config)
    tasks = make_task_cache(task)
    first = config.model_copy(update={"seed": chosen_seeds[0]})
    if methods is None:
        methods = suitable_methods(tasks.get(first).network(first.seed), config)
    built, reference_label = label_methods(config, methods, reference)
    _check_task(tasks.get(first), [row.method for row in built.values()], first, first.seed)
    if resume and out is None:
        raise InputError("a comparison that is resumed needs a folder (out)")
    entries = {label: MethodRuns(*row) for label, row in built.items()}
    with ExitStack() as stack:
        folder = None if out is None else check_folder_path(Path(out))
        if folder is not None:
            stack.enter_context(locked_folder(folder))
            if not resume:
                clear_folder(folder, overwrite=overwrite)
                plan = None
                if isinstance(config, Config) and task is None and _are_all_names(methods, reference):
                    plan = ComparisonPlan(config, list(built), list(chosen_seeds), reference_label)
                _write_plan(folder, plan)
        runs = _list_runs(config, entries, reference_label, chosen_seeds, folder, resume=resume)
        comparison = Comparison(config, chosen_seeds, entries, reference_label, out=folder)
        played = RunList(runs, partial(_enter, comparison, tasks), make_observer=make_observer)
        interrupted = played.play(make_pool or local_pool(workers), tasks)
        for entry in entries.values():
            entry.sort(chosen_seeds)
        comparison = replace(comparison, interrupted=interrupted)
        if folder is not None:
            write_json(folder / COMPARISON_FILE, comparison.summary())
    return comparison


def _are_all_names(methods: Methods, reference: str | Method[Any]) -> bool:
    """True if methods are given by names alone, which a file can hold."""
    return not isinstance(methods, Mapping) and all(isinstance(one, str) for one in [*methods, reference])


def _list_runs(
    config: RunConfig,
    entries: Mapping[str, MethodRuns],
    reference: str,
    seeds: Sequence[int],
    folder: Path | None,
    *,
    resume: bool,
) -> list[StudyRun]:
    """The runs of a comparison, seed by seed."""
    names = folder_names(entries)

    def run_of(label: str, seed: int, measured_by: StudyRun | None) -> StudyRun:
        own = config.model_copy(update={"seed": seed, "adapt": entries[label].adapt})
        if measured_by is None:  # nobody can leave the reference for being worse than the reference
            own = own.model_copy(update={"clients": own.clients.model_copy(update={"leave": False})})
        key = f"{names[label]}/seed-{seed}"
        return StudyRun(
            key,
            label,
            entries[label].method,
            own,
            title=label if len(seeds) == 1 else f"{label}, seed {seed}",
            reference=measured_by,
            folder=None if folder is None else folder / key,
            resume=resume,
        )

    runs = []
    for seed in seeds:
        first = run_of(reference, seed, None)
        runs += [first, *(run_of(label, seed, first) for label in entries if label != reference)]
    return runs


def _enter(comparison: Comparison, tasks: TaskCache, run: StudyRun, outcome: RunOutcome) -> None:
    """Notes how a run ended."""
    entry, result = comparison.entries[run.label], outcome.result
    if result is None:
        entry.failures[run.seed] = str(outcome.failure)
        return
    if run.folder is not None:  # what its models come from must not keep the data of every seed in memory
        source = FinishedRun(run.folder, result.summary, partial(tasks.get, run.config))
        result = replace(result, source=source)
    entry.results[run.seed] = result


def _choose_seeds(seeds: int | Sequence[int] | None, config: RunConfig) -> tuple[int, ...]:
    if seeds is None:
        return (config.seed,)
    if isinstance(seeds, int):
        seeds = range(config.seed, config.seed + seeds)
    if not seeds:
        raise InputError("there is no seed to run with")
    if not all(0 <= seed <= MAX_SEED for seed in seeds):
        raise InputError(f"seeds are from 0 to {MAX_SEED}")
    return tuple(dict.fromkeys(seeds))


class ComparisonPlan(NamedTuple):
    """The settings that a comparison was begun with."""

    config: Config
    methods: list[str]
    seeds: list[int]
    reference: str


def _write_plan(folder: Path, plan: ComparisonPlan | None) -> None:
    """Writes what a comparison is begun with; None: a file cannot say it, it was given in Python."""
    content: dict[str, Any] = {"config": None}
    if plan is not None:
        content = {**plan._asdict(), "config": plan.config.model_dump(mode="json")}
    write_json(folder / PLAN_FILE, content)


def read_plan(folder: Path) -> ComparisonPlan:
    """The plan of a comparison that was begun in a folder."""
    try:
        plan = json.loads(read_text(folder / PLAN_FILE))
        if plan["config"] is None:
            raise InputError(f"the comparison in {folder} was begun in Python: resume it there")
        names, seeds = [str(name) for name in plan["methods"]], [int(seed) for seed in plan["seeds"]]
        return ComparisonPlan(Config.of(plan["config"]), names, seeds, str(plan["reference"]))
    except OSError as error:
        raise InputError(f"there is no comparison to resume in {folder}") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / PLAN_FILE} is not the plan of a comparison: {error!r}") from error
