"""The only round loop: asks an engine what a method wants to know, evaluates, keeps the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Protocol, TypeVar
from weakref import finalize

from ipfl.adversary import Adversary
from ipfl.config import (
    AdversaryConfig,
    AggregateConfig,
    ClientsConfig,
    EvaluateConfig,
    FaultsConfig,
    TrainConfig,
    check_clusters,
)
from ipfl.conversation import Traffic, came_to_nothing, converse, readable
from ipfl.core import (
    NEWCOMER,
    Bytes,
    ClientId,
    Engine,
    Method,
    Roster,
    Round,
    Setup,
    Vector,
    holdout_id,
    stream,
)
from ipfl.core_signals import InterruptHandler
from ipfl.departures import Departures
from ipfl.engines.local import LocalEngine
from ipfl.errors import InputError, NotSupportedError
from ipfl.evaluation import Evaluator
from ipfl.events import about, gathered
from ipfl.faults import FaultPlan
from ipfl.journal import Journal
from ipfl.memory import ClientMemory
from ipfl.metrics import Evaluation
from ipfl.models import Network
from ipfl.patience import disk_full, with_room
from ipfl.results import RunFolder, commit
from ipfl.shelf import Shelf
from ipfl.task import Task

S = TypeVar("S")
Line = dict[str, Any]
EngineFactory = Callable[[Task, Method[Any], TrainConfig, int, Path | None], Engine]
"""Makes an engine from task, method, training, seed, and the folder for what clients remember."""


class Observer(Protocol):
    """Told how a run goes on: a progress bar, a logger, a test."""

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over; `line` is what `metrics.jsonl` says of it."""

    def finish(self) -> None:
        """The run is over, however it ended."""


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) run."""

    summary: dict[str, Any]
    history: list[Line]
    """What `metrics.jsonl` holds, a dict per round."""
    evaluations: dict[int, Evaluation]
    """By round."""
    state: Any
    models: Mapping[str, Vector] = field(default_factory=dict)

    @property
    def last(self) -> Evaluation | None:
        """The evaluation after the last round."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def personalized_accuracy(self) -> float | None:
        """Mean accuracy over clients of the models they would deploy, after the last round."""
        figure = self.summary["personalized_accuracy"]
        return None if figure is None else float(figure["mean"])

    def reference(self, round: int) -> Mapping[ClientId, float] | None:
        """Accuracies ρ_i for PMA: those of the newest evaluation up to that round."""
        known = [r for r in self.evaluations if r <= round]
        return self.evaluations[max(known)].personalized if known else None


def run(
    task: Task,
    method: Method[S],
    *,
    rounds: int = 30,
    seed: int = 0,
    train: TrainConfig | None = None,
    evaluate: EvaluateConfig | None = None,
    clients: ClientsConfig | None = None,
    aggregate: AggregateConfig | None = None,
    adversary: AdversaryConfig | None = None,
    faults: FaultsConfig | None = None,
    engine: EngineFactory | None = None,
    workers: int | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    store: str | None = None,
    checkpoint_every: int = 1,
    observer: Observer | None = None,
    reference: Result | None = None,
    config: Mapping[str, Any] | None = None,
) -> Result:
    """Runs a method on a task.

    Args:
        task: Data and model.
        method: What to run.
        rounds: Number of rounds.
        seed: Decides initial parameters, selections and shuffles (the partition is the task's own).
        train: Local training; see `TrainConfig`.
        evaluate: When and on whom to evaluate; see `EvaluateConfig`.
        clients: Whether clients leave, and how long they are waited for; see `ClientsConfig`.
        aggregate: How replies become one model; see `AggregateConfig`.
        adversary: Which clients attack, and how; see `AdversaryConfig`.
        faults: Faults to inject; see `FaultsConfig`.
        engine: What moves the records; None for worker processes on this machine.
        workers: Worker processes; None for one per core, 0 for this process. Changes no result.
        out: Folder for the results; None keeps them in memory only.
        overwrite: Replace a run that the folder holds.
        resume: Go on with the run that the folder holds; everything else must be as it was. The result is
            the same to the last bit as without the interruption.
        store: URL of a database for rounds and ledger; None for `run.db` in the folder.
        checkpoint_every: Rounds between checkpoints, from which a run can be resumed.
        observer: Told about every round.
        reference: A run of the reference method on the same task and seed, for PMA.
        config: The whole config, for `summary.json`.

    Returns:
        The result; after Ctrl-C, what was finished until then.
    """
    train, evaluate = train or TrainConfig(), evaluate or EvaluateConfig()
    clients = clients or ClientsConfig()
    if out is None and (resume or store is not None):
        raise InputError("a run that is resumed or stored needs a folder (out)")
    foes, plan = Adversary.of(adversary, task.data, seed), FaultPlan.of(faults, seed)
    if engine is not None and (foes is not None or plan is not None):
        raise InputError(
            "[adversary] and [faults] need the local engine: only its clients can be made to err"
        )
    folder = None if out is None else RunFolder(Path(out), overwrite=overwrite, resume=resume)
    journal = None if folder is None else Journal(folder, store, checkpoint_every, faults)
    memory = None if folder is None else folder.memory
    with ExitStack() as stack:
        if journal is not None:
            stack.callback(journal.close)
        options = {"workers": workers, "adversary": foes, "faults": plan, "deadline": clients.deadline}
        hire = engine or partial(_local, options=options)
        moves = stack.enter_context(closing(hire(task, method, train, seed, memory)))
        leaving = Departures(clients, reference)
        shelf = ClientMemory(folder.shelf if folder else Path(mkdtemp(prefix="ipfl-shelf-")))
        if folder is None:  # the result's state can be used for as long as anybody holds it
            finalize(shelf, rmtree, shelf.folder, ignore_errors=True)
        at = None if folder is None else folder.path
        loop = _Loop(task, method, moves, shelf, rounds, seed, train, evaluate, leaving, aggregate, at)
        header, opening = loop.header(config), method.opening_transfers(loop.state)
        if journal is not None and resume:
            loop.restore(*journal.resume(header, opening, loop.state))
            loop.started -= folder.seconds() if folder else 0
        elif journal is not None:
            journal.begin(header, opening)
        if observer is not None:
            observer.start(method.name, rounds)
        try:
            with InterruptHandler() as interrupt:
                loop.go(journal, observer, interrupt)
        except KeyboardInterrupt:
            loop.interrupted = True
        finally:
            if observer is not None:
                observer.finish()
        if journal is not None:
            loop.ledger = journal.head()
    result = loop.result(config)
    if foes is not None:
        result.summary["adversary"] = foes.outcome(opening, result.history, result.last)
    if folder is not None:
        network = task.network(seed)
        with_room(lambda: _write(folder, result, method, network), "cannot write the results", folder.path)
    return result


def _write(folder: RunFolder, result: Result, method: Method[S], network: Network) -> None:
    """The files of a finished run; may be repeated."""
    folder.write_models(result.models, network)
    with suppress(NotSupportedError):  # without the file, `ipfl personalize` says so
        folder.write_offer(method.offer(result.state, NEWCOMER))
    folder.write_summary(result.summary)


def _local(
    task: Task,
    method: Method[Any],
    train: TrainConfig,
    seed: int,
    memory: Path | None,
    *,
    options: Mapping[str, Any],
) -> Engine:
    return LocalEngine(task, method, train, seed=seed, memory=memory, **options)


class _Loop:
    """One run on its way: what `run` would otherwise carry in a dozen variables."""

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        engine: Engine,
        shelf: ClientMemory,
        rounds: int,
        seed: int,
        train: TrainConfig,
        evaluate: EvaluateConfig,
        departures: Departures,
        aggregate: AggregateConfig | None,
        folder: Path | None,
    ):
        data = task.data
        check_clusters(method, len(data.clients))
        per_round = train.per_round or max(1, len(data.clients) // 2)
        self.task, self.method, self.engine, self.rounds, self.seed = task, method, engine, rounds, seed
        self.shelf, self.departures = shelf, departures
        self.least, self.folder = train.min_clients, folder
        self.setup = Setup(
            params=task.network(seed).read(),
            clients=data.clients,
            per_round=per_round,
            rounds=rounds,
            classes=data.classes,
            seed=seed,
            holdouts=tuple(holdout_id(d) for d in task.holdouts),
            fresh=lambda number: task.network(int(stream(seed, "start", number).integers(2**31))).read(),
            aggregate=aggregate,
            shelf=Shelf(shelf),
        )
        self.state = method.init(self.setup)
        self.evaluator = Evaluator(task, method, evaluate, seed)
        self.budget = self.evaluator.budget(self.state, train, per_round, rounds)
        self.history: list[Line] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.interrupted = False
        self.ledger: str | None = None
        self.started = time.perf_counter()

    def go(self, journal: Journal | None, observer: Observer | None, interrupt: InterruptHandler) -> None:
        """All rounds that are left. A round enters the history whole, after its evaluation."""
        for round in range(len(self.history), self.rounds):
            interrupt.raise_if_requested()
            # As it will be read back: a resumed run must not differ in so much as a tuple for a list.
            line: Line = json.loads(json.dumps(self._round(round)))
            with interrupt.delay():  # what is in the store must be in the history, and the reverse
                if journal is None or journal.commit(line, self.state, last=round == self.rounds - 1):
                    self._committed(round)
                self.history.append(line)
            if observer is not None:
                observer.round(line)

    def _committed(self, round: int) -> None:
        """This round will not be played again."""
        self.engine.committed(round)
        self.shelf.committed = round

    def _round(self, round: int) -> Line:
        done, clients, traffic = with_room(
            lambda: self._play(round), f"cannot play round {round}", self.folder
        )
        if came_to_nothing(done.facts.get("seats", ()), self.least):
            done = self._void(done, round)
        line: Line = {"round": round, "clients": clients, **done.facts}
        last = round == self.rounds - 1
        if self.evaluator.due(round, last, self.budget):
            evaluation = self.evaluator(self.engine, done.state, round, last=last)
            line["evaluation"] = self._figures(evaluation) | evaluation.line()
            self._evaluated(evaluation)
        moved: Bytes = traffic
        if self.engine.traffic is not None:  # it knows better
            moved, self.engine.traffic = self.engine.traffic, Bytes()
        line |= {"bytes_down": moved.down, "bytes_up": moved.up}
        told = {about(event) for event in self.engine.events}  # more than that they did not answer
        silent = [event for event in traffic.events() if about(event) not in told]
        line["events"] = gathered([*done.events, *self.engine.events, *silent])
        self.engine.events.clear()
        self.state = done.state
        return line

    def _play(self, round: int) -> tuple[Round[Any], int, Traffic]:
        """The round's conversation, with how many clients there were to ask.

        It leaves nothing behind if the disk is full, and may be repeated then.
        """
        staying = tuple(c for c in self.task.data.clients if c not in self.departures.gone)
        roster, traffic = Roster(self.engine.present(staying)), Traffic()
        try:
            talk = self.method.round(self.state, roster, round)
            done = converse(talk, self.engine, round, traffic, readable)
            return done, len(roster.clients), traffic
        except OSError as error:
            if disk_full(error):
                self._forget(round)
                self.engine.events.clear()
            raise

    def _void(self, done: Round[Any], round: int) -> Round[Any]:
        """The round as if it had not been, but for what is recorded of it."""
        self._forget(round)
        delivered = {client for client, _, _, did in done.facts["seats"] if did}
        what = f"the round is void: {len(delivered)} of the {self.least} clients that it needs delivered"
        events = [event for event in done.events if about(event) is not None]
        facts = {"void": True, **self.method.void(self.state, done.facts)}
        return Round(self.state, facts, (what, *events))

    def _forget(self, round: int) -> None:
        """Takes back what clients remember of a round and the server put on its shelf, and of later ones."""
        self.engine.rewind(round - 1)
        self.shelf.forget_after(round - 1)

    def _evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.round] = evaluation
        self.budget.spent += self.budget.per_evaluation
        self.departures.update(evaluation)

    def restore(self, lines: list[Line], state: Any) -> None:
        """Goes on where an earlier process stopped."""
        self.history, self.state = lines, state
        self._forget(len(lines))
        self._committed(len(lines) - 1)
        for line in lines:
            if "evaluation" in line:
                self._evaluated(Evaluation.of(line["round"], line["evaluation"]))

    def _figures(self, evaluation: Evaluation) -> dict[str, Any]:
        reference = self.departures.reference
        return evaluation.figures(None if reference is None else reference.reference(evaluation.round))

    def header(self, config: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the store says of the run as a whole."""
        return {
            "method": self.method.name,
            "seed": self.seed,
            "rounds": self.rounds,
            "clients": list(self.task.data.clients),
            "rules": dict(self.method.rules()),
            "min_clients": self.least,
            "config": config,
        }

    def result(self, config: Mapping[str, Any] | None) -> Result:
        """Puts the summary together from what was finished."""
        data = self.task.data
        models = self.method.models(self.state)
        last = self.evaluations[max(self.evaluations)] if self.evaluations else None
        empty = Evaluation(-1, {}, {}, None, None)
        figures = self._figures(last) if last else empty.figures()
        clusters = [name for name in models if name.startswith("cluster")]
        summary = {
            "method": self.method.name,
            "dataset": data.name,
            "input_shape": list(data.input_shape),
            "classes": data.classes,
            "partition": data.partition,
            "clients": len(data.clients) + len(data.unseen),
            "unseen": len(data.unseen),
            "clusters": len(clusters) or None,
            "rounds": len(self.history),
            "seed": self.seed,
            **figures,
            "evaluated_round": last.round if last else None,
            "left": len(self.departures.gone),
            "adversary": None,
            "report": self.method.report(self.state),
            "ledger": self.ledger,
            "bytes_down": sum(line["bytes_down"] for line in self.history),
            "bytes_up": sum(line["bytes_up"] for line in self.history),
            "interrupted": self.interrupted,
            "seconds": round(time.perf_counter() - self.started, 3),
            "config": config,
            "commit": commit(),
        }
        return Result(summary, self.history, self.evaluations, self.state, models)
