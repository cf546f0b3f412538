"""For all tests: in which order they start, that none sees code of another, that Ctrl-C reaches processes.

Also that the command line, which `CliRunner` makes anew of all signatures for every command, is made once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby, islice
from types import ModuleType

import hypothesis
import pytest
import typer.testing

# No test is timed: on a busy machine any example may take long.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# Several tests run at the same time. Threads inside torch would wait for each other, and take up to 50 times
# the processor time (the test of an LSTM).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts background jobs with SIGINT ignored, and so would be every process below them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# It holds nothing of the commands that ran, and to make it takes 50 ms.
typer.testing._get_command = cache(typer.testing._get_command)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest-xdist, the tests that wait most of the time are the first of some workers.

    They then overlap with tests that compute, and none of them is left for the end. Not of all workers: each
    starts several processes, and too many that start at the same time exceed their time limits. At the
    beginning `--dist worksteal` gives each worker the same number of tests, one piece of the list after
    the other.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    waiting_workers = max(1, workers // 2)
    waiting = [item for item in items if item.get_closest_marker("waits")]
    others = iter([item for item in items if not item.get_closest_marker("waits")])
    # A file stays on one worker: its tests share what is slow to start.
    files = [list(file) for _, file in groupby(waiting, key=lambda item: item.path)]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        mine = files[worker::waiting_workers] if worker < waiting_workers else []
        piece = [item for file in mine for item in file]
        size = (len(items) - len(ordered)) // (workers - worker)
        ordered += [*piece, *islice(others, max(0, size - len(piece)))]
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not visit it again.

    Visiting it took 7 % of the processor time of the 324 tests that were measured.
    """
    gc.collect()
    gc.freeze()


_seen: dict[str, ModuleType] = {}
"""Modules that were looked at: there are thousands, and thousands of tests."""


@pytest.fixture(autouse=True)
def own_code_is_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that a test wrote and imported are imported afresh by the next one: many are called `mine`."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in [*sys.modules.items()]:
        if _seen.get(name) is module:
            continue
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]
        else:
            _seen[name] = module
