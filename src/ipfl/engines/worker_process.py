"""A worker process of the local engine: takes one job at a time, plays the client, sends what leaves it.

Vectors go through shared memory (`mailbox`), everything else through a pipe. Jobs and deliveries are named by
tickets, so that a reply that comes twice, or when nobody waits for it any more, is recognised.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from ipfl.client.runner import ClientFailedError, CrashError, Delivery, Job, Runner
from ipfl.core import ClientId, Fact, Record
from ipfl.core.replies import InvalidReplyError, ReplyLimits, check_form
from ipfl.engines.local_engine import Ticket
from ipfl.engines.mailbox import Mailbox, VectorPlaces
from ipfl.errors import InputError
from ipfl.system.files import is_disk_full

EXIT_SECONDS = 0.2
"""How long a worker may take to end by itself when its pipe does."""


class Assignment(NamedTuple):
    """What a worker is sent."""

    number: int
    client: ClientId
    action: str
    round: int
    after_training: bool
    committed: int
    """The last round that will never be played again."""
    places: VectorPlaces
    facts: dict[str, Fact]
    limits: ReplyLimits
    """How large the reply may be."""


class WorkerAnswer(NamedTuple):
    """What a worker sends."""

    ticket: Ticket
    content: tuple[VectorPlaces, dict[str, Fact]] | str | None
    """None: no reply; a text: the reply cannot be carried, and why."""
    is_last: bool = True
    """Whether nothing more comes of the job."""
    is_late: bool = False
    """Whether the reply comes too late."""
    error: Exception | None = None
    """The exception of the client's code."""


def failure(client: ClientId, error: Exception) -> Exception:
    """What the engine raises for an exception in a client's code; bad input and a full disk stay such."""
    if isinstance(error, InputError) or is_disk_full(error):
        return error
    return ClientFailedError(f"client {client} failed:\n{''.join(traceback.format_exception(error))}")


@dataclass
class Worker:
    """A worker process, seen from the engine."""

    process: BaseProcess
    pipe: Connection
    inbox: Mailbox
    outbox: Mailbox
    ticket: Ticket | None = None
    """What it works on."""
    due: float = inf
    """When it must have answered, by the monotonic clock."""

    @classmethod
    def start(cls, runner: Runner, siblings: list[Worker]) -> Worker:
        """Forks a worker, so that data and method are shared without a copy."""
        context = mp.get_context("fork")
        ours, theirs = context.Pipe()
        inbox, outbox = Mailbox(), Mailbox()
        others = [ours, *(worker.pipe for worker in siblings)]
        process = context.Process(target=_serve, args=(runner, theirs, inbox, outbox, others), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours, inbox, outbox)

    def stop(self, seconds: float = 0.0) -> None:
        """Ends the process, by force after so many seconds."""
        end_process(self.process, self.pipe, seconds)
        self.inbox.close()
        self.outbox.close()


def end_process(process: BaseProcess, pipe: Connection, seconds: float) -> None:
    """Ends a process that serves a pipe, by force after so many seconds."""
    pipe.close()
    process.join(timeout=seconds)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _serve(
    runner: Runner, pipe: Connection, inbox: Mailbox, outbox: Mailbox, others: list[Connection]
) -> None:
    """The main loop of a worker; ends when the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for end in others:  # a pipe ends when the last copy of its other end is closed, and fork made copies
        end.close()
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done, or gone
        while True:
            sent: Assignment = pipe.recv()
            runner.memory.committed = sent.committed
            record = Record(inbox.get(sent.places), sent.facts)
            job = Job(sent.action, sent.round, sent.client, record, sent.after_training, sent.number)
            try:
                for delivery in runner.deliver(job):
                    pipe.send(_make_answer(delivery, outbox, sent.limits))
            except CrashError:
                os.kill(os.getpid(), signal.SIGKILL)
            except Exception as error:  # whatever client code raises, the parent is told and raises
                told = failure(sent.client, error)
                pipe.send(WorkerAnswer((sent.number, sent.client), None, error=told))
    os._exit(0)


def _make_answer(delivery: Delivery, outbox: Mailbox, limits: ReplyLimits) -> WorkerAnswer:
    """What is sent of a delivery; its vectors go into the mailbox."""
    outbox.clear()
    reply = delivery.reply
    content: tuple[VectorPlaces, dict[str, Fact]] | str | None = None
    if reply is not None:
        try:
            check_form(reply, limits)  # the mailbox carries nothing else
            content = outbox.put(reply.params), dict(reply.facts)
        except InvalidReplyError as error:
            content = str(error)
    ticket = delivery.job.number, delivery.job.client
    return WorkerAnswer(ticket, content, delivery.is_last or delivery.is_late, delivery.is_late)
