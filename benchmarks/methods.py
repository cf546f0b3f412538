"""What every method costs beside FedAvg: seconds of server and clients, traffic, memory, disk.

Work of a round: 10 clients, all at work, 100 CIFAR-shaped samples each, batch 50, one epoch, the paper's CNN
(582,000 parameters), one core. Each method takes turns with FedAvg in a process of its own, so that a ratio
is between rounds of the same minute; the first round, in which some methods prepare, is left out of the
ratio and shown apart. Memory and disk: 10 of 1,000 clients at work, 20 samples each, 4 rounds, the peak of
all processes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ipfl
from ipfl.config.run_config import EvaluateConfig, RunConfig
from ipfl.core import Ask, Method, Replies
from ipfl.engines.local_engine import LocalEngine
from ipfl.keep.file_names import CLIENT_MODELS, MEMORY
from ipfl.methods import METHODS, REFERENCE
from ipfl.training.task import Task
from measuring import in_process
from round import SETTINGS, make_task, memory_measured

ROUNDS = 3
NEVER = EvaluateConfig(every=10**9, clients=2)


class TimedEngine(LocalEngine):
    """The local engine in this process; counts the seconds of its clients."""

    client_seconds = 0.0

    def ask(self, ask: Ask, round: int) -> Replies:
        """One phase, timed."""
        begun = time.perf_counter()
        try:
            return super().ask(ask, round)
        finally:
            TimedEngine.client_seconds += time.perf_counter() - begun


class Stopwatch:
    """Seconds of every round, and of the clients in it."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float]] = []
        self.bytes: list[tuple[int, int]] = []

    def start(self, method: str, rounds: int) -> None:
        """The clock starts."""
        self.begun, TimedEngine.client_seconds = time.perf_counter(), 0.0

    def round(self, line: Mapping[str, Any]) -> None:
        """A lap."""
        self.rounds.append((time.perf_counter() - self.begun, TimedEngine.client_seconds))
        self.bytes.append((line["bytes_up"], line["bytes_down"]))
        self.begun, TimedEngine.client_seconds = time.perf_counter(), 0.0

    def finish(self) -> None:
        """Nothing to stop."""


def timed(task: Task, method: Method[Any]) -> Stopwatch:
    """One run; the last round, which is evaluated, is not counted."""
    stopwatch = Stopwatch()
    config = RunConfig(rounds=ROUNDS + 1, train=SETTINGS, evaluate=NEVER)
    ipfl.run(task, method, config, engine=TimedEngine, observer=stopwatch)
    stopwatch.rounds.pop()
    return stopwatch


def speed(name: str) -> dict[str, Any]:
    """Turns of the reference and the method: medians of their rounds."""
    task = make_task(10, 101)
    laps: dict[str, list[tuple[float, float]]] = {REFERENCE: [], name: []}
    first, traffic = 0.0, (0, 0)
    for turn in range(2):
        for one in (REFERENCE, name):
            stopwatch = timed(task, ipfl.method(one))
            laps[one] += stopwatch.rounds[1:]
            if one == name and not turn:
                first, traffic = stopwatch.rounds[0][0], stopwatch.bytes[-1]
    median = {one: [statistics.median(column) for column in zip(*laps[one], strict=True)] for one in laps}
    whole, clients = median[name]
    base = median[REFERENCE][0]
    turns = [own / theirs for (own, _), (theirs, _) in zip(laps[name], laps[REFERENCE], strict=True)]
    return {
        "ratio": whole / base,
        "least": min(turns),
        "most": max(turns),
        "first": first / base,
        "server": (whole - clients) / base,
        "up": traffic[0] / 10,
        "down": traffic[1] / 10,
    }


def memory(name: str) -> dict[str, Any]:
    """Peak of this process and its workers over four rounds among 1,000 clients, and what is left on disk."""
    with memory_measured() as peak, TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        config = RunConfig(rounds=4, train=SETTINGS, evaluate=EvaluateConfig(every=10**9, clients=2))
        ipfl.run(make_task(1000, 20), ipfl.method(name), config, out=ipfl.RunOutput(out, keep_models=False))
        kept = [file for part in (MEMORY, CLIENT_MODELS) for file in (out / part).glob("*/*")]
        clients = len({file.parent.name for file in kept}) or 1
        disk = sum(file.stat().st_size for file in kept) / clients
    return {"peak": peak[-1], "disk": disk}


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row per method, the cheapest first."""
    rows = []
    for name in [REFERENCE] if quick else METHODS:
        row = {"name": name} | in_process("methods", "speed", name=name)
        rows.append(row if quick else row | in_process("methods", "memory", name=name))
    return sorted(rows, key=lambda row: row["ratio"])
