"""Several methods on the same task, budget and seeds; PMA of each against the reference method.

Runs are independent of each other and played side by side (`run_pool`), with one exception: the reference
runs first for every seed. Its accuracy per client is the threshold ρ_i that the other runs are measured by,
round for round, and PMA is part of what their ledgers prove. Any method can be the reference: the paper has
FedAvg, and local training in its Limitations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipfl.client.task import Task
from ipfl.core import Method
from ipfl.core.files import write_json
from ipfl.errors import InputError
from ipfl.ledger.database import STORE_FILE
from ipfl.methods import REFERENCE, check_clusters
from ipfl.runs.comparison_folder import COMPARISON as COMPARISON
from ipfl.runs.comparison_folder import FIGURE_FILES as FIGURE_FILES
from ipfl.runs.comparison_folder import ComparisonFolder, lock_folder
from ipfl.runs.comparison_folder import comparison_files as comparison_files
from ipfl.runs.config import Config, RunConfig
from ipfl.runs.finished import FinishedRun
from ipfl.runs.folder import PLAN as PLAN
from ipfl.runs.folder import check_folder_path, source_commit
from ipfl.runs.frames import comparison_frame
from ipfl.runs.method_labels import Methods, folder_names, label_methods
from ipfl.runs.models import ServerModelsOnly
from ipfl.runs.result import Observer, Result
from ipfl.runs.run_order import MakeTask, RunOrder, RunOutcome, TaskCache, make_task_cache
from ipfl.runs.run_pool import MakePool, RunPool, local_pool

if TYPE_CHECKING:
    import pandas as pd

MakeObserver = Callable[[str, int, int], Observer | None]
"""Makes the observer of a run from its label, its number and how many there are."""

FIGURES = (
    "personalized_accuracy",
    "global_accuracy",
    "unseen_accuracy",
    "metrics",
    "pma",
    "opt_outs",
    "participation_rate",
    "purity",
    "seconds_per_round",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
)
"""What `compare.json` says of a run; the last three are derived from its summary."""


@dataclass
class MethodRuns:
    """All runs of one method."""

    method: Method[Any]
    results: dict[int, Result] = field(default_factory=dict)
    """Whole runs by seed."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why a run did not finish, by seed."""
    pma: dict[int, dict[int, float]] = field(default_factory=dict)
    """PMA of each client, by seed."""

    @property
    def void_seeds(self) -> list[int]:
        """Seeds of runs in which no round counted."""
        return [seed for seed, result in self.results.items() if result.summary.get("counted") == 0]

    def sort(self, seeds: Sequence[int]) -> None:
        """Puts all in the order of the seeds: figures must not depend on the order in which runs end."""
        self.results = {seed: self.results[seed] for seed in seeds if seed in self.results}
        self.failures = {seed: self.failures[seed] for seed in seeds if seed in self.failures}
        self.pma = {seed: self.pma[seed] for seed in seeds if seed in self.pma}

    def figures(self) -> dict[str, Any]:
        """Means over the seeds of what each run's summary says, and the runs' own figures."""
        seeds = {str(seed): _figures(result) for seed, result in self.results.items()}
        means = {name: _mean(one[name] for one in seeds.values()) for name in FIGURES}
        return {**means, "failures": {str(seed): why for seed, why in self.failures.items()}, "seeds": seeds}


def _figures(result: Result) -> dict[str, Any]:
    """Figures of one run. Traffic is divided by the rounds and by all clients, asked or not."""
    summary = result.summary
    client_rounds = summary["rounds"] * summary["clients"]
    derived = {
        "seconds_per_round": summary["seconds"] / summary["rounds"],
        "bytes_up_per_client_round": summary["bytes_up"] / client_rounds,
        "bytes_down_per_client_round": summary["bytes_down"] / client_rounds,
    }
    return {name: derived[name] if name in derived else summary[name] for name in FIGURES}


def _mean(values: Iterable[Any]) -> Any:
    """Mean of numbers, or of {mean, std} part by part; None where no run has a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], Mapping):
        return {part: _mean(value[part] for value in known) for part in known[0]}
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
        """Whether any run failed."""
        return any(entry.failures for entry in self.entries.values())

    def summary(self) -> dict[str, Any]:
        """What `compare.json` says."""
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

    def save(self, folder: Path) -> None:
        """Writes `compare.json`."""
        write_json(folder / COMPARISON, self.summary())


def prepare(config: Config, methods: Iterable[Method[Any]], seed: int) -> Task:
    """Builds the task, and finds what would stop a run before anything is written."""
    task = Task.build(config.task, seed)
    check_task(task, methods, seed)
    return task


def check_task(task: Task, methods: Iterable[Method[Any]], seed: int) -> None:
    """Finds what would stop a run of one of these methods on a task."""
    for method in methods:
        check_clusters(method, len(task.data.clients))
    task.network(seed)


def compare(
    config: RunConfig,
    methods: Methods,
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

    Args:
        config: Rounds and settings; a `Config` also says which task, and its `[method]` keys go to each
            method
            that has them.
        methods: Their names, with settings of their own if wanted (`Config.build_methods`), or methods; as a
            dict,
            by the labels that they get. The reference is added if it is not among them.
        seeds: How many, from the config's on, or which; for data, partition and training. None for the
            config's own.
        task: A task of your own, or what makes one for a seed; None: as the config says.
        reference: The method that PMA is measured against, named in the same way.
        out: Folder for `METHOD/seed-S/` and `compare.json`; None keeps all in memory.
        overwrite: Replace a comparison that the folder holds.
        resume: Go on with the comparison that the folder holds; everything else must be as it was
            (`read_plan` tells). Finished runs are not played again.
        workers: Processes that play runs side by side; None for one per core, 0 for none: one run after the
            other in this process. If there are more of them than runs, each run has an equal share for its
            clients. Changes no result.
        make_observer: Makes an observer for each run.
        make_pool: What plays the runs, such as `ipfl.runs.ray_runs.ray_pool()`; None for processes of this
            machine, as `workers` says.

    Returns:
        The comparison. A method that failed is in it with the reason; after Ctrl-C, it holds what was
        finished until then. A result from another process has no `state`.
    """
    chosen_seeds = _choose_seeds(seeds, config)
    built, reference_label = label_methods(config, methods, reference)
    tasks = make_task_cache(config, task, chosen_seeds[0])
    first = config.model_copy(update={"seed": chosen_seeds[0]})
    check_task(tasks.get(first), built.values(), chosen_seeds[0])
    folder = None if out is None else check_folder_path(Path(out))
    if resume and folder is None:
        raise InputError("a comparison that is resumed needs a folder (out)")
    entries = {label: MethodRuns(method) for label, method in built.items()}
    with ExitStack() as stack:
        place = None if folder is None else ComparisonFolder(folder)
        if folder is not None and place is not None:
            stack.callback(lock_folder(folder).release)
            place.recover()
            stack.callback(place.settle)
        if folder is not None and place is not None and not resume:
            place.prepare(overwrite=overwrite)
            named = not isinstance(methods, Mapping) and all(
                isinstance(n, str) for n in [*methods, reference]
            )
            if isinstance(config, Config) and named and not tasks.is_own:
                Plan(config, list(built), list(chosen_seeds), reference_label).write(folder)
            else:  # nothing that a file could say
                write_json(folder / PLAN, {"config": None})
        series = _RunSeries(
            config, entries, reference_label, chosen_seeds, folder, resume, make_observer, tasks
        )
        pool = (make_pool or local_pool(workers))(series.max_at_once, first, tasks)
        with closing(pool):
            series.run_all(pool)
        comparison = Comparison(config, chosen_seeds, entries, reference_label, series.is_interrupted, folder)
        if folder is not None and place is not None and place.settle():
            comparison.save(folder)
    return comparison


def _choose_seeds(seeds: int | Sequence[int] | None, config: RunConfig) -> tuple[int, ...]:
    if seeds is None:
        return (config.seed,)
    if isinstance(seeds, int):
        seeds = range(config.seed, config.seed + seeds)
    if not seeds:
        raise InputError("there is no seed to run with")
    return tuple(dict.fromkeys(seeds))


class Plan(NamedTuple):
    """What a comparison was begun with."""

    config: Config
    methods: list[str]
    seeds: list[int]
    reference: str

    def write(self, folder: Path) -> None:
        """Writes it to the folder of the comparison."""
        write_json(folder / PLAN, {**self._asdict(), "config": self.config.model_dump(mode="json")})


def read_plan(folder: Path) -> Plan:
    """The plan of a comparison that was begun in a folder."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        if plan["config"] is None:
            raise InputError(f"the comparison in {folder} was begun in Python: resume it there")
        names, seeds = [str(name) for name in plan["methods"]], [int(seed) for seed in plan["seeds"]]
        return Plan(Config.of(plan["config"]), names, seeds, str(plan["reference"]))
    except OSError as error:
        raise InputError(f"there is no comparison to resume in {folder}") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / PLAN} is not the plan of a comparison: {error!r}") from error


@dataclass
class _RunSeries:
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
