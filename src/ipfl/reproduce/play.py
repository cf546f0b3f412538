"""Plays the runs that are missing, side by side on all cores, and keeps what is needed of each.

A run lies in a folder that is named by its key. It is resumed if it was interrupted. When it is over, only
`summary.json` and `metrics.jsonl` stay: models and memories of hundreds of runs would fill the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ipfl.errors import InputError
from ipfl.keep.file_names import METRICS_FILE, SUMMARY_FILE
from ipfl.ledger.database import STORE_FILE
from ipfl.report.run_set import read_run
from ipfl.reproduce.plan import PlannedRun
from ipfl.reproduce.results_file import RunRecord, is_this_code, make_record, prefer_this_code
from ipfl.results.result import Result
from ipfl.study.run_order import RunOrder, RunOutcome, make_task_cache
from ipfl.study.run_pool import MakePool, RunPool, local_pool
from ipfl.study.run_series import MakeObserver
from ipfl.system.files import FolderLock, remove_folder
from ipfl.system.source import source_commit

OtherCommit = Literal["refuse", "use", "replay"]
"""What to do with a finished run of another commit."""


@dataclass
class Played:
    """What became of the runs that were asked for."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    """By key."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why there is none, by key."""
    is_interrupted: bool = False


def play_runs(
    runs: Iterable[PlannedRun],
    folder: Path,
    *,
    known: Mapping[str, RunRecord],
    other_commit: OtherCommit = "refuse",
    workers: int | None = None,
    make_observer: MakeObserver | None = None,
    make_pool: MakePool | None = None,
) -> Played:
    """Plays the runs that are neither known nor in the folder.

    Args:
        runs: Which; those with the same key are one run.
        folder: Where runs are, and go to.
        known: Runs whose numbers are known.
        other_commit: What to do with a finished run of another commit.
        workers: As in `ipfl.compare`.
        make_observer: Likewise.
        make_pool: Likewise.

    Raises:
        InputError: A finished run is of another commit.
    """
    wanted = _with_references(runs)
    played = Played()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
    except OSError as error:
        raise InputError(f"cannot write runs to {folder}: {error.strerror}") from error
    try:
        for key, run in wanted.items():
            record = prefer_this_code(known.get(key), _finished(run, folder))
            if record is None:
                continue
            if other_commit == "use" or is_this_code(record):
                played.records[key] = record
            elif other_commit == "refuse":
                raise InputError(
                    f"{run.label}, seed {run.seed}: its finished run is of commit {str(record.commit)[:10]}, "
                    f"the code here is {str(source_commit())[:10]}: --other-commit use, or replay"
                )
            else:
                remove_folder(folder / key)
        missing = _runs_to_play(wanted, played, folder)
        if missing:
            series = _Series(missing, folder, played, make_observer)
            tasks = make_task_cache(missing[0].config, None, missing[0].seed)
            pool = (make_pool or local_pool(workers))(len(missing), missing[0].config, tasks)
            with closing(pool):
                series.play_all(pool)
    finally:
        lock.release()
    return played


def _runs_to_play(wanted: Mapping[str, PlannedRun], played: Played, folder: Path) -> list[PlannedRun]:
    """The runs to play; also those whose numbers are known, but whose rounds others are measured by."""
    needed = {
        run.reference.key
        for key, run in wanted.items()
        if run.reference is not None and key not in played.records
    }
    for key in needed:
        if key in played.records and _finished_result(wanted[key], folder) is None:
            del played.records[key]
    return [run for key, run in wanted.items() if key not in played.records]


def _with_references(runs: Iterable[PlannedRun]) -> dict[str, PlannedRun]:
    """All runs by key, those that others need before them; runs on the same data follow each other."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        if run.reference is not None:
            found.setdefault(run.reference.key, run.reference)
        found.setdefault(run.key, run)
    order = {key: place for place, key in enumerate(found)}
    return dict(
        sorted(
            found.items(),
            key=lambda item: (item[1].seed, str(item[1].config.task), order[item[0]]),
        )
    )


def _finished(run: PlannedRun, folder: Path) -> RunRecord | None:
    """What is kept of a run that is in the folder; None if it is not finished."""
    result = _finished_result(run, folder)
    return None if result is None else make_record(run, result)


def _finished_result(run: PlannedRun, folder: Path) -> Result | None:
    place = folder / run.key
    if not (place / SUMMARY_FILE).exists():
        return None
    result = read_run(place)
    is_whole = not result.summary["interrupted"] and result.last is not None
    return result if is_whole else None


@dataclass
class _Series:
    """Runs to be played."""

    waiting: list[PlannedRun]
    folder: Path
    played: Played
    make_observer: MakeObserver | None
    playing: dict[str, PlannedRun] = field(default_factory=dict)
    """By the name of their folder."""
    begun: int = 0
    total: int = 0

    def play_all(self, pool: RunPool) -> None:
        """All runs, until Ctrl-C."""
        self.total = len(self.waiting)
        try:
            while self.waiting or self.playing:
                self._begin(pool)
                if self.playing:
                    self._enter(pool.wait())
        except KeyboardInterrupt:
            self.played.is_interrupted = True
            with suppress(KeyboardInterrupt):
                pool.interrupt()
                while (outcome := pool.wait()) is not None:
                    self._enter(outcome)

    def _begin(self, pool: RunPool) -> None:
        for run in list(self.waiting):
            if len(self.playing) == pool.capacity:
                return
            if run.reference is not None and run.reference.key in self.played.failures:
                self.waiting.remove(run)
                self.played.failures[run.key] = "its reference failed"
            elif run.reference is None or run.reference.key in self.played.records:
                self.waiting.remove(run)
                self.begun += 1
                self.playing[run.key] = run
                pool.start(self._order(run, pool.workers), self._observer(run))

    def _order(self, run: PlannedRun, workers: int | None) -> RunOrder:
        place = self.folder / run.key
        reference = None if run.reference is None else _finished_result(run.reference, self.folder)
        return RunOrder(
            run.label,
            run.method,
            run.config,
            place,
            resume=(place / STORE_FILE).exists(),
            workers=workers,
            reference=None if reference is None else reference.evaluations,
            reference_method=None if reference is None else str(reference.summary["method"]),
        )

    def _observer(self, run: PlannedRun) -> Any:
        if self.make_observer is None:
            return None
        name = f"{run.label}, {run.config.task.partition}, seed {run.seed}"
        return self.make_observer(name, self.begun, self.total)

    def _enter(self, outcome: RunOutcome | None) -> None:
        """Keeps the numbers of a run that is over."""
        assert outcome is not None, "a run was begun"
        assert outcome.order.folder is not None
        run = self.playing.pop(outcome.order.folder.name)
        if outcome.result is not None:
            self.played.records[run.key] = make_record(run, outcome.result)
            _drop_models(outcome.order.folder)
        elif not outcome.is_interrupted:
            self.played.failures[run.key] = str(outcome.failure)
        if outcome.is_interrupted:
            raise KeyboardInterrupt


def _drop_models(folder: Path) -> None:
    """Removes all of a finished run but its numbers."""
    for path in folder.iterdir():
        if path.name in (SUMMARY_FILE, METRICS_FILE):
            continue
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink()
