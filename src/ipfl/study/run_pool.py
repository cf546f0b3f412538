"""Pools that play the runs of a study: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ipfl.config.run_config import RunConfig
from ipfl.engines.local_engine import count_cores
from ipfl.results.result import Observer, Result
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache, play_run


class RunPool(Protocol):
    """Plays runs side by side. What plays them changes no result."""

    capacity: int
    """Runs at the same time."""

    def start(self, run: StudyRun, reference: Result | None, observer: Observer | None) -> None:
        """Begins a run, measured by what came out of its reference; there is room for it."""

    def wait(self) -> RunOutcome | None:
        """Waits until a run is over, and tells the observers what happens; None: nothing is being played.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """

    def interrupt(self) -> None:
        """Lets every run end as after Ctrl-C; `wait` returns them."""

    def close(self) -> None:
        """Ends all that is still there, by force."""


MakePool = Callable[[int, RunConfig, TaskCache], RunPool]
"""Makes a pool from how many runs there can be at the same time at most, the config of the first run, and
what makes the tasks."""


class RemoteObserver:
    """Tells an observer what a run in another process says, in order; and that it is over, once."""

    def __init__(self, observer: Observer | None):
        self._observer, self._is_started = observer, False

    def tell(self, what: str, *content: Any) -> None:
        """Passes on what the run says: `start`, `round` or `finish`, and what belongs to it."""
        if self._observer is None or (what == "finish" and not self._is_started):
            return
        self._is_started = what != "finish"
        getattr(self._observer, what)(*content)


class RelayObserver:
    """The observer of a run in another process: passes on what a `RemoteObserver` tells there.

    Args:
        send: Called with `start`, `round` or `finish`, and what belongs to it.
    """

    def __init__(self, send: Callable[..., None]):
        self._send = send

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""
        self._send("start", method, rounds)

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over."""
        self._send("round", line)

    def finish(self) -> None:
        """The run is over."""
        self._send("finish")


class SameProcess:
    """Plays one run after the other in this process, where a debugger can follow."""

    capacity = 1

    def __init__(self, workers: int | None, tasks: TaskCache):
        self._workers, self._tasks = workers, tasks
        self._next: tuple[StudyRun, Result | None, Observer | None] | None = None

    def start(self, run: StudyRun, reference: Result | None, observer: Observer | None) -> None:
        """Notes the run; `wait` plays it."""
        self._next = run, reference, observer

    def wait(self) -> RunOutcome | None:
        """Plays the run that was begun."""
        if self._next is None:
            return None
        (run, reference, observer), self._next = self._next, None
        return play_run(run, reference, self._workers, observer, self._tasks)

    def interrupt(self) -> None:
        """Nothing is being played while anybody can call this."""
        self._next = None

    def close(self) -> None:
        """There is nothing to end."""


def local_pool(workers: int | None = None) -> MakePool:
    """Runs side by side on this machine, in processes of their own.

    Args:
        workers: Processes; None for one per core, 0 for none: one run after the other in this process. If
            there are more of them than runs, the clients of a run are spread over its share.
    """

    def make_pool(runs: int, config: RunConfig, tasks: TaskCache) -> RunPool:
        from ipfl.study.run_processes import RunProcesses, can_fork

        if workers == 0 or not can_fork():
            return SameProcess(workers, tasks)
        processes = count_cores() if workers is None else workers
        capacity = min(runs, processes)
        return RunProcesses(capacity, share_of_workers(processes, capacity, config), tasks)

    return make_pool


def share_of_workers(processes: int, runs: int, config: RunConfig) -> int:
    """Worker processes for the clients of each run, the same for all, so that their times can be compared.

    0 if a run has one process, which then plays the clients itself; but only a process can be ended when a
    deadline is over.
    """
    share = processes // runs
    return share if share > 1 or config.clients.deadline is not None else 0
