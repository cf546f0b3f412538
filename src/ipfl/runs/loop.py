"""The only round loop: drives a method's rounds over an engine, evaluates, keeps the results."""

from __future__ import annotations

import time
from typing import Any

from ipfl.client.memory import ClientMemory
from ipfl.client.task import Task
from ipfl.core import (
    Bytes,
    Engine,
    Event,
    HasMarket,
    HasReport,
    Method,
    Roster,
    Round,
    Setup,
    holdout_id,
    is_below_quorum,
    stream,
)
from ipfl.core.retry import is_disk_full, retry_while_disk_full
from ipfl.core.signals import InterruptHandler
from ipfl.errors import InputError
from ipfl.methods import check_clusters, method_reference
from ipfl.methods.client_model_store import ClientModelStore
from ipfl.runs.config import RunConfig
from ipfl.runs.departures import Departures
from ipfl.runs.driver import Traffic, drive
from ipfl.runs.evaluation import Evaluator
from ipfl.runs.folder import RunFolder, source_commit
from ipfl.runs.journal import Journal
from ipfl.runs.metrics import Evaluation
from ipfl.runs.result import Line, Observer, Result


def make_setup(task: Task, config: RunConfig, client_models: ClientMemory) -> Setup:
    """What a method may know before the first round."""
    network = task.network(config.seed)
    try:
        features: int | None = network.classifier.in_features
    except InputError:
        features = None
    return Setup(
        params=network.read(),
        clients=task.data.clients,
        per_round=config.train.per_round or max(1, len(task.data.clients) // 2),
        rounds=config.rounds,
        classes=task.data.classes,
        seed=config.seed,
        features=features,
        holdouts=tuple(holdout_id(d) for d in task.holdouts),
        make_params=lambda n: task.network(int(stream(config.seed, "start", n).integers(2**31))).read(),
        aggregate=config.aggregate,
        client_models=ClientModelStore(client_models),
    )


class RoundLoop:
    """One run on its way."""

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        config: RunConfig,
        engine: Engine,
        client_models: ClientMemory,
        departures: Departures,
        folder: RunFolder | None,
    ):
        check_clusters(method, len(task.data.clients))
        self.task, self.method, self.config, self.engine = task, method, config, engine
        self.client_models, self.departures = client_models, departures
        self.path = None if folder is None else folder.path
        setup = make_setup(task, config, client_models)
        self.state = method.init(setup)
        self.evaluator = Evaluator(task, method, config.evaluate, config.seed)
        self.budget = self.evaluator.budget(self.state, config.train, setup.per_round, config.rounds)
        self.history: list[Line] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.interrupted = False
        self.ledger: str | None = None
        self.started = time.perf_counter()

    def play_rounds(
        self, journal: Journal | None, observer: Observer | None, interrupt: InterruptHandler
    ) -> None:
        """All rounds that are left. A round enters the history whole, after its evaluation."""
        for round in range(len(self.history), self.config.rounds):
            interrupt.raise_if_requested()
            line = self._round(round)
            with interrupt.delay():  # what is in the store must be in the history, and the reverse
                is_last = round == self.config.rounds - 1
                if journal is None or journal.commit(line, self.state, last=is_last):
                    self._commit(round)
                self.history.append(line)
            if observer is not None:
                observer.round(line)

    def _commit(self, round: int) -> None:
        """This round will not be played again."""
        self.engine.commit(round)
        self.client_models.committed = round

    def _round(self, round: int) -> Line:
        done, clients, traffic = retry_while_disk_full(
            lambda: self._play(round), f"cannot play round {round}", self.path
        )
        line: Line = {"round": round, "clients": clients}
        if is_below_quorum(done.seats, self.config.train.min_clients):
            done = self._roll_back(done, round)
            line["rolled_back"] = True
        line |= {"seats": done.seats, **({} if done.market is None else done.market.line())}
        is_last = round == self.config.rounds - 1
        if self.evaluator.is_due(round, is_last, self.budget):
            evaluation = self.evaluator(self.engine, done.state, round, last=is_last)
            line["evaluation"] = self._figures(evaluation) | evaluation.line()
            self._add_evaluation(evaluation)
        moved: Bytes = traffic
        if self.engine.traffic is not None:  # it knows better
            moved, self.engine.traffic = self.engine.traffic, Bytes()
        line |= {"bytes_down": moved.down, "bytes_up": moved.up}
        line["events"] = (*done.events, *self._engine_events(traffic))
        self.state = done.state
        return line

    def _engine_events(self, traffic: Traffic) -> list[Event]:
        """What the engine says, and which replies are missing where it says nothing of the client."""
        said, self.engine.events[:] = list(self.engine.events), []
        explained = {event.client for event in said}
        return [*said, *(event for event in traffic.events() if event.client not in explained)]

    def _play(self, round: int) -> tuple[Round[Any], int, Traffic]:
        """Drives the round; returns also how many clients there were to ask.

        It leaves nothing behind if the disk is full, and may be repeated then.
        """
        staying = tuple(c for c in self.task.data.clients if c not in self.departures.gone)
        roster, traffic = Roster(self.engine.present(staying)), Traffic()
        try:
            done = drive(self.method.round(self.state, roster, round), self.engine, round, traffic)
            return done, len(roster.clients), traffic
        except OSError as error:
            if is_disk_full(error):
                self._forget(round)
                self.engine.events.clear()
            raise

    def _roll_back(self, done: Round[Any], round: int) -> Round[Any]:
        """The round as if it had not been, but for what is recorded of it."""
        self._forget(round)
        needed = self.config.train.min_clients
        delivered = len({seat.client for seat in done.seats if seat.delivered})
        text = f"the round is rolled back: {delivered} of the {needed} clients that it needs delivered"
        events = (Event("rolled_back", None, text), *(e for e in done.events if e.client is not None))
        seats = tuple(seat._replace(delivered=False) for seat in done.seats)
        market = done.market
        if market is not None and isinstance(self.method, HasMarket):
            market = self.method.roll_back(self.state, market)
        return Round(self.state, seats, events, market)

    def _forget(self, round: int) -> None:
        """Removes what clients remember, and the server keeps of them, of a round and of later ones."""
        self.engine.roll_back(round - 1)
        self.client_models.forget_after(round - 1)

    def _add_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.round] = evaluation
        self.budget.spent += self.budget.per_evaluation
        self.departures.update(evaluation)

    def restore(self, lines: list[Line], state: Any) -> None:
        """Goes on where an earlier process stopped."""
        self.history, self.state = lines, state
        self._forget(len(lines))
        self._commit(len(lines) - 1)
        for line in lines:
            if "evaluation" in line:
                self._add_evaluation(Evaluation.from_line(line["round"], line["evaluation"]))

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
            "rules": dict(self.method.rules()) if isinstance(self.method, HasMarket) else {},
            "min_clients": config.train.min_clients,
            "config": config.record([self.method]),
        }

    def result(self) -> Result:
        """Puts the summary together from what was finished."""
        data, config = self.task.data, self.config
        models = self.method.models(self.state)
        last = self.evaluations[max(self.evaluations)] if self.evaluations else None
        figures = self._figures(last) if last else Evaluation(-1, {}, {}, None, None).figures()
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
            "seed": config.seed,
            **figures,
            "evaluated_round": last.round if last else None,
            "left": len(self.departures.gone),
            "adversary": None,
            "report": self.method.report(self.state) if isinstance(self.method, HasReport) else {},
            "ledger": self.ledger,
            "bytes_down": sum(line["bytes_down"] for line in self.history),
            "bytes_up": sum(line["bytes_up"] for line in self.history),
            "interrupted": self.interrupted,
            "seconds": round(time.perf_counter() - self.started, 3),
            "config": config.record([self.method]),
            "commit": source_commit(),
        }
        return Result(summary, self.history, self.evaluations, self.state, models)
