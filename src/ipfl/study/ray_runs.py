"""Runs of a study as Ray tasks: on a Ray that is started here, or on the cluster that RAY_ADDRESS names.

On a cluster, every machine needs this package, the data sets, and the folder of the results under the same
path (a file system that they share).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ipfl.config.run_config import RunConfig
from ipfl.engines.local_engine import count_cores
from ipfl.errors import InputError
from ipfl.results.result import Observer, Result
from ipfl.study.run_pool import MakePool, RelayObserver, RemoteObserver, RunPool, share_of_workers
from ipfl.study.study_run import MakeTask, RunOutcome, StudyRun, TaskCache, interrupted_outcome, play_run
from ipfl.system.signals import InterruptHandler

POLL_SECONDS = 0.25
"""Seconds between two looks for what observers are told."""


def ray_pool(workers: int | None = None, print_line: Callable[[str], object] = lambda line: None) -> MakePool:
    """Runs side by side as Ray tasks.

    Args:
        workers: Processes; None for one per core of this machine or of the cluster.
        print_line: Called with a line before Ray is started, which takes some seconds.

    Raises:
        InputError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise InputError('ray is not installed; install the extra with: pip install "ipfl[ray]"')

    def make_pool(runs: int, config: RunConfig, tasks: TaskCache) -> RunPool:
        own_task = None if tasks.make_own is None else _pack_task(tasks.make_own)
        address = os.environ.get("RAY_ADDRESS")
        print_line(f"connecting to Ray at {address} …" if address else "starting Ray …")
        return RayRuns(runs, workers, config, address, own_task)

    return make_pool


def _pack_task(make: MakeTask) -> bytes:
    """The maker of the user's own tasks for another process: data, network, functions, by their content."""
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(make))
    except Exception as error:  # whatever somebody else's class raises when it is pickled
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the task cannot be sent to Ray's workers, because it cannot be pickled: {reason}"
        ) from error


class RayRuns:
    """Plays runs as Ray tasks; see `RunPool`. A task is never repeated by Ray: a run is resumed by the user.

    Args:
        runs: Runs at the same time, at most.
        workers: Processes; None: one per core.
        config: Of the comparison.
        address: Of a cluster; None: a Ray of its own.
        own_task: What makes the user's own tasks, pickled; None: the config says which task.
    """

    def __init__(
        self, runs: int, workers: int | None, config: RunConfig, address: str | None, own_task: bytes | None
    ):
        import ray
        from ray.util.queue import Queue

        self._running: dict[Any, StudyRun] = {}
        self._observers: dict[str, RemoteObserver] = {}
        self._outcomes: deque[RunOutcome] = deque()
        self._resources = ExitStack()
        with ExitStack() as stack:
            processes = _start_ray(stack, address, workers)
            self.capacity = min(runs, processes)
            self._workers = share_of_workers(processes, self.capacity, config)
            self._messages = Queue(actor_options={"num_cpus": 0})
            # In a list, Ray hands over the reference: a worker reads the task once, not for every run.
            self._own_task = [] if own_task is None else [ray.put(own_task)]
            self._play = ray.remote(num_cpus=max(1, self._workers), max_retries=0)(_play)
            self._resources = stack.pop_all()

    def start(self, run: StudyRun, reference: Result | None, observer: Observer | None) -> None:
        """Submits the run."""
        there = replace(run, folder=None if run.folder is None else run.folder.resolve())
        messages = None if observer is None else self._messages
        task = self._play.remote(there, reference, self._workers, messages, sys.path, self._own_task)
        self._running[task] = run
        self._observers[run.key] = RemoteObserver(observer)

    def wait(self) -> RunOutcome | None:
        """Waits until a run is over."""
        import ray

        with InterruptHandler() as interrupt:
            with interrupt.delay():
                while not self._outcomes and not interrupt.is_requested:
                    if not self._running:
                        return None
                    done, _ = ray.wait(list(self._running), timeout=POLL_SECONDS)
                    self._tell_observers()
                    for task in done:
                        self._take(task)
            interrupt.raise_if_requested()
        return self._outcomes.popleft()

    def _tell_observers(self) -> None:
        for key, *message in self._messages.get_nowait_batch(self._messages.qsize()):
            self._observers[key].tell(*message)

    def _take(self, task: Any) -> None:
        """Takes the outcome of a task that is over."""
        import ray
        from ray.exceptions import RayError, TaskCancelledError

        run = self._running.pop(task)
        try:
            outcome: RunOutcome = ray.get(task)
        except TaskCancelledError:
            outcome = interrupted_outcome(run)
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            outcome = RunOutcome(run, failure=f"the Ray task of this run failed: {reason}")
        self._outcomes.append(outcome)
        self._observers[run.key].tell("finish")  # if it could not say so itself

    def interrupt(self) -> None:
        """Lets Ray raise KeyboardInterrupt in every task."""
        import ray

        for task in self._running:
            ray.cancel(task)

    def close(self) -> None:
        """Ends a Ray of our own, and leaves a cluster."""
        self._resources.close()


def _start_ray(stack: ExitStack, address: str | None, workers: int | None) -> int:
    """Starts Ray or connects to a cluster, until the stack is closed; returns the number of processes."""
    import ray

    if ray.is_initialized():
        raise InputError("Ray is in use in this process already")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    stack.callback(ray.shutdown)
    if address is None:
        processes = count_cores() if workers is None else workers
        ray.init("local", num_cpus=processes, include_dashboard=False, **quiet)
        return processes
    try:
        ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot reach the Ray cluster {address!r}: {error}") from error
    there = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return there if workers is None else min(workers, there)


@lru_cache(maxsize=1)
def _worker_tasks(own_task: Any) -> TaskCache:
    """The tasks of this Ray worker; `own_task` refers to what makes the user's own, None: there is none."""
    if own_task is None:
        return TaskCache()
    import ray
    from ray import cloudpickle

    return TaskCache(cloudpickle.loads(ray.get(own_task)))


def _play(
    run: StudyRun,
    reference: Result | None,
    workers: int,
    messages: Any,
    path: list[str],
    own_task: Sequence[Any] = (),
) -> RunOutcome:
    """Plays a run on a Ray worker."""
    import torch

    torch.set_num_threads(1)
    sys.path += [folder for folder in path if folder not in sys.path]
    if run.folder is not None and not run.folder.parents[1].is_dir():
        where = f"{run.folder.parents[1]} is not on the machine {socket.gethostname()}"
        return RunOutcome(run, failure=f"{where}: a cluster needs a folder that all its machines share")
    observer = None if messages is None else RelayObserver(lambda *said: messages.put((run.key, *said)))
    with suppress(KeyboardInterrupt):
        tasks = _worker_tasks(own_task[0] if own_task else None)
        return play_run(run, reference, workers, observer, tasks).without_state()
    return interrupted_outcome(run)
