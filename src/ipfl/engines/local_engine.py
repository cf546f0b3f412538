"""The default engine: the clients of a round spread over worker processes of one machine.

Workers are forked, so data and method are shared without a copy; each has one torch thread and one
workspace. A worker gets one client at a time; the first that is idle takes the next. What a client computes
depends on nothing but its own record, data and random stream, so the result is the same to the last bit for
any number of workers. A worker that dies, or that works on a client for longer than the deadline, is
replaced, and the client is left out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ASSESS, EVALUATE, TRAIN, ClientRunner, CrashError, Job, Runner
from ipfl.core import Ask, Bytes, ClientId, Event, Fact, Record, Replies
from ipfl.core.profile import add_span
from ipfl.core.replies import UnreadableReply
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.mailbox import VectorPlaces
from ipfl.engines.worker_process import (
    EXIT_SECONDS,
    Assignment,
    Status,
    Ticket,
    Worker,
    WorkerAnswer,
    status_of,
)
from ipfl.training.sgd import one_thread


def local_engine(workers: int | None = None) -> EngineFactory:
    """The factory of a `LocalEngine`, for `ipfl.run`.

    Args:
        workers: Worker processes; None for one per core, 0 for none: clients are then played in this process,
            where a debugger can follow. Changes no result.
    """
    return lambda context: LocalEngine(context, workers=workers)


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Plays clients in `workers` processes; see `local_engine`. Use as a context manager."""

    def __init__(self, context: EngineContext, *, workers: int | None = None):
        self.events: list[Event] = []
        self.traffic: Bytes | None = None
        self.discarded = 0
        """Replies that came when nobody waited for them any more, or for the second time."""
        self._deadline = inf if context.deadline is None else context.deadline
        self._workers: list[Worker] = []
        self._asks = 0
        self._action = ""  # that was asked for last
        self._training_round: int | None = None  # the round in which training was last asked for
        self._phase_events: list[Event] = []
        self._own_folder = None if context.memory else Path(tempfile.mkdtemp(prefix="ipfl-memory-"))
        try:
            memory = ClientMemory(context.memory or self._own_folder or Path())
            runner = ClientRunner(
                context.task,
                context.method,
                context.train,
                context.seed,
                memory,
                context.privacy,
                context.adapt,
                predictors=context.predictors,
            )
            self.runner: Runner = runner if context.wrap is None else context.wrap(runner)
            with one_thread():
                wanted = count_cores() if workers is None else workers
                for _ in range(min(wanted, len(context.task.data.clients) or 1)):  # more would be idle
                    if hasattr(os, "fork"):
                        self._workers.append(Worker.start(self.runner, self._workers))
        except BaseException:  # nobody else can close an engine that was never made
            self.close()
            raise

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """All of them."""
        return clients

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase; replies come back in ascending client id, without those that did not answer."""
        self._asks += 1
        self._action = ask.action
        replies: dict[ClientId, Record] = {}
        try:
            (self._ask_workers if self._workers else self._ask_here)(ask, round, replies)
        finally:  # in the order of the clients, not of the workers
            self.events += sorted(self._phase_events, key=lambda event: (event.client, event.kind))
            self._phase_events.clear()
        if ask.action == TRAIN:
            self._training_round = round
        return dict(sorted(replies.items()))

    def commit(self, round: int) -> None:
        """Memories that only earlier rounds needed go when their clients next save something."""
        self.runner.memory.committed = round

    def roll_back(self, round: int) -> None:
        """Removes what clients remember of later rounds."""
        self.runner.memory.forget_after(round)
        self._training_round = None

    def _ask_here(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        limit = self._seconds_for(ask)
        with one_thread():
            for client in sorted(ask.to):
                ticket, begun, measured = (self._asks, client), time.monotonic(), time.perf_counter()
                record = ask.to[client].read_only()
                job = Job(ask.action, round, client, record, self._training_round == round, self._asks)
                try:
                    for delivery in self.runner.deliver(job):
                        answered = (delivery.job.number, delivery.job.client)
                        if delivery.reply is not None and self._is_awaited(answered, ticket, replies):
                            replies[client] = delivery.reply
                        self._take_status(client, status_of(delivery))
                except CrashError:  # there is no worker to kill; the server goes on
                    self._add_event(
                        "worker_died", client, "stopped answering: the worker process died (left out)"
                    )
                add_span(ask.action, "clients", measured, client=client)
                if time.monotonic() > begun + limit:
                    replies.pop(client, None)
                    self._add_overdue(client)

    def _ask_workers(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        waiting = sorted(ask.to, reverse=True)
        for worker in self._workers:
            worker.inbox.clear()
            self._assign(worker, ask, round, waiting)
        try:
            while busy := {worker.pipe: worker for worker in self._workers if worker.ticket is not None}:
                for pipe in wait(list(busy), self._seconds_left(busy.values())):
                    self._receive(busy[pipe], replies)  # type: ignore[index]
                for worker in busy.values():
                    if worker.ticket is not None and time.monotonic() > worker.due:
                        self._add_overdue(worker.ticket[1])
                        self._replace(worker)
                    if worker.ticket is None:
                        self._assign(worker, ask, round, waiting)
        except Exception:
            for worker in self._workers:
                if worker.ticket is not None:  # its answer must not be taken for one to the next ask
                    self._replace(worker)
            raise

    def _seconds_for(self, ask: Ask) -> float:
        """Seconds for an answer; the evaluator waits for everyone."""
        return inf if ask.action in (EVALUATE, ASSESS) else self._deadline

    @staticmethod
    def _seconds_left(busy: Iterable[Worker]) -> float | None:
        """Seconds until the first of them must have answered; None if none of them must."""
        first = min(worker.due for worker in busy)
        return None if first == inf else max(0.0, first - time.monotonic())

    def _assign(self, worker: Worker, ask: Ask, round: int, waiting: list[ClientId]) -> None:
        """Gives a worker the next client, if there is one."""
        if not waiting:
            return
        client = waiting.pop()
        worker.ticket, worker.due = (self._asks, client), time.monotonic() + self._seconds_for(ask)
        worker.begun = time.perf_counter()
        record = ask.to[client]
        assignment = Assignment(
            self._asks,
            client,
            ask.action,
            round,
            self._training_round == round,
            self.runner.memory.committed,
            worker.inbox.put(record.params),
            dict(record.facts),
            ask.expects.limits(record),
        )
        with suppress(BrokenPipeError, ConnectionResetError):  # it died idle; `_receive` will find out
            worker.pipe.send(assignment)

    def _receive(self, worker: Worker, replies: dict[ClientId, Record]) -> None:
        """Receives one message of a worker, which may not be its last one about the client."""
        assert worker.ticket is not None
        _, client = worker.ticket
        try:
            answer: WorkerAnswer = worker.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of its answer
            self._add_event("worker_died", client, "stopped answering: the worker process died (left out)")
            self._replace(worker)
            return
        if answer.content is not None and self._is_awaited(answer.ticket, worker.ticket, replies):
            replies[client] = _take_reply(worker, answer.content)
        if answer.status is not Status.MORE:
            worker.ticket = None
            track = f"worker {self._workers.index(worker)}"
            add_span(self._action, track, worker.begun, client=client)
        self._take_status(client, answer.status)

    def _is_awaited(self, ticket: Ticket, current: Ticket, replies: Replies) -> bool:
        """Whether a reply is the first one to what was asked."""
        _, client = ticket
        if ticket == current and client not in replies:
            return True
        self.discarded += 1
        if ticket == current:
            self._add_event("second_answer", client, "answered twice (the second answer was ignored)")
        return False  # a late one: that the client was late was said in its own phase

    def _take_status(self, client: ClientId, status: Status | Exception) -> None:
        if isinstance(status, Exception):
            raise status
        if status is Status.LATE:
            self._add_event("late", client, "answered too late (left out)")

    def _add_overdue(self, client: ClientId) -> None:
        self._add_event("overdue", client, f"took longer than {self._deadline:g} s (left out)")

    def _add_event(self, kind: str, client: ClientId, text: str) -> None:
        self._phase_events.append(Event(kind, client, text))

    def _replace(self, worker: Worker) -> None:
        worker.stop()
        fresh = Worker.start(self.runner, self._workers)
        worker.process, worker.pipe = fresh.process, fresh.pipe
        worker.inbox, worker.outbox = fresh.inbox, fresh.outbox
        worker.ticket = None

    def close(self) -> None:
        """Ends the workers and removes what was kept only for this engine."""
        while self._workers:
            self._workers.pop().stop(EXIT_SECONDS)
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)


def _take_reply(worker: Worker, content: tuple[VectorPlaces, dict[str, Fact]] | str) -> Record:
    """A worker's reply out of its mailbox."""
    if isinstance(content, str):
        return UnreadableReply(reason=content)
    places, facts = content
    return Record({name: view.copy() for name, view in worker.outbox.get(places).items()}, facts)
