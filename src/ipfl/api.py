"""The Python API's own functions: runs and comparisons with progress, made for notebooks.

They show how a run goes on unless told not to, take a method by its name, and raise `KeyboardInterrupt` after
Ctrl-C, when everything is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipfl.config.run_config import ADAPTED, RunConfig
from ipfl.core import Method
from ipfl.engines import EngineFactory
from ipfl.errors import InputError
from ipfl.methods import REFERENCE, check_method
from ipfl.methods import method as method_by_name
from ipfl.play import run as runs
from ipfl.results.result import Observer, Result
from ipfl.training.task import Task

if TYPE_CHECKING:
    from ipfl.keep.run_folder import RunOutput
    from ipfl.study.comparison import Comparison
    from ipfl.study.run_list import MakeObserver
    from ipfl.study.run_pool import MakePool

__all__ = ["Interrupted", "compare", "run"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run or a comparison, and what was finished is saved.

    Attributes:
        result: What was finished until then.
    """

    def __init__(self, result: Result | Comparison, message: str):
        super().__init__(message)
        self.result = result


def run(
    task: Task,
    method: Method[Any] | str,
    config: RunConfig | Mapping[str, Any] | None = None,
    *,
    engine: EngineFactory | None = None,
    out: RunOutput | Path | str | None = None,
    observer: Observer | None = None,
    reference: Result | None = None,
    progress: bool = True,
) -> Result:
    """Runs a method on a task.

    Args:
        task: Data and model.
        method: What to run: `ipfl.method("ditto", lam=2)`, or a name for its default settings, with `+adapt`
            behind it for the last step at the clients.
        config: Rounds, seed, training, evaluation and so on; None for the defaults. If it is a whole
            `Config`, the given task and method count, not what it says of them.
        engine: What moves the records, such as `ipfl.local_engine(workers=0)`; None for worker processes on
            this machine, one per core. Changes no result.
        out: Folder for the results, or a `RunOutput` that also says whether to overwrite or resume; None: the
            results stay in memory.
        observer: Told about every round, instead of a progress bar.
        reference: A run of the reference method on the same task and seed, for PMA.
        progress: Whether to show progress on the standard error output, or in the notebook.

    Returns:
        The result.

    Raises:
        InputError: Something is wrong with what was given; the message says what.
        Interrupted: Ctrl-C, after all finished rounds were saved; its `result` has them.
    """
    if not isinstance(task, Task):
        raise _no_task(task)
    settings = _as_config(config)
    if isinstance(method, str):
        from ipfl.config.whole_config import last_steps

        settings = settings.model_copy(update={"adapt": last_steps(settings.adapt, [method])[method]})
        chosen = method_by_name(method.removesuffix(ADAPTED))
    else:
        chosen = check_method(method)
    if observer is None and progress:
        from ipfl.report.progress import progress_observer

        observer = progress_observer(settings.row_name(chosen))
    result = runs.run(task, chosen, settings, engine=engine, out=out, observer=observer, reference=reference)
    if result.summary["interrupted"]:
        done = f"interrupted after {result.summary['rounds']} of {settings.rounds} rounds"
        raise Interrupted(result, done)
    return result


def compare(
    task: Task | Callable[[int], Task],
    methods: Sequence[str | Method[Any]] | Mapping[str, str | Method[Any]],
    seeds: int | Sequence[int] | None = None,
    config: RunConfig | Mapping[str, Any] | None = None,
    *,
    reference: str | Method[Any] = REFERENCE,
    out: Path | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    workers: int | None = None,
    make_observer: MakeObserver | None = None,
    make_pool: MakePool | None = None,
    progress: bool = True,
) -> Comparison:
    """Runs several methods, each with every seed, on the same data and the same budget.

    Args:
        task: Data and model. A task of `Task.load` is partitioned anew for every seed; data of your own stays
            the same; a function is called with the seed.
        methods: Names, with settings of their own if wanted (`"ditto:lam=2"`), or methods; as a dict, by the
            labels that they get. The reference is added if it is not among them.
        seeds: How many, from the config's on, or which; None for the config's own.
        config: As in `ipfl.run`.
        reference: The method that PMA is measured against.
        out: Folder for `METHOD/seed-S/` and `compare.json`; None keeps all in memory.
        overwrite: Replace a comparison that the folder holds.
        resume: Go on with the comparison that the folder holds; everything else must be as it was.
        workers: Processes that play runs side by side; None for one per core, 0 for none: one run after the
            other in this process. Changes no result.
        make_observer: Makes an observer for each run, instead of progress bars.
        make_pool: What plays the runs; None for processes of this machine, as `workers` says.
        progress: Whether to show progress on the standard error output, or in the notebook.

    Returns:
        The comparison, with the reasons why runs failed. It has models if there is a folder, or `workers=0`.

    Raises:
        InputError: Something is wrong with what was given; the message says what.
        Interrupted: Ctrl-C, after what was finished was saved; its `result` has it.
    """
    from ipfl.study import comparison as comparisons

    if not (isinstance(task, Task) or callable(task)):
        raise _no_task(task)
    with ExitStack() as stack:
        if make_observer is None and progress:
            from ipfl.report.progress import RunsProgress

            make_observer = stack.enter_context(RunsProgress())
        done = comparisons.compare(
            _as_config(config),
            methods,
            seeds,
            task=task,
            reference=reference,
            out=out,
            overwrite=overwrite,
            resume=resume,
            workers=workers,
            make_observer=make_observer,
            make_pool=make_pool,
        )
    if done.interrupted:
        raise Interrupted(done, "interrupted; what was finished is saved")
    return done


def _no_task(given: object) -> InputError:
    return InputError(f"expected a task, such as ipfl.Task.load(dataset='digits'), not {given!r:.60}")


def _as_config(config: RunConfig | Mapping[str, Any] | None) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    return RunConfig() if config is None else RunConfig.of(config)
