"""Small tasks, runs and engines for tests: few clients, few samples, softmax regression."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipfl
from ipfl.core import Ask, ClientId, Method, Record
from ipfl.core.replies import ReplyLimits, ReplySchema
from ipfl.engines import EngineContext, EngineFactory, WrapRunner
from ipfl.engines.local_engine import LocalEngine, local_engine
from ipfl.keep.run_audit import Audit
from ipfl.keep.signing_keys import key_beside
from ipfl.ledger.store import RunStore
from ipfl.results.result import Observer, Result

SMALL = {"clients": 6, "samples": 20, "test_samples": 20, "model": "softmax"}
"""Settings of a task on the bundled digits."""


def small_task(seed: int = 0, **settings: Any) -> ipfl.Task:
    """A task with these settings, and those of `SMALL` otherwise."""
    return ipfl.Task.load(seed=seed, **(SMALL | settings))


def run_small(
    task: ipfl.Task,
    method: str | Method[Any] = "fedavg",
    out: Path | None = None,
    *,
    workers: int = 0,
    engine: EngineFactory | None = None,
    overwrite: bool = False,
    resume: bool = False,
    observer: Observer | None = None,
    reference: Result | None = None,
    **config: Any,
) -> Result:
    """`ipfl.run` in this process; all other keywords are those of a `RunConfig`."""
    output = ipfl.RunOutput(out, overwrite, resume) if out is not None else None
    return ipfl.run(
        task,
        ipfl.method(method) if isinstance(method, str) else method,
        ipfl.RunConfig(**config),
        engine=engine or ipfl.local_engine(workers),
        out=output,
        observer=observer,
        reference=reference,
        progress=False,
    )


def copy_run(run: Path, to: Path) -> Path:
    """A copy of a run, with the key beside it."""
    shutil.copytree(run, to)
    if (key := key_beside(run)).exists():
        shutil.copy2(key, key_beside(to))
    return to


def finding(folder: Path) -> str | None:
    """What the audit of a run says that is wrong with it."""
    found = Audit(RunStore.open(folder), folder).finding()
    return None if found is None else str(found)


class AfterRound:
    """An observer that does something after a round."""

    def __init__(self, round: int, action: Callable[[], None]):
        self.last, self.action = round, action

    def start(self, method: str, rounds: int) -> None:
        """Nothing to do."""

    def round(self, line: Mapping[str, Any]) -> None:
        """Does it if this round is the one."""
        if line["round"] == self.last:
            self.action()

    def finish(self) -> None:
        """Nothing to do."""


class InterruptAfter(AfterRound):
    """Interrupts a run after a round, as Ctrl-C would."""

    def __init__(self, round: int):
        super().__init__(round, self.interrupt)

    @staticmethod
    def interrupt() -> None:
        """Ends the run."""
        raise KeyboardInterrupt


def small_engine(
    task: ipfl.Task,
    method: Method[Any],
    *,
    workers: int = 0,
    train: ipfl.TrainConfig | None = None,
    memory: Path | None = None,
    deadline: float | None = None,
    wrap: WrapRunner | None = None,
    seed: int = 0,
) -> LocalEngine:
    """A local engine, in this process by default."""
    context = EngineContext(task, method, train or ipfl.TrainConfig(), seed, memory, deadline, wrap)
    return local_engine(workers)(context)


class Anything(ReplySchema):
    """Limits nothing, for tests of what engines carry."""

    def limits(self, sent: Record) -> ReplyLimits:
        """More than any test sends."""
        return ReplyLimits(2**20, 2**10, 2**30)


def ask_anything(action: str, to: Mapping[ClientId, Record]) -> Ask:
    """An ask whose replies may be of any size."""
    return Ask(action, to, Anything())
