"""One run of a study, which any process can play: this one, another, or a Ray worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ipfl.config.run_config import RunConfig
from ipfl.config.task_section import TaskConfig
from ipfl.config.whole_config import Config
from ipfl.core import Method
from ipfl.engines.local_engine import local_engine
from ipfl.errors import InputError
from ipfl.keep.run_folder import RunOutput, holds_run
from ipfl.play.run import run
from ipfl.results.result import Observer, Result
from ipfl.training.task import Task


@dataclass(frozen=True)
class StudyRun:
    """A run of a study. Can be pickled."""

    key: str
    """Its name in the study, and its folder if the study has one."""
    label: str
    """Of the method, such as `ditto:lam=2`."""
    method: Method[Any]
    config: RunConfig
    """With the seed of the run."""
    title: str = ""
    """Its name while it is played."""
    reference: StudyRun | None = None
    """The run whose accuracies are the threshold of this one: it is played before."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this method alone, which tables show."""
    folder: Path | None = None
    """None: the results stay in memory."""
    resume: bool = False
    """Goes on with what the folder holds of it, if it was begun."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.seed


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run."""

    run: StudyRun
    result: Result | None = None
    """None if it failed."""
    failure: str | None = None
    """Why there is no whole result."""
    is_interrupted: bool = False

    def without_state(self) -> RunOutcome:
        """The part that can leave the process: the method's state may name files that end with it."""
        result = None if self.result is None else replace(self.result, state=None, source=None)
        return replace(self, result=result)


MakeTask = Callable[[int], Task]
"""Makes the task of a seed."""


class TaskCache:
    """The task of the last run: the next one often has the same data.

    Args:
        make: Makes tasks of the user's own; None: the config of a run says what its task is.
    """

    def __init__(self, make: MakeTask | None = None):
        self.make_own = make
        self._task: Task | None = None
        self._key: tuple[TaskConfig | None, int] | None = None

    def get(self, config: RunConfig) -> Task:
        """The task of a run with this config."""
        described = config.task if isinstance(config, Config) and self.make_own is None else None
        key = described, config.seed
        if self._task is None or self._key != key:
            self._task = None  # its memory, before the next one needs as much
            if self.make_own is not None:
                self._task = self.make_own(config.seed)
            elif described is not None:
                self._task = Task.build(described, config.seed)
            else:
                raise InputError("a comparison needs a task")
            self._key = key
        return self._task


def make_task_cache(task: Task | MakeTask | None) -> TaskCache:
    """The tasks of all seeds: the same data for every one if it is the user's own, else partitioned anew."""
    return TaskCache(partial(_task_of_seed, task) if isinstance(task, Task) else task)


def _task_of_seed(task: Task, seed: int) -> Task:
    return task if task.config is None or seed == task.seed else Task.build(task.config, seed)


def play_run(
    given: StudyRun,
    reference: Result | None,
    workers: int | None,
    observer: Observer | None,
    tasks: TaskCache,
) -> RunOutcome:
    """Plays a run; a failure is noted, not raised.

    Args:
        given: Which.
        reference: What came out of its reference.
        workers: As in `ipfl.local_engine`.
        observer: Told about every round.
        tasks: What makes the task.

    Raises:
        KeyboardInterrupt: Ctrl-C, before the first round or after the last one.
    """
    output = None
    if given.folder is not None:
        output = RunOutput(given.folder, resume=given.resume and holds_run(given.folder))
    try:
        result = run(
            tasks.get(given.config),
            given.method,
            given.config,
            engine=local_engine(workers),
            out=output,
            observer=observer,
            reference=reference,
        )
    except Exception as error:  # whatever a method raises, the others go on
        return RunOutcome(given, failure=f"{type(error).__name__}: {error}")
    if result.summary["interrupted"]:
        failure = f"interrupted after {result.summary['rounds']} rounds"
        return RunOutcome(given, failure=failure, is_interrupted=True)
    return RunOutcome(given, result)


def interrupted_outcome(given: StudyRun) -> RunOutcome:
    """Of a run that Ctrl-C ended outside its rounds."""
    return RunOutcome(given, failure="interrupted", is_interrupted=True)
