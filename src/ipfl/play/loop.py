"""The only round loop: drives a method's rounds over an engine, and evaluates them.

All else is a callback: keeping rounds, clients that leave, reports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ipfl.client.memory import ClientMemory
from ipfl.config.run_config import RunConfig
from ipfl.core import (
    NO_CLUSTER,
    Bytes,
    ClientId,
    Engine,
    Event,
    HasBooks,
    HasReport,
    Method,
    Roster,
    Round,
    Setup,
    cluster_name,
    is_below_quorum,
)
from ipfl.methods import check_clusters, check_last_step, check_target
from ipfl.play.driver import Traffic, drive
from ipfl.play.evaluation import Evaluator
from ipfl.play.metrics import Evaluation, is_learned
from ipfl.results.result import Line, Observer, Result
from ipfl.system.plugins import source_commit
from ipfl.system.signals import InterruptHandler
from ipfl.training.architectures import model_reference
from ipfl.training.task import Task


class Callback:
    """Called by the round loop; each of these functions may be left as it is.

    Callbacks are called in the order in which they are given.
    """

    def begin(self, loop: RoundLoop) -> None:
        """Before the first round that this process plays; a callback that keeps rounds restores them here."""

    def keep(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Makes a round outlive the process, before anybody hears of it and clients forget older ones."""

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """After each whole round; `line` is what `metrics.jsonl` says of it."""

    def close(self) -> None:
        """No more rounds, however they ended."""

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """After the last round: may add to the summary."""


class Watching(Callback):
    """An observer, told how the run goes on."""

    def __init__(self, observer: Observer):
        self.observer = observer

    def begin(self, loop: RoundLoop) -> None:
        """Tells it that the first round is about to begin."""
        self.observer.start(loop.method.name, loop.config.rounds)

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Tells it of a round."""
        self.observer.round(line)

    def close(self) -> None:
        """Tells it that there are no more."""
        self.observer.finish()


class RoundLoop:
    """The rounds of one run, and what is known of them so far.

    Args:
        task: Data and model.
        method: What is run.
        config: How it is run.
        engine: Moves the records.
        server_memory: Where the server keeps models of single clients.
        setup: What the method knows before the first round.
        reference: A run whose accuracies are the thresholds of PMA.
    """

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        config: RunConfig,
        engine: Engine,
        server_memory: ClientMemory,
        setup: Setup,
        reference: Result | None = None,
    ):
        check_clusters(method, len(task.data.clients))
        config.train.check_quorum(len(task.data.clients))
        check_target(method, task.target.kind)
        check_last_step(method, config.adapt)
        self.task, self.method, self.config, self.engine = task, method, config, engine
        self.server_memory, self.reference = server_memory, reference
        self.callbacks: tuple[Callback, ...] = ()
        self.state = method.init(setup)
        decides = config.clients.leave or config.patience is not None
        self.evaluator = Evaluator(
            task, method, config.evaluate, config.seed, decides=decides, adapt=config.adapt
        )
        self.opening: tuple[Any, ...] = ()
        """Rows that stand before round 0, such as a market's first transfers."""
        if isinstance(method, HasBooks):
            self.opening = tuple(method.opening_transfers(self.state))
        self.history: list[Line] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.departed: set[ClientId] = set()
        """Clients that left for good."""
        self.late: set[ClientId] = set()
        """Clients that have not come yet."""
        self.last_step_seconds: float | None = None
        """What the last step took a client, when it was last taken; None: it was not, or nobody said so."""
        self.is_interrupted = False
        self.begun = time.perf_counter()
        """When the first round began, by the clock of this process."""

    @property
    def last_evaluation(self) -> Evaluation | None:
        """The newest one."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def is_stopped_early(self) -> bool:
        """Whether the clients' models have not become better for as long as `patience` allows."""
        return is_learned(self.evaluations, self.config.patience)

    def begin(self, callbacks: Sequence[Callback]) -> None:
        """Lets all callbacks begin; one that keeps rounds brings back those of an earlier process."""
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            callback.begin(self)

    def restore(self, history: Sequence[Line], state: Any) -> None:
        """Goes on after these rounds, in which the state became this one."""
        self.history, self.state = list(history), state
        self.forget(len(history))
        self.commit(len(history) - 1)
        for line in self.history:
            if "evaluation" in line:
                evaluation = Evaluation.from_line(line["round"], line["evaluation"])
                self.evaluations[evaluation.round] = evaluation

    def play_rounds(self) -> None:
        """Plays the rounds that are left, until Ctrl-C. Only whole rounds, evaluated, enter the history."""
        try:
            # Sums of numpy's BLAS depend on its threads, and their waiting costs more than they bring.
            with InterruptHandler() as interrupt, threadpool_limits(1, "blas"):
                for round in range(len(self.history), self.config.rounds):
                    if self.is_stopped_early:
                        break
                    interrupt.raise_if_requested()
                    line = self._round(round)
                    # What is kept must be in the history, and the reverse.
                    with interrupt.delay():
                        self._keep(line)
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            for callback in self.callbacks:
                callback.close()

    def _keep(self, line: Line) -> None:
        """Enters a round into the history, and tells all callbacks."""
        self.history.append(line)
        for callback in self.callbacks:
            callback.keep(self, line)
        self.commit(line["round"])
        for callback in self.callbacks:
            callback.round(self, line)

    def commit(self, round: int) -> None:
        """This round will not be played again."""
        self.engine.commit(round)
        self.server_memory.committed = round

    def forget(self, round: int) -> None:
        """Removes what clients remember, and the server keeps of them, of a round and of later ones."""
        self.engine.roll_back(round - 1)
        self.server_memory.forget_after(round - 1)

    def _round(self, round: int) -> Line:
        """Plays and evaluates a round; returns what `metrics.jsonl` says of it."""
        away = self.departed | self.late
        members = tuple(client for client in self.task.data.clients if client not in away)
        roster, traffic = Roster(self.engine.present(members)), Traffic()
        phases = self.method.round(self.state, roster, round)
        done = drive(phases, self.engine, round, traffic, self.config.aggregate.max_weight)
        line: Line = {"round": round, "clients": len(roster.clients)}
        if is_below_quorum(done.seats, self.config.train.min_clients):
            done = self._roll_back(done, round)
            line["rolled_back"] = True
        if traffic.epsilon:
            line["epsilon"] = [[client, traffic.epsilon[client]] for client in sorted(traffic.epsilon)]
        line |= {"seats": done.seats, **({} if done.market is None else done.market.line())}
        if round == self.config.rounds - 1 or self.evaluator.is_due(round):
            evaluation = self._evaluate(done.state, round)
            line["evaluation"] = self.figures(evaluation) | evaluation.line()
            self.evaluations[round] = evaluation
            self.last_step_seconds = evaluation.last_step_seconds
        travelled: Bytes = traffic
        if self.engine.traffic is not None:  # measured, not only counted
            travelled, self.engine.traffic = self.engine.traffic, Bytes()
        line |= {"bytes_down": travelled.down, "bytes_up": travelled.up}
        line["events"] = (*done.events, *self._engine_events(traffic), *self._still_models(done))
        self.state = done.state
        return line

    def _engine_events(self, traffic: Traffic) -> list[Event]:
        """Events of the engine, and of missing replies if the engine has no event about the client."""
        events, self.engine.events[:] = list(self.engine.events), []
        explained = {event.client for event in events}
        return [*events, *(event for event in traffic.events() if event.client not in explained)]

    def _still_models(self, done: Round[Any]) -> list[Event]:
        """Events of models that clients delivered to and that stay as they are: too few updates counted."""
        fewest, before = self.config.aggregate.fewest, self.method.models(self.state)
        trained = {seat.cluster for seat in done.seats if seat.delivered}
        names = {*before} if NO_CLUSTER in trained else {cluster_name(k) for k in trained}
        text = f"stays as it is: fewer than {fewest} updates to it counted"
        return [
            Event("too_few_providers", None, f"{name} {text}")
            for name, model in self.method.models(done.state).items()
            if fewest > 1 and name in names and np.array_equal(model, before[name])
        ]

    def _roll_back(self, done: Round[Any], round: int) -> Round[Any]:
        """What is recorded of a round below the quorum: the state before it, and nobody delivered."""
        self.forget(round)
        needed = self.config.train.min_clients
        delivered = len({seat.client for seat in done.seats if seat.delivered})
        text = f"the round is rolled back: {delivered} clients delivered, it needs {needed}"
        events = (Event("rolled_back", None, text), *(e for e in done.events if e.client is not None))
        seats = tuple(seat._replace(delivered=False) for seat in done.seats)
        market = done.market
        if market is not None and isinstance(self.method, HasBooks):
            market = self.method.roll_back(self.state, market)
        return Round(self.state, seats, events, market)

    def _evaluate(self, state: Any, round: int) -> Evaluation:
        """Evaluates a round; if it turns out to be the last one, on the unseen clients as well."""
        is_last = round == self.config.rounds - 1
        evaluation = self.evaluator(self.engine, state, round, last=is_last)
        if (
            not is_last
            and self.task.data.unseen
            and is_learned({**self.evaluations, round: evaluation}, self.config.patience)
        ):
            return self.evaluator(self.engine, state, round, last=True)
        return evaluation

    def figures(self, evaluation: Evaluation) -> dict[str, Any]:
        """Figures of an evaluation, with PMA if there is a reference."""
        reference = self.reference
        return evaluation.figures(None if reference is None else reference.reference(evaluation.round))

    def record(self) -> dict[str, Any]:
        """The config as it is recorded: what it says of the data is that of the task, whatever was passed."""
        record, task = self.config.record([self.method]), self.task.config
        record.pop("task", None)
        return record if task is None else {**record, "task": task.model_dump(mode="json")}

    def result(self) -> Result:
        """Puts the summary together from what was finished."""
        summary = {**self._task_summary(), **self._run_summary()}
        for callback in self.callbacks:
            callback.end(self, summary)
        models = self.method.models(self.state)
        return Result(summary, self.history, self.evaluations, self.state, models, self.opening)

    def _task_summary(self) -> dict[str, Any]:
        """What was learned by whom."""
        data, task = self.task.data, self.task
        return {
            "method": self.config.row_name(self.method),
            "dataset": data.name,
            "input_shape": list(data.input_shape),
            "input_dtype": task.input_dtype,
            "classes": data.classes,
            "class_names": _class_names(task),
            "model": model_reference(task.factory),
            "target": asdict(task.target),
            "tokens": data.tokens,
            "partition": data.partition,
            "clients": len(data.clients) + len(data.unseen),
            "unseen": len(data.unseen),
            "client_names": task.names_by_id,
            "seed": self.config.seed,
            "data_seed": task.data_seed,
            "config": self.record(),
            "commit": source_commit(),
        }

    def _run_summary(self) -> dict[str, Any]:
        """What became of it."""
        last, reference, history = self.last_evaluation, self.reference, self.history
        figures = self.figures(last) if last else Evaluation(-1, {}, {}, None, None).figures()
        clusters = [name for name in self.method.models(self.state) if name.startswith("cluster")]
        return {
            "clusters": len(clusters) or None,
            "rounds": len(history),
            "counted": sum(1 for line in history if any(seat.delivered for seat in line["seats"])),
            **figures,
            "metrics_per_client": {} if last is None else {n: dict(v) for n, v in last.metrics.items()},
            "reference": None if reference is None else reference.summary["method"],
            "evaluated_round": last.round if last else None,
            "last_step_seconds": self.last_step_seconds,
            "left": len(self.departed),
            "decided": [e.text for line in history for e in line["events"] if e.kind == "task_decided"],
            "adversary": None,
            "strategy": None,
            "privacy": None,
            "ledger": None,
            "report": self.method.report(self.state) if isinstance(self.method, HasReport) else {},
            "bytes_down": sum(line["bytes_down"] for line in history),
            "bytes_up": sum(line["bytes_up"] for line in history),
            "interrupted": self.is_interrupted,
            "stopped_early": self.is_stopped_early,
            "seconds": round(time.perf_counter() - self.begun, 3),
        }


def _class_names(task: Task) -> list[str] | None:
    """The names of the classes; None where they are numbers only."""
    names = [str(name) for name in task.class_names]
    return None if names == [str(number) for number in range(len(names))] else names
