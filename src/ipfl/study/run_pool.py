"""What plays the runs of a comparison: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ipfl.config.run_config import RunConfig
from ipfl.engines.local_engine import count_cores
from ipfl.results.result import Observer, TakesNotes
from ipfl.study.run_order import RunOrder, RunOutcome, TaskCache, play_run


class RunPool(Protocol):
    """Plays runs side by side. What plays them changes no result."""

    capacity: int
    """Runs at the same time."""
    workers: int | None
    """Worker processes for the clients of each run, as in `ipfl.local_engine`; None: one per core."""

    def start(self, order: RunOrder, observer: Observer | None) -> None:
        """Begins a run; there is room for it."""

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
"""Makes a pool from how many runs there can be at the same time at most, the config with the first seed, and
what makes the tasks, with that of the first seed there already."""


class RemoteObserver:
    """Tells an observer what a run in another process says, in order; and that it is over, once."""

    def __init__(self, observer: Observer | None):
        self._observer, self._is_started = observer, False

    def tell(self, what: str, *content: Any) -> None:
        """Passes on what the run says: `start`, `round`, `note` or `finish`, and what belongs to it."""
        if self._observer is None:
            return
        if what == "start":
            self._is_started = True
            self._observer.start(*content)
        elif what == "round":
            self._observer.round(*content)
        elif what == "note":
            if isinstance(self._observer, TakesNotes):
                self._observer.note(*content)
        elif self._is_started:
            self._is_started = False
            self._observer.finish()


class SameProcess:
    """Plays one run after the other in this process, where a debugger can follow."""

    capacity = 1

    def __init__(self, workers: int | None, tasks: TaskCache):
        self.workers, self._tasks = workers, tasks
        self._next: tuple[RunOrder, Observer | None] | None = None

    def start(self, order: RunOrder, observer: Observer | None) -> None:
        """Notes the run; `wait` plays it."""
        self._next = order, observer

    def wait(self) -> RunOutcome | None:
        """Plays the run that was begun."""
        if self._next is None:
            return None
        (order, observer), self._next = self._next, None
        return play_run(order, observer, self._tasks)

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
