"""Runs experiments: plans, plays what is missing, and writes the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipfl.errors import InputError
from ipfl.reproduce.experiments import Experiment, Scale, experiment_names
from ipfl.reproduce.plan import PlannedColumn, PlannedRun, plan_experiment
from ipfl.reproduce.play import OtherCommit, Played, play_runs
from ipfl.reproduce.results_file import (
    ColumnRecord,
    ExperimentRecord,
    RunRecord,
    is_this_code,
    read_all_runs,
    read_experiment_record,
    this_machine,
    write_experiment_record,
)
from ipfl.reproduce.tuning import (
    check_methods,
    choose_best,
    plan_tuning,
    read_tuning,
    tuned_settings,
    tuning_file,
    write_tuning,
)
from ipfl.study.run_pool import MakePool
from ipfl.study.run_series import MakeObserver
from ipfl.system.source import source_commit


@dataclass(frozen=True)
class PlayOptions:
    """How runs are played."""

    runs: Path
    """Folder for the runs."""
    results: Path
    """Folder for the numbers, `NAME/SCALE.json`."""
    workers: int | None = None
    other_commit: OtherCommit = "refuse"
    make_observer: MakeObserver | None = None
    make_pool: MakePool | None = None

    def play(self, runs: Iterable[PlannedRun], known: dict[str, RunRecord]) -> Played:
        """Plays the runs that are missing."""
        return play_runs(
            runs,
            self.runs,
            known=known,
            other_commit=self.other_commit,
            workers=self.workers,
            make_observer=self.make_observer,
            make_pool=self.make_pool,
        )


@dataclass
class ReproductionOutcome:
    """What a command made."""

    files: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    """What went wrong and did not matter."""


@dataclass(frozen=True)
class _Planned:
    experiment: Experiment
    columns: list[PlannedColumn]
    tuning: dict[str, Any] | None
    before: ExperimentRecord | None
    """What was committed before."""

    def found_before(self, column: str, label: str, seed: int) -> RunRecord | None:
        """What was committed of a run, perhaps with other settings than its method has now."""
        found = self.before.columns.get(column) if self.before else None
        return found.runs.get(label, {}).get(seed) if found else None


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
    labels = [label for one in experiments for label in one.labels]
    check_methods("method", methods or (), labels)
    planned = []
    for experiment in experiments:
        if experiment.kind == "theory":
            outcome.files += _compute_theory(experiment, scale, options.results)
            continue
        tuning = read_tuning(options.results, experiment, scale)
        before = read_experiment_record(options.results, experiment.name, scale)
        columns = plan_experiment(experiment, scale, _all_seeds(seeds, before), tuned_settings(tuning))
        planned.append(_Planned(experiment, columns, tuning, before))
    known = read_all_runs(options.results, experiment_names(), scale)
    wanted = [
        run
        for one in planned
        for column in one.columns
        for (label, seed), run in column.runs.items()
        if seed in seeds and (methods is None or label in methods)
    ]
    held = [_that_hold(known, one, seeds, methods, options.other_commit) for one in planned]
    played = options.play(wanted, known)
    outcome.is_interrupted = played.is_interrupted
    for one, kept in zip(planned, held, strict=True):
        record = _collect(one, scale, played, kept)
        outcome.failures += record.failures
        if record.seeds:
            outcome.files.append(write_experiment_record(options.results, record))
    return outcome


def _all_seeds(seeds: Sequence[int], before: ExperimentRecord | None) -> list[int]:
    return sorted({*seeds, *(before.seeds if before else ())})


def _that_hold(
    known: dict[str, RunRecord],
    one: _Planned,
    seeds: Sequence[int],
    methods: Sequence[str] | None,
    other_commit: OtherCommit,
) -> dict[str, RunRecord]:
    """The known runs of an experiment that need not be played now.

    Those of this code; those of other code, if they are to be used or were not asked for.

    Raises:
        InputError: Seeds that were not asked for are of other code, and nothing was said about such runs: the
            table would have both.
    """
    kept, of_other_code = {}, {}
    for column in one.columns:
        for (label, seed), run in column.runs.items():
            is_method_asked = methods is None or label in methods
            old = known.get(run.key)
            if old is None and not is_method_asked:
                old = one.found_before(column.name, label, seed)
            if old is None:
                continue
            if is_this_code(old) or other_commit == "use" or not (is_method_asked and seed in seeds):
                kept[run.key] = old
            if is_method_asked and seed not in seeds and not is_this_code(old):
                of_other_code[seed] = str(old.commit)[:10]
    if of_other_code and other_commit == "refuse":
        found = ", ".join(map(str, sorted(of_other_code)))
        commits = ", ".join(sorted(set(of_other_code.values())))
        raise InputError(
            f"{one.experiment.name} has seeds {found} of other code ({commits}): --other-commit use or "
            "replay keeps them beside those that are asked for now"
        )
    return kept


def _collect(one: _Planned, scale: Scale, played: Played, known: dict[str, RunRecord]) -> ExperimentRecord:
    """The numbers of an experiment: of runs that were played now, and of known ones."""
    columns, failures, seeds = {}, [], set()
    for column in one.columns:
        runs: dict[str, dict[int, RunRecord]] = {label: {} for label in one.experiment.labels}
        for (label, seed), run in column.runs.items():
            record = played.records.get(run.key) or known.get(run.key)
            if record is not None:
                runs[label][seed] = record
                seeds.add(seed)
            elif run.key in played.failures:
                failures.append(f"{column.name} {label}, seed {seed}: {played.failures[run.key]}".strip())
        some = next(iter(column.runs.values()))
        columns[column.name] = ColumnRecord(
            config=_shared_config(some), runs={label: of for label, of in runs.items() if of}
        )
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


def _shared_config(run: PlannedRun) -> dict[str, Any]:
    """What the runs of a column share: all but seed, method, and where the data lies."""
    content = run.config.model_dump(mode="json")
    del content["seed"], content["method"], content["task"]["data_dir"]
    return content


def _compute_theory(experiment: Experiment, scale: Scale, results: Path) -> list[Path]:
    from ipfl.theory.studies import STUDIES, write_studies

    return write_studies(
        list(STUDIES), results / experiment.name / scale, seed=0, trials=experiment.trials[scale]
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
    played = options.play([run for one in candidates for run in one.runs], {})
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
        path = tuning_file(options.results, experiment, scale)
        found = before | chosen
        write_tuning(path, experiment, seeds, found, source_commit())
        outcome.files.append(path)
    return outcome
