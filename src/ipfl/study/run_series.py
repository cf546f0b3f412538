"""Plays every method with every seed of a comparison: in which order, and what becomes of each outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.config.run_config import RunConfig
from ipfl.ledger.database import STORE_FILE
from ipfl.results.finished import FinishedRun
from ipfl.results.result import Observer, Result
from ipfl.results.result_models import ServerModelsOnly
from ipfl.study.method_labels import folder_names
from ipfl.study.run_order import RunOrder, RunOutcome, TaskCache
from ipfl.study.run_pool import RunPool
from ipfl.training.task import Task

if TYPE_CHECKING:
    from ipfl.study.comparison import MethodRuns

MakeObserver = Callable[[str, int, int], Observer | None]
"""Makes the observer of a run from its label, its number and how many there are."""


@dataclass
class RunSeries:
    """Runs every method with every seed, and enters what comes out."""

    config: RunConfig
    entries: dict[str, MethodRuns]
    reference: str
    seeds: tuple[int, ...]
    folder: Path | None
    resume: bool
    make_observer: MakeObserver | None
    tasks: TaskCache
    waiting: list[tuple[str, int]] = field(default_factory=list)
    """Method and seed of the runs to begin, in this order."""
    references: dict[int, Result | None] = field(default_factory=dict)
    """Of the seeds whose reference is over; None if it failed."""
    playing: int = 0
    begun: int = 0
    is_interrupted: bool = False

    @property
    def max_at_once(self) -> int:
        """How many runs there can be at the same time."""
        return len(self.seeds) * max(1, len(self.entries) - 1)

    def run_all(self, pool: RunPool) -> None:
        """All runs, until Ctrl-C."""
        self.waiting = self._in_order(is_alone=pool.capacity == 1)
        try:
            while self.waiting or self.playing:
                self._begin_runs(pool)
                self._enter(pool.wait())
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._end_runs(pool)
        for entry in self.entries.values():
            entry.sort(self.seeds)

    def _in_order(self, *, is_alone: bool) -> list[tuple[str, int]]:
        """Seed by seed, the reference first.

        Side by side, the reference comes before all of the seed before it, so that nobody waits for it.
        """
        ahead = 0 if is_alone else 1

        def place(run: tuple[str, int]) -> tuple[int, bool]:
            name, seed = run
            turn = self.seeds.index(seed)
            return (turn - ahead, False) if name == self.reference else (turn, True)

        return sorted(((name, seed) for seed in self.seeds for name in self.entries), key=place)

    def _begin_runs(self, pool: RunPool) -> None:
        """Begins as many runs as there is room for and as need not wait for a reference."""
        for name, seed in list(self.waiting):
            if self.playing == pool.capacity:
                return
            if name == self.reference or seed in self.references:
                self.waiting.remove((name, seed))
                self.begun += 1
                self.playing += 1
                pool.start(self._order(name, seed, pool.workers), self._observer(name, seed))

    def _enter(self, outcome: RunOutcome | None) -> None:
        """Notes how a run ended.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        assert outcome is not None, "a run was begun"
        self.playing -= 1
        name, seed, result = outcome.order.label, outcome.order.seed, outcome.result
        entry = self.entries[name]
        if name == self.reference:
            self.references[seed] = result
        if result is None:
            entry.failures[seed] = str(outcome.failure)
        else:
            entry.results[seed] = self._with_models(result, outcome.order)
            reference = None if name == self.reference else self.references[seed]
            if result.last is not None and reference is not None:
                entry.pma[seed] = result.last.pma(reference.reference(result.last.round)) or {}
        if outcome.is_interrupted:
            raise KeyboardInterrupt

    def _with_models(self, result: Result, order: RunOrder) -> Result:
        """A result with what its models come from, which must not keep the data of every seed in memory."""

        def get_task() -> Task:
            return self.tasks.get(order.config)

        if order.folder is not None:
            return replace(result, source=FinishedRun(order.folder, result.summary, get_task))
        return result if result.source else replace(result, source=ServerModelsOnly(get_task, order.seed))

    def _end_runs(self, pool: RunPool) -> None:
        """After Ctrl-C: every run ends in order, unless Ctrl-C is pressed again."""
        try:
            pool.interrupt()
            while (outcome := pool.wait()) is not None:
                with suppress(KeyboardInterrupt):
                    self._enter(outcome)
        except KeyboardInterrupt:
            pool.close()

    def _order(self, name: str, seed: int, workers: int | None) -> RunOrder:
        path = (
            None if self.folder is None else self.folder / folder_names(self.entries)[name] / f"seed-{seed}"
        )
        reference = None if name == self.reference else self.references[seed]
        return RunOrder(
            name,
            self.entries[name].method,
            self._config(name, seed),
            path,
            resume=self.resume and path is not None and (path / STORE_FILE).exists(),
            workers=workers,
            reference=None if reference is None else reference.evaluations,
            reference_method=None if reference is None else self.entries[self.reference].method.name,
        )

    def _config(self, name: str, seed: int) -> RunConfig:
        config = self.config.model_copy(update={"seed": seed})
        if name != self.reference:
            return config
        # Nobody can leave the reference for being worse than the reference.
        clients = config.clients.model_copy(update={"leave": False})
        return config.model_copy(update={"clients": clients})

    def _observer(self, name: str, seed: int) -> Observer | None:
        if self.make_observer is None:
            return None
        label = name if len(self.seeds) == 1 else f"{name}, seed {seed}"
        return self.make_observer(label, self.begun, len(self.seeds) * len(self.entries))
