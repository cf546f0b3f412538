"""Plays a list of runs: the one scheduler under comparisons, the paper's experiments and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from ipfl.results.result import Observer, Result
from ipfl.study.run_pool import MakePool, RunPool
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache

MakeObserver = Callable[[str, int, int], Observer | None]
"""Makes the observer of a run from its title, its number and how many there are."""


class RunList:
    """Runs to be played, as many at the same time as a pool has room for.

    Those of a seed follow each other, references first. Side by side, a reference comes before all of the
    seed before it, so that nobody waits for it. A run whose reference failed is played without one.

    Args:
        runs: Which, each with a key of its own; a reference is among them, or among `references`.
        enter: Told how each run ended; the first argument is the run as it was given.
        references: What came out of references that were played before, by key.
        make_observer: Makes an observer for each run.
    """

    def __init__(
        self,
        runs: Iterable[StudyRun],
        enter: Callable[[StudyRun, RunOutcome], None],
        references: Mapping[str, Result] | None = None,
        make_observer: MakeObserver | None = None,
    ):
        self._waiting = list(runs)
        self._enter = enter
        self._make_observer = make_observer
        self._needed = {run.reference.key for run in self._waiting if run.reference is not None}
        self._references: dict[str, Result | None] = dict(references or {})
        self._playing: dict[str, StudyRun] = {}
        self._begun, self._total = 0, len(self._waiting)

    def play(self, make_pool: MakePool, tasks: TaskCache) -> bool:
        """Plays all runs.

        Returns:
            Whether Ctrl-C ended it.
        """
        at_once = max(1, sum(run.key not in self._needed for run in self._waiting))
        with closing(make_pool(at_once, self._waiting[0].config, tasks)) as pool:
            self._sort(is_alone=pool.capacity == 1)
            try:
                while self._waiting or self._playing:
                    self._begin_runs(pool)
                    self._end(pool.wait())
            except KeyboardInterrupt:
                self._stop(pool)
                return True
        return False

    def _sort(self, *, is_alone: bool) -> None:
        turns = {seed: turn for turn, seed in enumerate(dict.fromkeys(run.seed for run in self._waiting))}
        ahead = 0 if is_alone else 1

        def place(run: StudyRun) -> tuple[int, bool]:
            is_needed = run.key in self._needed
            return turns[run.seed] - (ahead if is_needed else 0), not is_needed

        self._waiting.sort(key=place)

    def _begin_runs(self, pool: RunPool) -> None:
        """Begins as many runs as there is room for and as need not wait for a reference."""
        for run in list(self._waiting):
            if len(self._playing) == pool.capacity:
                return
            if run.reference is None or run.reference.key in self._references:
                self._waiting.remove(run)
                self._begun += 1
                self._playing[run.key] = run
                observer = self._make_observer and self._make_observer(run.title, self._begun, self._total)
                pool.start(replace(run, reference=None), self._figures_of(run.reference), observer)

    def _figures_of(self, reference: StudyRun | None) -> Result | None:
        """The figures of a reference that a run needs, small enough for another process."""
        result = None if reference is None else self._references[reference.key]
        if result is None:
            return None
        return Result({"method": result.summary["method"]}, [], result.evaluations, None)

    def _end(self, outcome: RunOutcome | None) -> None:
        """Notes how a run ended.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        assert outcome is not None, "a run was begun"
        run = self._playing.pop(outcome.run.key)
        if run.key in self._needed:
            self._references[run.key] = outcome.result
        self._enter(run, outcome)
        if outcome.is_interrupted:
            raise KeyboardInterrupt

    def _stop(self, pool: RunPool) -> None:
        """After Ctrl-C: every run ends in order, unless Ctrl-C is pressed again."""
        try:
            pool.interrupt()
            while (outcome := pool.wait()) is not None:
                with suppress(KeyboardInterrupt):
                    self._end(outcome)
        except KeyboardInterrupt:
            pool.close()
