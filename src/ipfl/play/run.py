"""Runs one method on one task: puts engine, journal and round loop together, and writes the results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from ipfl.client.memory import ClientMemory
from ipfl.config.run_config import RunConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import NEWCOMER, Engine, HasMarket, Method
from ipfl.core.engine import TellsAccounts
from ipfl.core.profile import measure
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.local_engine import LocalEngine, local_engine
from ipfl.errors import InputError, NotSupportedError
from ipfl.keep.carried_balances import CarriedAccounts, load_carried_accounts, refuse_forgetting
from ipfl.keep.journal import Journal
from ipfl.keep.run_audit import key_at_hand
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.play.attack_report import attack_report
from ipfl.play.departures import Departures
from ipfl.play.loop import RoundLoop
from ipfl.results.result import Observer, Result, TakesNotes
from ipfl.results.result_models import KeptModels, PlayedRun
from ipfl.stress import make_wrapper
from ipfl.stress.attackers import Adversary
from ipfl.stress.faults import FaultPlan
from ipfl.stress.strategy import strategy_report
from ipfl.system.files import remove_folder
from ipfl.system.plugins import remember_code
from ipfl.system.retry import retry_while_disk_full
from ipfl.training.dry_pass import check_training
from ipfl.training.hardware import decide_hardware
from ipfl.training.task import Task


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
    journal = None if out is None else Journal(_as_output(out), config.faults)
    folder = None if journal is None else journal.folder
    carried = None if journal is None else _carry_accounts(journal, method)
    config, trial = _settle_training(config, task, journal)
    departures = Departures(config.clients, reference)
    adversary = Adversary.make(config.adversary, task.data, config.seed)
    wrap = make_wrapper(adversary, FaultPlan.make(config.faults, config.seed), config.strategy, config.seed)
    memory, kept = _client_memory(folder), _kept_models(journal, task, observer)
    context = EngineContext(
        task,
        method,
        config.train,
        config.seed,
        memory.folder,
        config.clients.deadline,
        wrap,
        config.privacy,
        None if kept is None else kept.folder,
    )
    with ExitStack() as held:
        if journal is not None:
            held.callback(journal.close)  # the folder is the run's until its results are posted
        with ExitStack() as stack:
            with measure("set-up"):
                with_probe = config.train.use_probe and not method.needs_probe
                check_training(task, config.train, config.seed, with_probe=with_probe)
                running_engine = stack.enter_context(closing((engine or local_engine())(context)))
                loop = RoundLoop(
                    task,
                    method,
                    config,
                    running_engine,
                    _server_memory(folder),
                    departures,
                    journal,
                    observer,
                    trial,
                    carried,
                    kept if isinstance(running_engine, LocalEngine) else None,
                )
                opening = method.opening_transfers(loop.state) if isinstance(method, HasMarket) else ()
                loop.begin_or_resume(opening)
                if journal is not None and isinstance(running_engine, TellsAccounts):
                    running_engine.tell_account = journal.tell_account
                    running_engine.keep_receipt = journal.keep_receipt
            loop.play_rounds()
            head = None if journal is None else journal.head()
            strategy = _strategy_report(config, running_engine, task)
        attacks = (
            None
            if adversary is None
            else attack_report(adversary, opening, loop.history, loop.last_evaluation)
        )
        result = loop.result(attacks, strategy, head)
        remember_code([result.summary["model"], result.summary["config"]])
        played = PlayedRun(task, method, loop.state, config.train, config.seed, memory, len(loop.history))
        if journal is not None and folder is not None:
            with measure("results"):
                retry_while_disk_full(
                    lambda: _write_results(folder, result, played, kept),
                    "cannot write the results",
                    folder.path,
                )
                journal.commit_results()
    return replace(result, source=played)


def _settle_training(
    config: RunConfig, task: Task, journal: Journal | None
) -> tuple[RunConfig, Mapping[str, Any] | None]:
    """Decides what is `auto` in `[train]`, or takes what was decided when the run was begun."""
    header = journal.header() if journal is not None and journal.is_resumed else None
    if header is None:
        train, found = decide_hardware(config.train, task, config.seed)
        trial = None if found is None else found.record()
    else:
        begun = TrainConfig.of(header["config"]["train"])
        train = config.train.model_copy(update={"precision": begun.precision, "device": begun.device})
        trial = header.get("trial")
    return config.model_copy(update={"train": train}), trial


def _carry_accounts(journal: Journal, method: Method[Any]) -> CarriedAccounts | None:
    """The accounts that the run begins with, or was begun with; None: all are opened anew."""
    if not journal.is_resumed:
        refuse_forgetting(journal.output)
    elif told := journal.header().get("accounts"):
        journal.output = replace(journal.output, accounts=told["name"])
    if journal.output.accounts is None:
        return None
    if not isinstance(method, HasMarket):
        raise InputError(f"accounts that outlive a run need a method with tokens, and {method.name} has none")
    return load_carried_accounts(journal.output, key_at_hand(journal.output))


def _strategy_report(config: RunConfig, engine: Engine, task: Task) -> Mapping[str, Any] | None:
    """What strategic clients did; None if there are none."""
    if config.strategy.cost is None:
        return None
    if not isinstance(engine, LocalEngine):
        raise InputError("strategy.cost needs the local engine: elsewhere clients decide for themselves")
    return strategy_report(config.strategy, engine.runner.memory, task.data.clients)


def _as_output(out: RunOutput | Path | str) -> RunOutput:
    return out if isinstance(out, RunOutput) else RunOutput(out)


def _server_memory(folder: RunFolder | None) -> ClientMemory:
    """Where the server keeps models of single clients."""
    return _temporary_memory("client-models") if folder is None else ClientMemory(folder.client_models)


def _client_memory(folder: RunFolder | None) -> ClientMemory:
    """Where clients keep what they remember: the result's models are made from it."""
    return _temporary_memory("memory") if folder is None else ClientMemory(folder.memory)


def _temporary_memory(name: str) -> ClientMemory:
    """A memory that is there for as long as anybody holds it."""
    parent = Path(mkdtemp(prefix=f"ipfl-{name}-"))
    memory = ClientMemory(parent / name)  # engines put a file of their own beside it
    finalize(memory, rmtree, parent, ignore_errors=True)
    return memory


def _kept_models(journal: Journal | None, task: Task, observer: Observer | None) -> KeptModels | None:
    """The clients' models in the folder; None: they can be made again, are on nodes, or nobody wants them."""
    if journal is None or not journal.output.keep_models or not task.is_users or task.input_dtype is None:
        return None
    tell = observer.note if isinstance(observer, TakesNotes) else lambda text: None
    return KeptModels(journal.folder.predictors, tell)


def _write_results(folder: RunFolder, result: Result, played: PlayedRun, kept: KeptModels | None) -> None:
    """The files of a finished run; may be repeated."""
    folder.write_models(result.models, played.network)
    with suppress(NotSupportedError):  # without the file, `ipfl personalize` says so
        folder.write_offer(played.method.offer(result.state, NEWCOMER))
    if kept is not None and result.history:
        kept.complete(played)
    elif folder.predictors.exists():  # of fewer rounds, from before the run was resumed
        remove_folder(folder.predictors)
    folder.write_summary(result.summary)
