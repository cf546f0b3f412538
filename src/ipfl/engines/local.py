"""The everyday engine: the clients of a round spread over worker processes of one machine.

Workers are forked, so data and method are shared without a copy; each has one torch thread and one
workspace. A worker gets one client at a time (whoever is idle takes the next), vectors go through shared
memory, facts through a pipe. What a client computes depends on nothing but its own record, data and
random stream, so the result is the same to the last bit for any number of workers.

Every message carries the ticket (number of the ask, client) that it answers: a reply that comes twice, or
when nobody waits for it any more, is recognised and not read. A worker that dies, or that works on a client
for longer than the deadline, is replaced, and the client is left out.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ipfl.adversary import Adversary
from ipfl.config import TrainConfig
from ipfl.core import Ask, Bytes, ClientId, Method, Record, Replies
from ipfl.engines.mailbox import Mailbox
from ipfl.errors import InputError
from ipfl.faults import TRAIN, CrashedError, DroppedOutError, FaultPlan, TooLateError
from ipfl.host import ASSESS, EVALUATE, Host
from ipfl.memory import ClientMemory
from ipfl.patience import disk_full
from ipfl.task import Task

Ticket = tuple[int, ClientId]
"""Number of an ask, and the client that was asked."""
MORE, DONE, LATE = "more", "done", "late"
"""What follows a message: another one; the next client; the next client, and this one's answer some day."""
GRACE = 0.2
"""Seconds in which a worker may end by itself when its pipe does."""


class ClientFailedError(RuntimeError):
    """A client's code raised; carries its traceback."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    inbox: Mailbox
    outbox: Mailbox
    ticket: Ticket | None = None
    """What it works on."""
    due: float = inf
    """When it must have answered, by the monotonic clock."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside: results depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _failure(client: ClientId, error: Exception) -> Exception:
    """What the engine raises for an exception in a client's code; bad input and a full disk stay such."""
    if isinstance(error, InputError) or disk_full(error):
        return error
    return ClientFailedError(f"client {client} failed:\n{''.join(traceback.format_exception(error))}")


def read_only(record: Record) -> Record:
    """The record as a worker would see it: a client's code cannot write into the server's models."""
    params = {name: vector.view() for name, vector in record.params.items()}
    for view in params.values():
        view.flags.writeable = False
    return Record(params, record.facts)


@dataclass(frozen=True)
class Job:
    """A client's part in one phase."""

    ticket: Ticket
    action: str
    round: int
    trained: bool
    """Training was asked for earlier in this round."""
    record: Record


class Desk:
    """Where answers leave a place at which clients run, whatever becomes of them on the way."""

    def __init__(self, host: Host):
        self.host = host
        self._late: list[tuple[Ticket, Record]] = []

    def answers(self, job: Job) -> Iterator[tuple[Ticket, Record | None, str]]:
        """What is sent, each with its ticket and what follows; late answers go before the next one.

        Raises:
            CrashedError: The process is to be killed.
        """
        _, client = job.ticket
        try:
            reply = self.host.run(job.action, job.round, client, job.record, job.trained)
        except DroppedOutError:
            yield job.ticket, None, DONE
            return
        except TooLateError as error:
            self._late.append((job.ticket, error.reply))
            yield job.ticket, None, LATE
            return
        while self._late:
            ticket, late = self._late.pop(0)
            yield ticket, late, MORE
        if self.host.twice(job.action, job.round, client):
            yield job.ticket, reply, MORE
        yield job.ticket, reply, DONE


def _serve(host: Host, pipe: Connection, inbox: Mailbox, outbox: Mailbox, parents: list[Connection]) -> None:
    """A worker's life: take a client, run it, answer; ends when the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    for end in parents:  # a pipe ends when the last copy of its other end is closed, and fork made copies
        end.close()
    torch.set_num_threads(1)
    desk = Desk(host)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done, or gone
        while True:
            ticket, action, round, trained, host.memory.committed, places, facts = pipe.recv()
            try:
                job = Job(ticket, action, round, trained, Record(inbox.get(places), facts))
                for number, reply, then in desk.answers(job):
                    outbox.clear()
                    content = None if reply is None else (outbox.put(reply.params), dict(reply.facts))
                    pipe.send((number, content, then))
            except CrashedError:
                os.kill(os.getpid(), signal.SIGKILL)
            except Exception as error:  # whatever client code raises, the parent is told and raises
                pipe.send((ticket, None, _failure(ticket[1], error)))
    os._exit(0)


class LocalEngine:
    """Runs asks over `workers` processes; 0 runs them in this process, where a debugger can follow.

    Use as a context manager. Client memory is kept in `memory`, or in a folder of its own that goes
    away with the engine.
    """

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        settings: TrainConfig | None = None,
        *,
        seed: int = 0,
        workers: int | None = None,
        memory: Path | None = None,
        adversary: Adversary | None = None,
        faults: FaultPlan | None = None,
        deadline: float | None = None,
    ):
        self.events: list[str] = []
        self.traffic: Bytes | None = None
        self.discarded = 0
        """Replies that came when nobody waited for them any more, or for the second time."""
        self._deadline = inf if deadline is None else deadline
        self._workers: list[_Worker] = []
        self._asks = 0
        self._trained: int | None = None  # the round in which training was last asked for
        self._told: list[tuple[ClientId, str]] = []
        self._own_memory = None if memory else Path(tempfile.mkdtemp(prefix="ipfl-memory-"))
        folder = memory or self._own_memory
        assert folder is not None
        try:
            train, store = settings or TrainConfig(), ClientMemory(folder)
            self.host = Host(task, method, train, seed, store, adversary, faults)
            self._desk = Desk(self.host)
            with one_thread():
                for _ in range(cores() if workers is None else workers):
                    if hasattr(os, "fork"):
                        self._workers.append(self._hire())
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
            (self._ask_workers if self._workers else self._ask_here)(ask, round, replies)
        finally:  # in the order of the clients, not of the workers
            self.events += [what for _, what in sorted(self._told)]
            self._told.clear()
        if ask.action == TRAIN:
            self._trained = round
        return dict(sorted(replies.items()))

    def committed(self, round: int) -> None:
        """Memories that only earlier rounds needed go when their clients next save something."""
        self.host.memory.committed = round

    def rewind(self, round: int) -> None:
        """Takes back what clients remember of later rounds."""
        self.host.memory.forget_after(round)
        self._trained = None

    def _ask_here(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        limit = self._limit(ask)
        with one_thread():
            for client in sorted(ask.to):
                ticket, begun = (self._asks, client), time.monotonic()
                job = Job(ticket, ask.action, round, self._trained == round, read_only(ask.to[client]))
                try:
                    for number, reply, then in self._desk.answers(job):
                        if reply is not None and self._awaited(number, ticket, replies):
                            replies[client] = reply
                        self._note(client, then)
                except CrashedError:  # there is no worker to kill; the server goes on
                    self._died(client)
                if time.monotonic() > begun + limit:
                    replies.pop(client, None)
                    self._overdue(client)

    def _ask_workers(self, ask: Ask, round: int, replies: dict[ClientId, Record]) -> None:
        waiting = sorted(ask.to, reverse=True)
        for worker in self._workers:
            worker.inbox.clear()
            self._give(worker, ask, round, waiting)
        try:
            while busy := {worker.pipe: worker for worker in self._workers if worker.ticket is not None}:
                for pipe in wait(list(busy), self._until(busy.values())):
                    self._take(busy[pipe], replies)  # type: ignore[index]
                for worker in busy.values():
                    if worker.ticket is not None and time.monotonic() > worker.due:
                        self._overdue(worker.ticket[1])
                        self._replace(worker)
                    if worker.ticket is None:
                        self._give(worker, ask, round, waiting)
        except Exception:
            for worker in self._workers:
                if worker.ticket is not None:  # its answer must not be taken for one to the next ask
                    self._replace(worker)
            raise

    def _limit(self, ask: Ask) -> float:
        """Seconds for an answer; the evaluator waits for everyone."""
        return inf if ask.action in (EVALUATE, ASSESS) else self._deadline

    @staticmethod
    def _until(busy: Iterable[_Worker]) -> float | None:
        """Seconds until the first of them must have answered; None if none of them must."""
        first = min(worker.due for worker in busy)
        return None if first == inf else max(0.0, first - time.monotonic())

    def _give(self, worker: _Worker, ask: Ask, round: int, waiting: list[ClientId]) -> None:
        if not waiting:
            return
        client = waiting.pop()
        worker.ticket, worker.due = (self._asks, client), time.monotonic() + self._limit(ask)
        record = ask.to[client]
        places = worker.inbox.put(record.params)
        place = (ask.action, round, self._trained == round, self.host.memory.committed)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died idle; `_take` will find out
            worker.pipe.send((worker.ticket, *place, places, dict(record.facts)))

    def _take(self, worker: _Worker, replies: dict[ClientId, Record]) -> None:
        """Receives one message of a worker, which may not be its last one about the client."""
        assert worker.ticket is not None
        _, client = worker.ticket
        try:
            ticket, content, then = worker.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of its answer
            self._died(client)
            self._replace(worker)
            return
        if content is not None and self._awaited(ticket, worker.ticket, replies):
            places, facts = content
            vectors = worker.outbox.get(places)
            replies[client] = Record({name: view.copy() for name, view in vectors.items()}, facts)
        if then != MORE:
            worker.ticket = None
        self._note(client, then)

    def _awaited(self, ticket: Ticket, current: Ticket, replies: Replies) -> bool:
        """Whether a reply is the first one to what was asked."""
        _, client = ticket
        if ticket == current and client not in replies:
            return True
        self.discarded += 1
        if ticket == current:
            self._told.append((client, f"client {client} answered twice; the second answer was not read"))
        return False  # a late one: that the client was too late was told in its own phase

    def _note(self, client: ClientId, then: str | Exception) -> None:
        if isinstance(then, Exception):
            raise then
        if then == LATE:
            self._told.append((client, f"client {client} answered too late; it was left out"))

    def _overdue(self, client: ClientId) -> None:
        what = f"client {client} took longer than {self._deadline:g} s; it was left out"
        self._told.append((client, what))

    def _died(self, client: ClientId) -> None:
        self._told.append((client, f"client {client} fell silent: the worker process died; it was left out"))

    def _hire(self) -> _Worker:
        context = mp.get_context("fork")
        ours, theirs = context.Pipe()
        inbox, outbox = Mailbox(), Mailbox()
        parents = [ours, *(worker.pipe for worker in self._workers)]
        process = context.Process(
            target=_serve, args=(self.host, theirs, inbox, outbox, parents), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, inbox, outbox)

    def _replace(self, worker: _Worker) -> None:
        self._dismiss(worker)
        fresh = self._hire()
        worker.process, worker.pipe = fresh.process, fresh.pipe
        worker.inbox, worker.outbox = fresh.inbox, fresh.outbox
        worker.ticket = None

    def _dismiss(self, worker: _Worker, grace: float = 0.0) -> None:
        worker.pipe.close()
        worker.process.join(timeout=grace)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
        worker.inbox.close()
        worker.outbox.close()

    def close(self) -> None:
        """Ends the workers and removes what was kept only for this engine."""
        while self._workers:
            self._dismiss(self._workers.pop(), GRACE)
        if self._own_memory is not None:
            shutil.rmtree(self._own_memory, ignore_errors=True)
