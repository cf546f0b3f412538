"""Runs of a study side by side: processes of this machine, each of which plays one run at a time.

They are forked before the first run, so that nothing is imported again and the first task is in memory once.
Each has one torch thread. Runs, what observers are told, and outcomes go through a pipe. After Ctrl-C each
run ends in order; a process that dies fails its run, and is replaced for the next one. If this process is
killed, they end too.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import pickle
import signal
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from ipfl.engines.worker_process import end_process
from ipfl.errors import InputError
from ipfl.results.result import Observer, Result
from ipfl.study.run_pool import RelayObserver, RemoteObserver
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache, interrupted_outcome, play_run
from ipfl.system.signals import InterruptHandler

POLL_SECONDS = 0.1
"""Seconds between two looks whether a process died or Ctrl-C was pressed."""
EXIT_SECONDS = 1.0
"""How long an idle process may take to end by itself."""
PR_SET_PDEATHSIG = 1
"""Of Linux: which signal a process gets when its parent ends."""


def can_fork() -> bool:
    """Whether this operating system can fork."""
    return hasattr(os, "fork")


@dataclass
class RunProcess:
    """A process that plays runs, seen from the one that forked it."""

    process: BaseProcess
    pipe: Connection
    run: StudyRun | None = None
    """The one that it plays."""
    observer: RemoteObserver = field(default_factory=lambda: RemoteObserver(None))

    @classmethod
    def start(cls, tasks: TaskCache, workers: int, siblings: list[RunProcess]) -> RunProcess:
        """Forks a process."""
        context = mp.get_context("fork")
        ours, theirs = context.Pipe()
        others = [ours, *(sibling.pipe for sibling in siblings)]
        process = context.Process(target=_serve, args=(theirs, others, tasks, workers, os.getpid()))
        process.start()
        theirs.close()
        return cls(process, ours)

    def stop(self, seconds: float = 0.0) -> None:
        """Ends the process, by force after so many seconds."""
        end_process(self.process, self.pipe, seconds)


class RunProcesses:
    """Plays runs in processes; see `RunPool`.

    Args:
        capacity: Runs at the same time.
        workers: Worker processes for the clients of each run.
        tasks: What the processes start with.
    """

    def __init__(self, capacity: int, workers: int, tasks: TaskCache):
        self.capacity = capacity
        self._workers = workers
        self._tasks = tasks
        self._processes: list[RunProcess] = []
        self._outcomes: deque[RunOutcome] = deque()
        try:
            for _ in range(capacity):
                self._processes.append(RunProcess.start(tasks, workers, self._processes))
        except BaseException:  # nobody else can close a pool that was never made
            self.close()
            raise

    def start(self, run: StudyRun, reference: Result | None, observer: Observer | None) -> None:
        """Gives the run to an idle process."""
        chosen = next((one for one in self._processes if one.run is None), None)
        if chosen is None:  # one died
            chosen = RunProcess.start(self._tasks, self._workers, self._processes)
            self._processes.append(chosen)
        try:
            pickle.dumps(run.method)
        except Exception as error:  # whatever a user's class does there
            reason = " ".join(str(error).split())
            raise InputError(
                f"method {run.label!r} cannot be sent to another process ({reason}): "
                "define its class at the top of a module, or play all in this process (workers=0)"
            ) from error
        chosen.run, chosen.observer = run, RemoteObserver(observer)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died idle; `wait` will find out
            chosen.pipe.send((run, reference, observer is not None))

    def wait(self) -> RunOutcome | None:
        """Waits until a run is over."""
        with InterruptHandler() as interrupt:
            with interrupt.delay():
                while not self._outcomes and not interrupt.is_requested:
                    busy = {one.pipe: one for one in self._processes if one.run is not None}
                    if not busy:
                        return None
                    for pipe in wait(list(busy), POLL_SECONDS):
                        self._receive(busy[pipe])  # type: ignore[index]
                    for one in busy.values():
                        if one.run is not None and not one.process.is_alive() and not one.pipe.poll():
                            self._take_death(one)
            interrupt.raise_if_requested()
        return self._outcomes.popleft()

    def _receive(self, one: RunProcess) -> None:
        try:
            message: RunOutcome | tuple[Any, ...] = one.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a message
            self._take_death(one)
            return
        if isinstance(message, RunOutcome):
            self._take_outcome(one, message)
        else:
            one.observer.tell(*message)

    def _take_outcome(self, one: RunProcess, outcome: RunOutcome) -> None:
        one.run = None
        self._outcomes.append(outcome)
        one.observer.tell("finish")  # if it could not say so itself

    def _take_death(self, one: RunProcess) -> None:
        """A process died, and its run with it."""
        assert one.run is not None
        one.process.join(EXIT_SECONDS)
        reason = death_text(one.process.exitcode, has_folder=one.run.folder is not None)
        outcome = RunOutcome(one.run, failure=reason)
        self._processes.remove(one)
        one.stop()
        self._take_outcome(one, outcome)

    def interrupt(self) -> None:
        """Sends SIGINT to every process with a run."""
        for one in self._processes:
            if one.run is not None and one.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(one.process.pid, signal.SIGINT)

    def close(self) -> None:
        """Ends the processes; those with a run at once."""
        for one in self._processes:
            one.stop(0.0 if one.run is not None else EXIT_SECONDS)
        self._processes.clear()


def death_text(code: int | None, *, has_folder: bool) -> str:
    """What is said of a run whose process died with this exit code."""
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        how = f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    advice = "; resume plays it on from its last checkpoint" if has_folder else ""
    return f"the process of this run {how}{advice}"


class _StopRequest:
    """Notes Ctrl-C; while rounds are played, the round loop has a handler of its own."""

    def __init__(self) -> None:
        self.is_requested = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True


def _serve(pipe: Connection, others: list[Connection], tasks: TaskCache, workers: int, parent: int) -> None:
    """The main loop of a process; ends when the pipe does."""
    stop = _StopRequest()
    _end_with_parent(parent)
    for end in others:  # a pipe ends when the last copy of its other end is closed, and fork made copies
        end.close()
    torch.set_num_threads(1)

    def tell(what: str, *content: Any) -> None:
        if what == "start" and stop.is_requested:  # Ctrl-C that came earlier takes effect
            raise KeyboardInterrupt
        if what == "round" and os.getppid() != parent:  # nobody waits any more: another may resume the run
            os._exit(1)
        if is_observed:
            pipe.send((what, *content))

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done, or gone
        while True:
            run, reference, is_observed = pipe.recv()
            try:
                outcome = play_run(run, reference, workers, RelayObserver(tell), tasks)
            except KeyboardInterrupt:
                outcome = interrupted_outcome(run)
            pipe.send(outcome.without_state())
    os._exit(0)


def _end_with_parent(parent: int) -> None:
    """Lets Linux kill this process when its parent ends; elsewhere it ends after the round."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
