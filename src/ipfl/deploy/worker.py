"""Runs a node's client code: a process that has imported everything already, and forks for each message.

Flower starts a fresh Python for every message, which spends most of a phase on importing torch. Here a
SuperNode is started with `--isolation process`, and this worker takes its tasks: a fork costs milliseconds,
and what client code does to its process still ends with that process.

    python -m ipfl.deploy.worker 127.0.0.1:9094 SECRET_FILE
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import ipfl.engines.flower.client  # noqa: F401 (imported once, for all forks)
from ipfl.engines.flower.flwr_internals import SuperNodeTasks

TASK_POLL_SECONDS = 0.4
"""Seconds between two looks for a task: a look costs 10 ms, and a SuperNode looks for messages every 3 s."""


def run_tasks(address: str, secret: bytes, parent: int) -> None:
    """Runs the tasks of the SuperNode at `address`, one fork each, until the parent process ends."""
    torch.set_num_threads(1)
    tasks = SuperNodeTasks(address, secret)
    gc.freeze()  # forks share these pages as long as no garbage collection touches them
    while os.getppid() == parent:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        token = tasks.acquire()
        if token is not None and os.fork() == 0:
            _run_in_fork(tasks, token)
        time.sleep(TASK_POLL_SECONDS)


def _run_in_fork(tasks: SuperNodeTasks, token: str) -> None:
    """Runs one task and ends the process; it never returns into the loop of its parent."""
    code = 1
    try:
        tasks.run(token)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    run_tasks(sys.argv[1], Path(sys.argv[2]).read_bytes(), os.getppid())
