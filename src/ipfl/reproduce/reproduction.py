"""Runs experiments: plans, plays what is missing, and keeps the numbers.

A run lies in a folder that is named by its key, and is resumed if it was interrupted. When it is over, only
`summary.json` and `metrics.jsonl` stay: models and memories of hundreds of runs would fill the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ipfl.errors import InputError
from ipfl.keep.file_names import METRICS_FILE, SUMMARY_FILE
from ipfl.reproduce.experiments import Experiment, Scale, experiment_names
from ipfl.reproduce.plan import Columns, plan_experiment
from ipfl.reproduce.results_file import (
    ColumnRecord,
    ExperimentRecord,
    RunRecord,
    is_this_code,
    make_record,
    prefer_this_code,
    read_all_runs,
    read_experiment_record,
    result_file,
    this_machine,
    write_numbers,
)
from ipfl.reproduce.tuning import (
    check_methods,
    choose_best,
    plan_tuning,
    read_tuning,
    tuned_settings,
    tuning_file,
)
from ipfl.results.finished import load_figures
from ipfl.results.result import Result
from ipfl.study.run_list import MakeObserver, RunList
from ipfl.study.run_pool import local_pool
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache
from ipfl.system.files import remove_folder
from ipfl.system.folder_lock import FolderLock
from ipfl.system.plugins import source_commit

OtherCommit = Literal["refuse", "use", "replay"]
"""The ways to deal with a finished run of another commit."""


@dataclass(frozen=True)
class PlayOptions:
    """The settings that runs are played with."""

    runs: Path
    """Folder for the runs."""
    results: Path
    """Folder for the numbers, `NAME/SCALE.json`."""
    workers: int | None = None
    other_commit: OtherCommit = "refuse"
    make_observer: MakeObserver | None = None
    is_dry: bool = False
    """Runs are listed, not played."""


@dataclass
class ReproductionOutcome:
    """The outcome of a command."""

    files: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    """Failures that did not matter."""
    missing: list[str] = field(default_factory=list)
    """Runs that would be played, of a dry run."""


@dataclass
class _Played:
    """The runs that were asked for, played or failed."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    """By key."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why there is none, by key."""
    missing: list[StudyRun] = field(default_factory=list)
    """Those that had to be played."""
    is_interrupted: bool = False

    def enter(self, run: StudyRun, outcome: RunOutcome) -> None:
        """Keeps the numbers of a run that is over."""
        if outcome.result is not None and run.folder is not None:
            self.records[run.key] = make_record(run, outcome.result)
            _drop_models(run.folder)
        elif not outcome.is_interrupted:
            self.failures[run.key] = str(outcome.failure)


def _drop_models(folder: Path) -> None:
    """Removes all of a finished run but its numbers."""
    for path in folder.iterdir():
        if path.is_dir():
            remove_folder(path)
        elif path.name not in (SUMMARY_FILE, METRICS_FILE):
            path.unlink()


def play_runs(runs: Iterable[StudyRun], known: Mapping[str, RunRecord], options: PlayOptions) -> _Played:
    """Plays the runs that are neither known nor in the folder; those with the same key are one run.

    Raises:
        InputError: A finished run is of another commit.
    """
    wanted: dict[str, StudyRun] = {}
    for run in runs:
        for one in (run.reference, run):
            if one is not None:
                wanted.setdefault(one.key, replace(one, folder=options.runs / one.key, resume=True))
    played = _Played()
    try:
        options.runs.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(options.runs)
    except OSError as error:
        raise InputError(f"cannot write runs to {options.runs}: {error.strerror}") from error
    try:
        finished = {key: result for key, run in wanted.items() if (result := _finished(run)) is not None}
        for key, run in wanted.items():
            in_folder = make_record(run, finished[key]) if key in finished else None
            record = prefer_this_code(known.get(key), in_folder)
            if record is None:
                continue
            if options.other_commit == "use" or is_this_code(record):
                played.records[key] = record
            elif options.other_commit == "refuse":
                raise InputError(
                    f"{run.label}, seed {run.seed}: its finished run is of commit {str(record.commit)[:10]}, "
                    f"the code here is {str(source_commit())[:10]}: --other-commit use, or replay"
                )
            else:
                finished.pop(key, None)
                if not options.is_dry:
                    remove_folder(options.runs / key)
        for run in [run for key, run in wanted.items() if key not in played.records]:
            if run.reference is not None and run.reference.key not in finished:
                played.records.pop(run.reference.key, None)  # others are measured by its rounds
        played.missing = [run for key, run in wanted.items() if key not in played.records]
        played.missing.sort(key=lambda run: (run.seed, str(getattr(run.config, "task", None))))
        if played.missing and not options.is_dry:
            run_list = RunList(played.missing, played.enter, finished, options.make_observer)
            played.is_interrupted = run_list.play(local_pool(options.workers), TaskCache())
    finally:
        lock.release()
    return played


def _finished(run: StudyRun) -> Result | None:
    """A run that is in its folder; None if it is not finished."""
    if run.folder is None or not (run.folder / SUMMARY_FILE).exists():
        return None
    result = load_figures(run.folder)
    is_whole = not result.summary["interrupted"] and result.last is not None
    return result if is_whole else None


@dataclass(frozen=True)
class _Planned:
    """An experiment with its runs."""

    experiment: Experiment
    columns: Columns
    tuning: dict[str, Any] | None
    before: ExperimentRecord | None
    """The numbers that were committed before."""
    seeds: Sequence[int]
    methods: Sequence[str]
    """The methods that are asked for, with these seeds."""

    def wanted(self) -> Iterable[StudyRun]:
        """The runs that are asked for."""
        for runs in self.columns.values():
            for (label, seed), run in runs.items():
                if seed in self.seeds and label in self.methods:
                    yield run

    def kept(self, known: Mapping[str, RunRecord], other_commit: OtherCommit) -> dict[str, RunRecord]:
        """Known numbers of the runs that are not asked for, of whichever commit they are.

        Raises:
            InputError: Seeds of the methods that are asked for are of other code, and nothing was said about
                such runs: the table would have both.
        """
        kept, of_other_code = {}, {}
        for column, runs in self.columns.items():
            for (label, seed), run in runs.items():
                record = known.get(run.key)
                if label not in self.methods and record is None and self.before is not None:
                    # Perhaps with other settings than its method has now.
                    there = self.before.columns.get(column)
                    record = None if there is None else there.runs.get(label, {}).get(seed)
                if record is None or (label in self.methods and seed in self.seeds):
                    continue
                kept[run.key] = record
                if label in self.methods and not is_this_code(record):
                    of_other_code[seed] = str(record.commit)[:10]
        if of_other_code and other_commit == "refuse":
            found, commits = sorted(of_other_code), sorted(set(of_other_code.values()))
            raise InputError(
                f"{self.experiment.name} has seeds {', '.join(map(str, found))} of other code "
                f"({', '.join(commits)}): --other-commit use or replay keeps them beside those that are "
                "asked for now"
            )
        return kept


def reproduce(
    experiments: Sequence[Experiment],
    scale: Scale,
    seeds: Sequence[int],
    options: PlayOptions,
    methods: Sequence[str] | None = None,
) -> ReproductionOutcome:
    """Plays what is missing of some experiments, and writes the numbers of each.

    Args:
        experiments: Which; a run that several of them need is played once.
        scale: How large.
        seeds: With which seeds; results of other seeds that are there already stay.
        options: How runs are played, and where everything goes.
        methods: Of these methods alone, by label; results of the others stay, of whichever commit they are.
    """
    outcome = ReproductionOutcome()
    check_methods("method", methods or (), [label for one in experiments for label in one.labels])
    planned = []
    for experiment in experiments:
        tuning = read_tuning(options.results, experiment, scale)
        before = read_experiment_record(options.results, experiment.name, scale)
        every = sorted({*seeds, *(before.seeds if before else ())})
        columns = plan_experiment(experiment, scale, every, tuned_settings(tuning))
        chosen = experiment.labels if methods is None else methods
        planned.append(_Planned(experiment, columns, tuning, before, seeds, chosen))
    known = read_all_runs(options.results, experiment_names(), scale)
    kept = [one.kept(known, options.other_commit) for one in planned]
    played = play_runs([run for one in planned for run in one.wanted()], known, options)
    outcome.is_interrupted = played.is_interrupted
    if options.is_dry:
        outcome.missing = [run.title for run in played.missing]
        return outcome
    for one, others in zip(planned, kept, strict=True):
        record = _collect(one, scale, {**others, **played.records}, played.failures)
        outcome.failures += record.failures
        if record.seeds:
            path = result_file(options.results, record.name, record.scale)
            outcome.files.append(write_numbers(path, record.model_dump(mode="json")))
    return outcome


def _collect(
    one: _Planned, scale: Scale, records: Mapping[str, RunRecord], failed: Mapping[str, str]
) -> ExperimentRecord:
    """The numbers of an experiment: in every column the seeds that all its methods have."""
    columns, failures, seeds = {}, [], set[int]()
    for name, planned in one.columns.items():
        runs: dict[str, dict[int, RunRecord]] = {label: {} for label in one.experiment.labels}
        for (label, seed), run in planned.items():
            if run.key in records:
                runs[label][seed] = records[run.key]
            elif run.key in failed:
                failures.append(f"{name} {label}, seed {seed}: {failed[run.key]}".strip())
        shared = next(iter(planned.values())).config.model_dump(mode="json")
        del shared["seed"], shared["method"]
        runs = {label: of for label, of in runs.items() if of}
        if common := set.intersection(*map(set, runs.values())) if runs else None:
            compared = {label: {seed: of[seed] for seed in sorted(common)} for label, of in runs.items()}
            columns[name] = ColumnRecord(config=shared, runs=compared)
            seeds |= common
    return ExperimentRecord(
        name=one.experiment.name,
        scale=scale,
        machine=this_machine(),
        reference=one.experiment.reference,
        ours=list(one.experiment.ours),
        seeds=sorted(seeds),
        tuning=one.tuning,
        columns=columns,
        failures=failures,
    )


def tune(
    experiment: Experiment,
    scale: Scale,
    seeds: Sequence[int],
    options: PlayOptions,
    methods: Sequence[str] | None = None,
) -> ReproductionOutcome:
    """Plays the grid of every method of an experiment, or of some, and writes down what was best."""
    candidates = plan_tuning(experiment, scale, seeds)
    before: dict[str, Any] = {}
    if methods is not None:
        check_methods("method to tune", methods, [one.label for one in candidates])
        candidates = [one for one in candidates if one.label in methods]
        known = read_tuning(options.results, experiment, scale) or {"seeds": list(seeds), "methods": {}}
        if known["seeds"] != list(seeds):
            raise InputError(f"the other methods of {experiment.name} were tuned on seeds {known['seeds']}")
        before = known["methods"]
    played = play_runs([run for one in candidates for run in one.runs], {}, options)
    outcome = ReproductionOutcome(is_interrupted=played.is_interrupted)
    chosen = choose_best(candidates, played.records)
    for one in candidates:
        for run in one.runs:
            if run.key in played.failures:
                said = f"{one.label} {one.settings}, seed {run.seed}: {played.failures[run.key]}"
                if chosen[one.label]["chosen"] is None:
                    outcome.failures.append(said)
                else:  # some learning rate may well be too high: that is what a grid is for
                    outcome.notes.append(f"not chosen: {said}")
    if not played.is_interrupted:
        column = experiment.tuned_column or next(iter(experiment.columns))
        content = {"column": column, "seeds": list(seeds), "commit": source_commit()}
        path = tuning_file(options.results, experiment, scale)
        outcome.files.append(write_numbers(path, {**content, "methods": before | chosen}))
    return outcome
