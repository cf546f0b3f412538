"""The default engine: the clients of a round on this machine, in this process or spread over workers.

What a client computes depends on nothing but its own record, data and random stream, so the result is the
same to the last bit for any number of workers (`ipfl.engines.worker_engine`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import TracebackType

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ASSESS, EVALUATE, TRAIN, CrashError, Job, Runner, runner_under
from ipfl.core import Ask, Bytes, ClientId, Event, Record, Replies
from ipfl.engines import EngineContext
from ipfl.training.sgd import one_thread

Ticket = tuple[int, ClientId]
"""Number of an ask, and the client that was asked."""


def local_engine(workers: int | None = None) -> Callable[[EngineContext], LocalEngine]:
    """The factory of a `LocalEngine`, for `ipfl.run`.

    Args:
        workers: Worker processes; None for one per core, 0 for none: clients are then played in this process,
            where a debugger can follow. Changes no result.
    """

    def make(context: EngineContext) -> LocalEngine:
        wanted = count_cores() if workers is None else workers
        wanted = min(wanted, len(context.task.data.clients) or 1)  # more would be idle
        if not wanted or not hasattr(os, "fork"):
            return LocalEngine(context)
        from ipfl.engines.worker_engine import WorkerEngine

        return WorkerEngine(context, wanted)

    return make


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Plays clients in this process. Use as a context manager."""

    def __init__(self, context: EngineContext):
        self.events: list[Event] = []
        self.traffic: Bytes | None = None
        self.discarded = 0
        """Replies that came when nobody waited for them any more, or for the second time."""
        self._deadline = inf if context.deadline is None else context.deadline
        self._asks = 0
        self._training_round: int | None = None  # the round in which training was last asked for
        self._phase_events: list[Event] = []
        self._own_folder = None if context.memory else Path(tempfile.mkdtemp(prefix="ipfl-memory-"))
        try:
            memory = ClientMemory(context.memory or self._own_folder or Path())
            runner = runner_under(context.privacy)(
                context.task,
                context.method,
                context.train,
                context.seed,
                memory,
                context.privacy,
                context.adapt,
            )
            self.runner: Runner = runner if context.wrap is None else context.wrap(runner)
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
        replies: dict[ClientId, Record] = {}
        try:
            self._play(ask, round, replies)
        finally:  # in the order of the clients, whoever was ready first
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

    def _play(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        """One client after the other."""
        limit = self._seconds_for(ask)
        with one_thread():
            for client in sorted(ask.to):
                ticket, begun = (self._asks, client), time.monotonic()
                record = ask.to[client].read_only()
                job = Job(ask.action, round, client, record, self._training_round == round, self._asks)
                try:
                    for delivery in self.runner.deliver(job):
                        answered = (delivery.job.number, delivery.job.client)
                        if delivery.reply is not None and self._is_awaited(answered, ticket, replies):
                            replies[client] = delivery.reply
                        if delivery.is_late:
                            self._add_late(client)
                except CrashError:  # there is no worker to kill; the server goes on
                    self._add_dead(client)
                if time.monotonic() > begun + limit:
                    replies.pop(client, None)
                    self._add_overdue(client)

    def _seconds_for(self, ask: Ask) -> float:
        """Seconds for an answer; the evaluator waits for everyone."""
        return inf if ask.action in (EVALUATE, ASSESS) else self._deadline

    def _is_awaited(self, ticket: Ticket, current: Ticket, replies: Replies) -> bool:
        """Whether a reply is the first one to what was asked."""
        _, client = ticket
        if ticket == current and client not in replies:
            return True
        self.discarded += 1
        if ticket == current:
            self._add_event("second_answer", client, "answered twice (the second answer was ignored)")
        return False  # a late one: that the client was late was said in its own phase

    def _add_dead(self, client: ClientId) -> None:
        self._add_event("worker_died", client, "stopped answering: the worker process died (left out)")

    def _add_late(self, client: ClientId) -> None:
        self._add_event("late", client, "answered too late (left out)")

    def _add_overdue(self, client: ClientId) -> None:
        self._add_event("overdue", client, f"took longer than {self._deadline:g} s (left out)")

    def _add_event(self, kind: str, client: ClientId, text: str) -> None:
        self._phase_events.append(Event(kind, client, text))

    def close(self) -> None:
        """Removes what was kept only for this engine."""
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)
