"""The everyday engine: the clients of a round spread over worker processes of one machine.

Workers are forked, so data and method are shared without a copy; each has one torch thread and one
workspace. A worker gets one client at a time (whoever is idle takes the next), vectors go through shared
memory, facts through a pipe. What a client computes depends on nothing but its own record, data and
random stream, so the result is the same to the last bit for any number of workers.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ipfl.config import TrainConfig
from ipfl.core import Ask, ClientId, Method, Record, Replies, Traffic
from ipfl.engines.mailbox import Mailbox
from ipfl.errors import InputError
from ipfl.host import Host
from ipfl.memory import ClientMemory
from ipfl.task import Task


class ClientFailedError(RuntimeError):
    """A client's code raised; carries its traceback."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    inbox: Mailbox
    outbox: Mailbox
    client: ClientId | None = None


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
    """What the engine raises for an exception in a client's code; bad input stays bad input."""
    if isinstance(error, InputError):
        return error
    return ClientFailedError(f"client {client} failed:\n{''.join(traceback.format_exception(error))}")


def read_only(record: Record) -> Record:
    """The record as a worker would see it: a client's code cannot write into the server's models."""
    params = {name: vector.view() for name, vector in record.params.items()}
    for view in params.values():
        view.flags.writeable = False
    return Record(params, record.facts)


def _serve(host: Host, pipe: Connection, inbox: Mailbox, outbox: Mailbox, parents: list[Connection]) -> None:
    """A worker's life: take a client, run it, answer; ends when the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    for end in parents:  # a pipe ends when the last copy of its other end is closed, and fork made copies
        end.close()
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done, or gone
        while True:
            action, round, host.memory.committed, client, places, facts = pipe.recv()
            try:
                reply = host.run(action, round, client, Record(inbox.get(places), facts))
                outbox.clear()
                pipe.send((outbox.put(reply.params), dict(reply.facts), None))
            except Exception as error:  # whatever client code raises, the parent is told and raises
                pipe.send(({}, {}, _failure(client, error)))
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
    ):
        self.events: list[str] = []
        self.traffic: Traffic | None = None
        self._workers: list[_Worker] = []
        self._own_memory = None if memory else Path(tempfile.mkdtemp(prefix="ipfl-memory-"))
        folder = memory or self._own_memory
        assert folder is not None
        try:
            self.host = Host(task, method, settings or TrainConfig(), seed, ClientMemory(folder))
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
        """Runs one phase; replies come back in ascending client id, without those whose worker died."""
        if not self._workers:
            with one_thread():
                return {c: self.host.run(ask.action, round, c, read_only(ask.to[c])) for c in sorted(ask.to)}
        replies: dict[ClientId, Record] = {}
        waiting = sorted(ask.to, reverse=True)
        for worker in self._workers:
            worker.inbox.clear()
            self._give(worker, ask, round, waiting)
        try:
            while busy := {worker.pipe: worker for worker in self._workers if worker.client is not None}:
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    self._take(worker, replies)
                    self._give(worker, ask, round, waiting)
        except Exception:
            for worker in self._workers:
                if worker.client is not None:  # its answer must not be taken for one to the next ask
                    self._replace(worker)
            raise
        return dict(sorted(replies.items()))

    def committed(self, round: int) -> None:
        """Memories that only earlier rounds needed go when their clients next save something."""
        self.host.memory.committed = round

    def rewind(self, round: int) -> None:
        """Takes back what clients remember of later rounds."""
        self.host.memory.forget_after(round)

    def _give(self, worker: _Worker, ask: Ask, round: int, waiting: list[ClientId]) -> None:
        worker.client = waiting.pop() if waiting else None
        if worker.client is None:
            return
        record = ask.to[worker.client]
        places = worker.inbox.put(record.params)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died idle; `_take` will find out
            message = (
                ask.action,
                round,
                self.host.memory.committed,
                worker.client,
                places,
                dict(record.facts),
            )
            worker.pipe.send(message)

    def _take(self, worker: _Worker, replies: dict[ClientId, Record]) -> None:
        client = worker.client
        assert client is not None
        try:
            places, facts, failure = worker.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of its answer
            self.events.append(f"the worker of client {client} died; the client is left out of this phase")
            self._replace(worker)
            return
        if failure is not None:
            worker.client = None
            raise failure
        replies[client] = Record(
            {name: view.copy() for name, view in worker.outbox.get(places).items()}, facts
        )

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
        worker.client = None

    def _dismiss(self, worker: _Worker) -> None:
        worker.pipe.close()
        worker.process.join(timeout=0.2)
        if worker.process.is_alive():
            worker.process.terminate()
            worker.process.join()
        worker.process.close()
        worker.inbox.close()
        worker.outbox.close()

    def close(self) -> None:
        """Ends the workers and removes what was kept only for this engine."""
        while self._workers:
            self._dismiss(self._workers.pop())
        if self._own_memory is not None:
            shutil.rmtree(self._own_memory, ignore_errors=True)
