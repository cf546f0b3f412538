"""The local engine with the clients of a round spread over worker processes.

Workers are forked, so data and method are shared without a copy; each has one torch thread and one
workspace. A worker gets one client at a time. One that dies, or that works on a client for longer than the
deadline, is replaced, and the client is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from multiprocessing.connection import wait

from ipfl.core import Ask, ClientId, Fact, Record
from ipfl.core.replies import UnreadableReply
from ipfl.engines import EngineContext
from ipfl.engines.local_engine import LocalEngine
from ipfl.engines.mailbox import VectorPlaces
from ipfl.engines.worker_process import EXIT_SECONDS, Assignment, Worker, WorkerAnswer
from ipfl.training.sgd import one_thread


class WorkerEngine(LocalEngine):
    """Plays clients in so many processes; see `ipfl.engines.local_engine`."""

    def __init__(self, context: EngineContext, workers: int):
        self._workers: list[Worker] = []
        super().__init__(context)
        try:
            with one_thread():
                for _ in range(workers):
                    self._workers.append(Worker.start(self.runner, self._workers))
        except BaseException:  # nobody else can close an engine that was never made
            self.close()
            raise

    def _play(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        """The first worker that is idle takes the next client."""
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
            self._add_dead(client)
            self._replace(worker)
            return
        if answer.content is not None and self._is_awaited(answer.ticket, worker.ticket, replies):
            replies[client] = _take_reply(worker, answer.content)
        if answer.is_last:
            worker.ticket = None
        if answer.error is not None:
            raise answer.error
        if answer.is_late:
            self._add_late(client)

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
        super().close()


def _take_reply(worker: Worker, content: tuple[VectorPlaces, dict[str, Fact]] | str) -> Record:
    """A worker's reply out of its mailbox."""
    if isinstance(content, str):
        return UnreadableReply(reason=content)
    places, facts = content
    return Record({name: view.copy() for name, view in worker.outbox.get(places).items()}, facts)
