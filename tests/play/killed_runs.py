"""Runs in forked processes that die by SIGKILL, and all that must be equal once they were resumed.

Nothing is cleaned up for a killed process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.small_runs import run_small

import ipfl
from ipfl.keep.run_audit import verify_run
from ipfl.keep.run_folder import holds_run
from ipfl.ledger.store import RunStore
from ipfl.results.result import Result

SIX_ROUNDS = {"rounds": 6, "seed": 3, "train": ipfl.TrainConfig(per_round=4)}


def run_six_rounds(task: ipfl.Task, method: str, out: Path, **options: Any) -> Result:
    """A whole run, with the options of `run_small`; by default as `SIX_ROUNDS` says."""
    return run_small(task, method, out, **(SIX_ROUNDS | options))


def run_contents(folder: Path) -> tuple[Any, ...]:
    """All that must be equal, byte for byte where it is a file."""
    files = [folder / "metrics.jsonl", *sorted((folder / "model").iterdir())]
    files += [offer for offer in [folder / "offer.safetensors"] if offer.exists()]  # not of all methods
    summary = json.loads((folder / "summary.json").read_text())
    for differing in ("seconds", "commit"):
        summary.pop(differing)
    store = RunStore.open(folder)
    assert verify_run(store) is None
    ledger = (store.head(), list(store.lines()), store.balances())
    # What each client remembers now; older versions may or may not be there.
    remembered = {}
    for kept in ("memory", "client_models"):
        versions = sorted((folder / kept).glob("*/*.safetensors"), key=lambda path: int(path.stem))
        remembered |= {(kept, path.parent.name): path.read_bytes() for path in versions}
    return {path.name: path.read_bytes() for path in files}, summary, ledger, remembered


def is_killed(
    task: ipfl.Task,
    method: str,
    out: Path,
    prepare: Callable[[], None] = lambda: None,
    seconds: float | None = None,
    **options: Any,
) -> bool:
    """Runs or resumes in a forked process; returns whether it was killed.

    Args:
        task: What is run on.
        method: What is run.
        out: Its folder.
        prepare: Called in the forked process first, to decide where it dies (`die_at_call`).
        seconds: When it is killed from here; None: not from here.
        **options: Of `run_six_rounds`.
    """
    child = os.fork()
    if child == 0:
        try:
            prepare()
            run_six_rounds(task, method, out, resume=holds_run(out), **options)
        finally:
            os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def die_at_call(where: Any, name: str, number: int, *, after: bool = False) -> None:
    """Makes this process die at a call of a function: before it or after it.

    Args:
        where: The module or class that holds the function.
        name: The function's name there.
        number: Which call, counted from 1.
        after: Die after the call.
    """
    original, calls = getattr(where, name), 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return original(*args, **keywords)
        if after:
            original(*args, **keywords)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, counted)
