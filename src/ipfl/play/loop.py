"""The only round loop: drives a method's rounds over an engine, evaluates, keeps the results."""

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
    Engine,
    Event,
    HasMarket,
    HasReport,
    Method,
    Roster,
    Round,
    Transfer,
    cluster_name,
    is_below_quorum,
)
from ipfl.core.profile import bytes_written, measure
from ipfl.data.federated import tokens_of
from ipfl.keep.carried_balances import CarriedAccounts
from ipfl.keep.journal import Journal
from ipfl.keep.run_folder import source_commit
from ipfl.methods import check_clusters, check_target, method_reference
from ipfl.play.arrivals import Arrivals
from ipfl.play.departures import Departures
from ipfl.play.driver import Traffic, drive
from ipfl.play.early_stopping import is_learned, may_end
from ipfl.play.evaluation import Evaluator
from ipfl.play.metrics import Evaluation
from ipfl.play.privacy_report import privacy_report
from ipfl.play.setup import make_setup
from ipfl.play.summed_replies import SecureSums
from ipfl.results.result import Line, Observer, Result
from ipfl.results.result_models import KeptModels
from ipfl.system.retry import is_disk_full, retry_while_disk_full
from ipfl.system.signals import InterruptHandler
from ipfl.training.architectures import model_reference
from ipfl.training.task import Task


def _class_names(task: Task) -> list[str] | None:
    """The names of the classes; None where they are numbers only."""
    names = [str(name) for name in task.class_names]
    return None if names == [str(number) for number in range(len(names))] else names


def _texts_by_id(names: Mapping[int, str]) -> dict[str, str] | None:
    """Names of clients by id, as JSON has them; None if there are none."""
    return {str(client): name for client, name in names.items()} or None


class RoundLoop:
    """The rounds of one run, and what is known of them so far.

    Args:
        task: Data and model.
        method: What is run.
        config: How it is run.
        engine: Moves the records.
        server_memory: Where the server keeps models of single clients.
        departures: Clients that left for good.
        journal: Keeps every round; None: nothing outlives the process.
        observer: Told about every round.
        trial: What decided about the precision of the training; None: there was no need.
        carried: Accounts of earlier runs; None: all are opened anew.
        kept: Where clients keep their models when they are evaluated for the last time; None: they do not.
    """

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        config: RunConfig,
        engine: Engine,
        server_memory: ClientMemory,
        departures: Departures,
        journal: Journal | None,
        observer: Observer | None,
        trial: Mapping[str, Any] | None = None,
        carried: CarriedAccounts | None = None,
        kept: KeptModels | None = None,
    ):
        check_clusters(method, len(task.data.clients))
        config.train.check_quorum(len(task.data.clients))
        check_target(method, task.target.kind)
        self.task, self.method, self.config, self.engine = task, method, config, engine
        self.server_memory, self.departures = server_memory, departures
        self.journal, self.observer, self.trial = journal, observer, trial
        self.carried, self.kept = carried, kept
        self.arrivals = Arrivals(config.clients, task.data.clients, config.seed)
        # Opening balances and the like depend on the plan, and stay as they were if rounds are added.
        begun = None if journal is None or not journal.is_resumed else journal.header().get("rounds")
        setup = make_setup(task, method, config, server_memory, carried, begun)
        self.sums = SecureSums.plan(method, config, min(setup.per_round, len(setup.clients)))
        self.state = method.init(setup)
        decides = config.clients.leave or config.patience is not None
        self.evaluator = Evaluator(task, method, config.evaluate, config.seed, decides=decides)
        self.budget = self.evaluator.budget(self.state, config.train, setup.per_round, config.rounds)
        self.opening: tuple[Transfer, ...] = ()
        self.history: list[Line] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.is_interrupted = False
        self._start_time = time.perf_counter()

    @property
    def last_evaluation(self) -> Evaluation | None:
        """The newest one."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def is_stopped_early(self) -> bool:
        """Whether the clients' models have not become better for as long as `patience` allows."""
        return is_learned(self.evaluations, self.config.patience)

    def begin_or_resume(self, opening: Sequence[Transfer]) -> None:
        """Starts the journal, or goes on where an earlier process stopped.

        Args:
            opening: Transfers before round 0; none without a market.
        """
        self.opening = tuple(opening)
        if self.journal is None:
            return
        if not self.journal.is_resumed:
            self.journal.begin(self.header(), opening)
            return
        self.history, self.state = self.journal.resume(self.header(), opening, self.state)
        self._start_time -= self.journal.folder.seconds()
        self._forget(len(self.history))
        self._commit(len(self.history) - 1)
        for line in self.history:
            if "evaluation" in line:
                self._add_evaluation(Evaluation.from_line(line["round"], line["evaluation"]))

    def play_rounds(self) -> None:
        """Plays the rounds that are left, until Ctrl-C or a request in the run's folder.

        Only whole rounds, evaluated, enter the history.
        """
        if self.observer is not None:
            self.observer.start(self.method.name, self.config.rounds)
        folder = None if self.journal is None else self.journal.folder
        if folder is not None:
            folder.forget_stop()
        try:
            # Sums of numpy's BLAS depend on its threads, and their waiting costs more than they bring.
            with InterruptHandler() as interrupt, threadpool_limits(1, "blas"):
                for round in range(len(self.history), self.config.rounds):
                    if self.is_stopped_early:
                        break
                    interrupt.raise_if_requested()
                    if folder is not None and folder.is_stop_requested():
                        folder.forget_stop()
                        raise KeyboardInterrupt
                    line = self._round(round)
                    # What is in the store must be in the history, and the reverse.
                    with interrupt.delay(), measure("store", round=round) as span:
                        before = bytes_written()
                        self._keep(line)
                        span.down = bytes_written() - before
                    if self.observer is not None:
                        self.observer.round(line)
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            if self.observer is not None:
                self.observer.finish()

    def _keep(self, line: Line) -> None:
        """Commits a round."""
        is_last = line["round"] == self.config.rounds - 1 or self.is_stopped_early
        if self.journal is None or self.journal.commit(line, self.state, last=is_last):
            self._commit(line["round"])
        if "transfers" in line:  # until now they were made while they were read; what users get is plain JSON
            line["transfers"] = tuple(line["transfers"])
        self.history.append(line)

    def _commit(self, round: int) -> None:
        """This round will not be played again."""
        self.engine.commit(round)
        self.server_memory.committed = round

    def _round(self, round: int) -> Line:
        """Plays and evaluates a round; returns what `metrics.jsonl` says of it."""
        path = None if self.journal is None else self.journal.folder.path
        done, clients, traffic = retry_while_disk_full(
            lambda: self._play(round), f"cannot play round {round}", path
        )
        line: Line = {"round": round, "clients": clients}
        if is_below_quorum(done.seats, self.config.train.min_clients):
            done = self._roll_back(done, round)
            line["rolled_back"] = True
        if traffic.epsilon:
            line["epsilon"] = [[client, traffic.epsilon[client]] for client in sorted(traffic.epsilon)]
        line |= {"seats": done.seats, **({} if done.market is None else done.market.line())}
        is_last = round == self.config.rounds - 1
        if self.evaluator.is_due(round, is_last, self.budget):
            with measure("evaluation", round=round):
                evaluation = self._evaluate(done.state, round, is_last=is_last)
                line["evaluation"] = self._figures(evaluation) | evaluation.line()
                self._add_evaluation(evaluation)
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

    def _play(self, round: int) -> tuple[Round[Any], int, Traffic]:
        """Drives the round; returns also how many clients there were to ask.

        It leaves nothing behind if the disk is full, and may be repeated then.
        """
        joined = (c for c in self.task.data.clients if self.arrivals.has_joined(c, round))
        members = tuple(c for c in joined if c not in self.departures.departed)
        roster, traffic = Roster(self.engine.present(members)), Traffic()
        try:
            phases = self.method.round(self.state, roster, round)
            done = drive(phases, self.engine, round, traffic, self.sums, self.config.aggregate.max_weight)
            return done, len(roster.clients), traffic
        except OSError as error:
            if is_disk_full(error):
                self._forget(round)
                self.engine.events.clear()
            raise

    def _roll_back(self, done: Round[Any], round: int) -> Round[Any]:
        """What is recorded of a round below the quorum: the state before it, and nobody delivered."""
        self._forget(round)
        needed = self.config.train.min_clients
        delivered = len({seat.client for seat in done.seats if seat.delivered})
        text = f"the round is rolled back: {delivered} clients delivered, it needs {needed}"
        events = (Event("rolled_back", None, text), *(e for e in done.events if e.client is not None))
        seats = tuple(seat._replace(delivered=False) for seat in done.seats)
        market = done.market
        if market is not None and isinstance(self.method, HasMarket):
            market = self.method.roll_back(self.state, market)
        return Round(self.state, seats, events, market)

    def _forget(self, round: int) -> None:
        """Removes what clients remember, and the server keeps of them, of a round and of later ones."""
        self.engine.roll_back(round - 1)
        self.server_memory.forget_after(round - 1)

    def _evaluate(self, state: Any, round: int, *, is_last: bool) -> Evaluation:
        """Evaluates a round; if it turns out to be the last one, on the unseen clients as well."""
        keep = False
        if self.kept is not None and (is_last or may_end(self.evaluations, self.config.patience, round)):
            self.kept.begin(round)
            keep = True
        evaluation = self.evaluator(self.engine, state, round, last=is_last, keep=keep)
        if (
            not is_last
            and self.task.data.unseen
            and is_learned({**self.evaluations, round: evaluation}, self.config.patience)
        ):
            return self.evaluator(self.engine, state, round, last=True, keep=keep)
        return evaluation

    def _add_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.round] = evaluation
        self.departures.update(evaluation)

    def _figures(self, evaluation: Evaluation) -> dict[str, Any]:
        reference = self.departures.reference
        return evaluation.figures(None if reference is None else reference.reference(evaluation.round))

    def header(self) -> dict[str, Any]:
        """What the store says of the run as a whole."""
        config = self.config
        return {
            "method": method_reference(self.method),
            "seed": config.seed,
            "rounds": config.rounds,
            "clients": list(self.task.data.clients),
            "client_names": _texts_by_id(self.task.client_names),
            "rules": dict(self.method.rules(self.state)) if isinstance(self.method, HasMarket) else {},
            "min_clients": config.train.min_clients,
            "trial": self.trial,
            "data_seed": self._data_seed,
            "config": self._record(),
            **({} if self.carried is None else {"accounts": self.carried.record(self.task.data.clients)}),
        }

    @property
    def _data_seed(self) -> int | None:
        """What the data was made with; None: it is the user's own."""
        return None if self.task.config is None else self.task.seed

    def _record(self) -> dict[str, Any]:
        """The config as it is recorded: what it says of the data is that of the task, whatever was passed."""
        record, task = self.config.record([self.method]), self.task.config
        record.pop("task", None)
        return record if task is None else {**record, "task": task.model_dump(mode="json")}

    def result(
        self, attacks: Mapping[str, Any] | None, strategy: Mapping[str, Any] | None, head: str | None
    ) -> Result:
        """Puts the summary together from what was finished.

        Args:
            attacks: What attackers got out of it; None: nobody attacked.
            strategy: What strategic clients did; None: there are none.
            head: The newest hash of the store's chain; None without a store.
        """
        data, config, reference = self.task.data, self.config, self.departures.reference
        models = self.method.models(self.state)
        last = self.last_evaluation
        figures = self._figures(last) if last else Evaluation(-1, {}, {}, None, None).figures()
        clusters = [name for name in models if name.startswith("cluster")]
        summary = {
            "method": self.method.name,
            "dataset": data.name,
            "input_shape": list(data.input_shape),
            "input_dtype": self.task.input_dtype,
            "classes": data.classes,
            "class_names": _class_names(self.task),
            "model": model_reference(self.task.factory),
            "target": asdict(self.task.target),
            "tokens": tokens_of(data),
            "partition": data.partition,
            "clients": len(data.clients) + len(data.unseen),
            "unseen": len(data.unseen),
            "client_names": _texts_by_id(self.task.client_names),
            "clusters": len(clusters) or None,
            "rounds": len(self.history),
            "counted": sum(1 for line in self.history if any(seat.delivered for seat in line["seats"])),
            "seed": config.seed,
            "data_seed": self._data_seed,
            **figures,
            "metrics_per_client": {} if last is None else {n: dict(v) for n, v in last.metrics.items()},
            "reference": None if reference is None else reference.summary["method"],
            "evaluated_round": last.round if last else None,
            "left": len(self.departures.departed),
            "decided": [e.text for line in self.history for e in line["events"] if e.kind == "task_decided"],
            "adversary": attacks,
            "strategy": strategy,
            "privacy": privacy_report(self.config.privacy, self.history),
            "report": self.method.report(self.state) if isinstance(self.method, HasReport) else {},
            "ledger": head,
            "bytes_down": sum(line["bytes_down"] for line in self.history),
            "bytes_up": sum(line["bytes_up"] for line in self.history),
            "interrupted": self.is_interrupted,
            "stopped_early": self.is_stopped_early,
            "seconds": round(time.perf_counter() - self._start_time, 3),
            "trial": self.trial,
            "config": self._record(),
            "commit": source_commit(),
        }
        return Result(summary, self.history, self.evaluations, self.state, models, self.opening)
