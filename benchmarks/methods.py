"""What every method costs beside FedAvg: seconds of server and clients, traffic, memory, disk; in one run.

    make bench-methods        # or: python benchmarks/methods.py [NAME …] [--write]

Work of a round: 10 clients, all at work, 200 CIFAR-shaped samples each, batch 50, one epoch, the paper's CNN
(582,000 parameters), one core. Each method takes turns with FedAvg in a process of its own, so that a ratio
is between rounds of the same minute; the first round, in which some methods prepare, is left out of the
ratio and shown apart. Memory and disk: 10 of 5,000 clients at work, 20 samples each, 5 rounds, the peak of
all processes over what the same process held with FedAvg. `--write` makes benchmarks/methods.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ipfl
from ipfl.client.task import Task
from ipfl.core import Ask, Method, Replies
from ipfl.engines import EngineContext
from ipfl.engines.local import LocalEngine
from ipfl.methods import METHODS, REFERENCE
from ipfl.runs.config import EvaluateConfig, RunConfig
from ipfl.runs.file_names import CLIENT_MODELS, MEMORY
from round import SETTINGS, make_task, memory_measured

ROUNDS = 4
NEVER = EvaluateConfig(every=10**9)


class TimedEngine(LocalEngine):
    """The local engine in this process; counts the seconds of its clients."""

    client_seconds = 0.0

    def __init__(self, context: EngineContext):
        super().__init__(context, workers=0)

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
    task = make_task(10, 201)
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
    return {
        "ratio": whole / base,
        "first": first / base,
        "server": (whole - clients) / base,
        "up": traffic[0] / 10,
        "down": traffic[1] / 10,
    }


def memory(name: str) -> dict[str, Any]:
    """Peak of this process and its workers over five rounds among 5,000 clients, and what is left on disk."""
    with memory_measured() as peak, TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        config = RunConfig(rounds=5, train=SETTINGS, evaluate=EvaluateConfig(every=10**9, clients=10))
        ipfl.run(make_task(5000, 20), ipfl.method(name), config, out=out)
        kept = [file for part in (MEMORY, CLIENT_MODELS) for file in (out / part).glob("*/*")]
        clients = len({file.parent.name for file in kept}) or 1
        disk = sum(file.stat().st_size for file in kept) / clients
    return {"peak": peak[-1], "disk": disk}


def measured(name: str, what: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, name, "--measure", what]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _or_dash(row: Mapping[str, Any], name: str, unit: float, form: str) -> str:
    """A figure, or a dash where it was not measured."""
    return format(row[name] / unit, form) if name in row else "–"


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The findings in Markdown, the cheapest method first."""
    lines = [
        "| method | round | first round | server's share | up, MB | down, MB | peak memory, MB | disk, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda item: item[1]["ratio"]):
        lines.append(
            f"| {name} | {row['ratio']:.2f}× | {row['first']:.2f}× | {row['server']:.2f} "
            f"| {row['up'] / 1e6:.1f} | {row['down'] / 1e6:.1f} "
            f"| {_or_dash(row, 'peak', 2**20, ',.0f')} | {_or_dash(row, 'disk', 1e6, '.1f')} |"
        )
    return "\n".join(lines)


PAGE = """# What every method costs

`make bench-methods` on {machine}. Generated by benchmarks/methods.py, which says how it is measured.

{table}

- **round**, **first round**: seconds beside a round of FedAvg on the same work; **server's share** is the
  part of the first figure that is spent on the server, in rounds of FedAvg.
- **up**, **down**: what a client at work sends and gets in a round.
- **peak memory**: all processes, 5,000 clients, 10 at work. It does not grow with the number of clients: what
  a method keeps of each client is on disk, **disk** per client that has been at work.
"""


def main() -> None:
    """Measures the methods named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="methods; all if none is named")
    parser.add_argument("--write", action="store_true", help="write benchmarks/methods.md")
    parser.add_argument("--measure", choices=["speed", "memory"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps((speed if options.measure == "speed" else memory)(options.names[0])))
        return
    rows = {}
    for name in options.names or METHODS:
        rows[name] = measured(name, "speed") | measured(name, "memory")
        print(table({name: rows[name]}).splitlines()[-1], flush=True)
    print(table(rows))
    if options.write:
        machine = f"{len(os.sched_getaffinity(0))} cores of {platform.machine()}"
        page = PAGE.format(machine=machine, table=table(rows))
        (Path(__file__).parent / "methods.md").write_text(page)


if __name__ == "__main__":
    main()
