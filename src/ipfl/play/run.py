"""Runs one method on one task: puts engine, callbacks and round loop together, and writes the results.

What a run does not need is not imported: one without a folder knows of no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from ipfl.client.memory import ClientMemory
from ipfl.config.run_config import AdversaryConfig, RunConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import Method
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.local_engine import LocalEngine, local_engine
from ipfl.errors import InputError
from ipfl.play.loop import Callback, RoundLoop, Watching
from ipfl.play.setup import make_setup
from ipfl.results.result import Observer, Result
from ipfl.results.result_models import PlayedRun
from ipfl.system.files import explain_full_disk
from ipfl.training.dry_pass import check_training
from ipfl.training.hardware import decide_hardware
from ipfl.training.task import Task

if TYPE_CHECKING:
    from ipfl.client.runner import ClientRunner, Runner
    from ipfl.keep.journal import Journal
    from ipfl.keep.run_folder import RunOutput
    from ipfl.stress.attackers import Adversary


def run(
    task: Task,
    method: Method[Any],
    config: RunConfig | None = None,
    *,
    engine: EngineFactory | None = None,
    out: RunOutput | Path | str | None = None,
    observer: Observer | None = None,
    reference: Result | None = None,
) -> Result:
    """Runs a method on a task.

    Args:
        task: Data and model.
        method: What to run.
        config: Rounds, seed, training, evaluation and so on; None for the defaults. What it says of data and
            method, if it is a whole `Config`, is only recorded.
        engine: What moves the records, such as `ipfl.local_engine(workers=0)`; None for worker processes on
            this machine, one per core. Changes no result.
        out: Folder for the results, or a `RunOutput` that also says whether to overwrite or resume; None: the
            results stay in memory.
        observer: Told about every round.
        reference: A run of the reference method on the same task and seed, for PMA.

    Returns:
        The result; after Ctrl-C, what was finished until then.
    """
    config = config or RunConfig()
    journal = _open_journal(out, method, config)
    begun = None if journal is None or not journal.is_resumed else journal.header()
    config = _settle_training(config, begun)
    adversary, wrap = _stress(config, task)
    memory = _memory("memory" if journal is None else journal.folder.memory)
    context = EngineContext(
        task,
        method,
        config.train,
        config.seed,
        memory.folder,
        config.clients.deadline,
        wrap,
        config.privacy,
        config.adapt,
    )
    callbacks = _callbacks(config, journal, adversary, observer, reference)
    with ExitStack() as held:
        held.enter_context(explain_full_disk("" if journal is None else journal.advice))
        if journal is not None:
            held.callback(journal.release)  # the folder is the run's until its results are posted
        make_engine = engine or local_engine()
        result = _play_rounds(context, config, make_engine, journal, callbacks, reference)
        played = PlayedRun(task, method, result.state, config, memory, len(result.history))
        if journal is not None:
            journal.write_results(result, played)
    return replace(result, source=played)


def _play_rounds(
    context: EngineContext,
    config: RunConfig,
    make_engine: EngineFactory,
    journal: Journal | None,
    callbacks: Sequence[Callback],
    reference: Result | None,
) -> Result:
    """Plays the rounds, on an engine that is there for them alone."""
    task, method = context.task, context.method
    with_probe = config.train.use_probe and not method.needs_probe
    check_training(task, config.train, config.seed, with_probe=with_probe)
    with closing(make_engine(context)) as engine:
        if config.strategy.cost is not None and not isinstance(engine, LocalEngine):
            raise InputError("strategy.cost needs the local engine: elsewhere clients decide themselves")
        begun = {} if journal is None else journal.begun_with(task.data.clients)
        models = _memory("client-models" if journal is None else journal.folder.client_models)
        setup = make_setup(task, method, config, models, **begun)
        loop = RoundLoop(task, method, config, engine, models, setup, reference)
        loop.begin(callbacks)
        loop.play_rounds()
        return loop.result()


def _open_journal(
    out: RunOutput | Path | str | None, method: Method[Any], config: RunConfig
) -> Journal | None:
    """What keeps the run; None: nothing does."""
    if out is None:
        return None
    from ipfl.keep.journal import Journal
    from ipfl.keep.run_folder import RunOutput

    return Journal(out if isinstance(out, RunOutput) else RunOutput(out), method)


def _callbacks(
    config: RunConfig,
    journal: Journal | None,
    adversary: Adversary | None,
    observer: Observer | None,
    reference: Result | None,
) -> list[Callback]:
    """All that takes part in the run beside its method."""
    found: list[Callback] = [] if journal is None else [journal]
    if config.clients.join_round is not None:
        from ipfl.play.membership import Arrivals

        found.append(Arrivals())
    if config.clients.leave:
        from ipfl.play.membership import Departures

        found.append(Departures(reference))
    if adversary is not None:
        from ipfl.play.attack_report import AttackReport

        found.append(AttackReport(adversary))
    if config.strategy.cost is not None:
        from ipfl.play.attack_report import StrategyReport

        found.append(StrategyReport())
    if config.privacy.is_on:
        from ipfl.play.privacy_report import PrivacyReport

        found.append(PrivacyReport())
    return found if observer is None else [*found, Watching(observer)]


def _stress(
    config: RunConfig, task: Task
) -> tuple[Adversary | None, Callable[[ClientRunner], Runner] | None]:
    """Attackers, and what is put around clients that cheat, follow a strategy or fail."""
    no_faults = not config.faults.has_client_faults
    if config.adversary == AdversaryConfig() and config.strategy.cost is None and no_faults:
        return None, None
    from ipfl.stress import make_wrapper
    from ipfl.stress.attackers import Adversary
    from ipfl.stress.faults import FaultPlan

    adversary = Adversary.make(config.adversary, task.data, config.seed)
    plan = FaultPlan.make(config.faults, config.seed)
    return adversary, make_wrapper(adversary, plan, config.strategy, config.seed)


def _settle_training(config: RunConfig, begun: Mapping[str, Any] | None) -> RunConfig:
    """Decides what is `auto` in `[train]`, or takes what was decided when the run was begun."""
    if begun is None:
        train = decide_hardware(config.train)
    else:
        settled = TrainConfig.of(begun["config"]["train"])
        train = config.train.model_copy(update={"precision": settled.precision, "device": settled.device})
    return config.model_copy(update={"train": train})


def _memory(place: Path | str) -> ClientMemory:
    """What clients remember, or the server keeps of them: in a folder, or for as long as anybody holds it."""
    if isinstance(place, Path):
        return ClientMemory(place)
    parent = Path(mkdtemp(prefix=f"ipfl-{place}-"))
    memory = ClientMemory(parent / place)  # engines put a file of their own beside it
    finalize(memory, rmtree, parent, ignore_errors=True)
    return memory
