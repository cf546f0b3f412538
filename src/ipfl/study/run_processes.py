"""Runs of a study side by side: each in a process of its own, on this machine.

A process is forked when its run begins, so that nothing is imported or sent, and the task is in memory once.
It has one torch thread. What observers are told, and the outcome, come through a pipe. After Ctrl-C each run
ends in order; a process that dies fails its run. If this process is killed, they end with their round.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import signal
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from ipfl.engines.worker_process import end_process
from ipfl.results.result import Observer, Result
from ipfl.study.run_pool import RelayObserver, RemoteObserver
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache, interrupted_outcome, play_run
from ipfl.system.signals import InterruptHandler

POLL_SECONDS = 0.1
"""Seconds between two looks whether a process died or Ctrl-C was pressed."""
EXIT_SECONDS = 1.0
"""Time that a process may take to end by itself when its run is over."""


def can_fork() -> bool:
    """True if this operating system can fork."""
    return hasattr(os, "fork")


@dataclass(frozen=True)
class RunProcess:
    """A process that plays a run, seen from the one that forked it."""

    run: StudyRun
    process: BaseProcess
    pipe: Connection
    observer: RemoteObserver


class RunProcesses:
    """Plays runs in processes; see `RunPool`.

    Args:
        capacity: Runs at the same time.
        workers: Worker processes for the clients of each run.
        tasks: What makes the tasks.
    """

    def __init__(self, capacity: int, workers: int, tasks: TaskCache):
        self.capacity = capacity
        self._workers = workers
        self._tasks = tasks
        self._playing: list[RunProcess] = []
        self._outcomes: deque[RunOutcome] = deque()

    def start(self, run: StudyRun, reference: Result | None, observer: Observer | None) -> None:
        """Forks a process for the run."""
        with suppress(Exception):  # the run says what is wrong
            self._tasks.get(run.config)
        context = mp.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        with InterruptHandler() as interrupt:
            with interrupt.delay():  # the process goes on with this handler
                given = (theirs, interrupt, run, reference, self._workers, self._tasks, os.getpid())
                process = context.Process(target=_play, args=given)
                process.start()
                theirs.close()
                self._playing.append(RunProcess(run, process, ours, RemoteObserver(observer)))
            interrupt.raise_if_requested()

    def wait(self) -> RunOutcome | None:
        """Waits until a run is over."""
        with InterruptHandler() as interrupt:
            with interrupt.delay():
                while not self._outcomes and not interrupt.is_requested:
                    if not self._playing:
                        return None
                    ready = wait([one.pipe for one in self._playing], POLL_SECONDS)
                    for one in list(self._playing):
                        if one.pipe in ready:
                            self._receive(one)
                        elif not one.process.is_alive() and not one.pipe.poll():
                            self._take_death(one)
            interrupt.raise_if_requested()
        return self._outcomes.popleft()

    def _receive(self, one: RunProcess) -> None:
        try:
            what, *content = one.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a message
            self._take_death(one)
            return
        if what == "over":
            self._take_outcome(one, RunOutcome(one.run, *content))
        else:
            one.observer.tell(what, *content)

    def _take_outcome(self, one: RunProcess, outcome: RunOutcome) -> None:
        self._playing.remove(one)
        end_process(one.process, one.pipe, EXIT_SECONDS)
        self._outcomes.append(outcome)
        one.observer.tell("finish")  # if it could not say so itself

    def _take_death(self, one: RunProcess) -> None:
        """A process died, and its run with it."""
        one.process.join(EXIT_SECONDS)
        reason = death_text(one.process.exitcode, has_folder=one.run.folder is not None)
        self._take_outcome(one, RunOutcome(one.run, failure=reason))

    def interrupt(self) -> None:
        """Sends SIGINT to every process."""
        for one in self._playing:
            if one.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(one.process.pid, signal.SIGINT)

    def close(self) -> None:
        """Ends the processes at once."""
        for one in self._playing:
            end_process(one.process, one.pipe, 0.0)
        self._playing.clear()


def death_text(code: int | None, *, has_folder: bool) -> str:
    """The failure of a run whose process died with this exit code."""
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        how = f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    advice = "; resume plays it on from its last checkpoint" if has_folder else ""
    return f"the process of this run {how}{advice}"


def _play(
    pipe: Connection,
    interrupt: InterruptHandler,
    run: StudyRun,
    reference: Result | None,
    workers: int,
    tasks: TaskCache,
    parent: int,
) -> None:
    """The main function of a run's process. While rounds are played, the round loop handles Ctrl-C itself."""
    torch.set_num_threads(1)

    def tell(what: str, *content: Any) -> None:
        if what == "start" and interrupt.is_requested:  # Ctrl-C that came earlier takes effect
            raise KeyboardInterrupt
        if what == "round" and os.getppid() != parent:  # nobody waits any more: another may resume the run
            os._exit(1)
        pipe.send((what, *content))

    try:
        outcome = play_run(run, reference, workers, RelayObserver(tell), tasks)
    except KeyboardInterrupt:
        outcome = interrupted_outcome(run)
    outcome = outcome.without_state()
    gc.collect()  # removes temporary files of the state, which no exit would
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        pipe.send(("over", outcome.result, outcome.failure, outcome.is_interrupted))
    os._exit(0)
