"""What Flower costs: seconds per phase, simulated and deployed, and bytes per client and round.

    python benchmarks/flower.py [--nodes 10,100,500] [--deployed 3] [--out benchmarks/flower.md]

Seconds: IP-FL with the paper's CNN (digits, 89 930 parameters) on clients with three samples each, so that
next to nothing is computed and what is left is the cost of messages. The local engine does the same work in
the same run of this file. Bytes: the default task. Deployed: nodes on loopback with TLS and keys, as in
`ipfl deploy try`.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ipfl
from ipfl.config.whole_config import Config
from ipfl.core import Ask, Bytes, ClientId, Engine, Replies
from ipfl.deploy.local_federation import local_federation
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.flower.simulation import simulation_engine
from ipfl.engines.local_engine import count_cores, local_engine
from ipfl.keep.file_names import METRICS_FILE
from ipfl.results.result import Result
from ipfl.training.task import Task

PHASES = ("preference", "train", "appraise", "evaluate")
ROUNDS = 4


class TimedEngine:
    """An engine that notes how long each phase takes."""

    def __init__(self, inner: Engine, seconds: dict[str, list[float]]):
        self.inner, self.seconds, self.events = inner, seconds, inner.events

    @property
    def traffic(self) -> Bytes | None:
        """What travelled."""
        return self.inner.traffic

    @traffic.setter
    def traffic(self, fresh: Bytes | None) -> None:
        self.inner.traffic = fresh

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """As the engine says."""
        return self.inner.present(clients)

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase and notes how long it took."""
        start = time.perf_counter()
        replies = self.inner.ask(ask, round)
        self.seconds[ask.action].append(time.perf_counter() - start)
        return replies

    def commit(self, round: int) -> None:
        """Passed on."""
        self.inner.commit(round)

    def roll_back(self, round: int) -> None:
        """Passed on."""
        self.inner.roll_back(round)

    def close(self) -> None:
        """Passed on."""
        self.inner.close()


def settings(clients: int, rounds: int, name: str = "ipfl", **task: Any) -> Config:
    """A run that is evaluated after its last round only."""
    return Config.of(
        {
            "rounds": rounds,
            "method": {"name": name},
            "task": {"clients": clients, **task},
            "evaluate": {"every": 10**6},
        }
    )


def timed_run(config: Config, make_engine: EngineFactory) -> tuple[float, dict[str, list[float]]]:
    """Seconds to start the engine, and those of each phase."""
    seconds: dict[str, list[float]] = defaultdict(list)
    start_seconds = 0.0

    def make_timed_engine(context: EngineContext) -> Engine:
        nonlocal start_seconds
        began = time.perf_counter()
        inner = make_engine(context)
        start_seconds = time.perf_counter() - began
        return TimedEngine(inner, seconds)

    run(config, make_timed_engine)
    return start_seconds, seconds


def run(config: Config, engine: EngineFactory | None) -> Result:
    """The config's run, its results in memory."""
    return ipfl.run(Task.build(config.task, config.seed), config.build_method(), config, engine=engine)


def phases(nodes: list[int]) -> Iterator[str]:
    """Table: seconds per phase on simulated nodes, the local engine beside them."""
    yield "## Seconds per phase, simulated\n"
    yield "Median over the rounds. A client trains on two samples: nearly all is the cost of messages.\n"
    yield f"| clients | engine | start | {' | '.join(PHASES)} |"
    yield "|---|---|---|" + "---|" * len(PHASES)
    for clients in nodes:
        config = settings(clients, ROUNDS, samples=3, test_samples=3)
        for name, engine in (("local", local_engine()), ("Flower", simulation_engine(config.task))):
            start, seconds = timed_run(config, engine)
            columns = " | ".join(f"{statistics.median(seconds[phase]):.2f}" for phase in PHASES)
            yield f"| {clients} | {name} | {start:.1f} | {columns} |"


def traffic() -> Iterator[str]:
    """Table: bytes per client and round."""
    clients, rounds = 20, 12
    yield "\n## Bytes per client and round\n"
    yield (
        f"Default task, {clients} clients of which half train in a round; rounds 2 to {rounds - 1} "
        f"of {rounds}, none of them evaluated.\n"
        "“Every record” is what would travel if each ask carried all its vectors.\n"
    )
    yield "| method | every record, down | down | every record, up | up |"
    yield "|---|---|---|---|---|"
    for name in ("fedavg", "ipfl-plus"):
        config = settings(clients, rounds, name)
        results = [run(config, engine) for engine in (None, simulation_engine(config.task))]
        figures = []
        for key in ("bytes_down", "bytes_up"):
            for result in results:
                middle = [line[key] for line in result.history[1:-1]]
                figures.append(f"{statistics.mean(middle) / clients / 1000:.1f} kB")
        yield f"| {name} | {' | '.join(figures)} |"


class RoundClock:
    """Notes when each round of a run in another process ends: when its results have grown by a line."""

    def __init__(self, metrics: Path):
        self.metrics = metrics
        self.ended: list[float] = []

    def __call__(self, line: str) -> None:
        """Called whenever that process prints a line, as it does after each round."""
        done = len(self.metrics.read_text().splitlines()) if self.metrics.exists() else 0
        if done > len(self.ended):
            self.ended.append(time.perf_counter())


def deployed(nodes: int) -> Iterator[str]:
    """Seconds per round on real nodes on loopback."""
    yield "\n## Seconds per phase, deployed\n"
    config = settings(nodes, 6, samples=60)
    with TemporaryDirectory(prefix="ipfl-") as folder:
        out, start = Path(folder) / "run", time.perf_counter()
        with local_federation(Path(folder) / "federation", nodes) as federation:
            federation.write_inputs(config, Task.build(config.task, config.seed))
            federation.start_server()
            federation.start_nodes(range(nodes))
            started = time.perf_counter() - start
            clock = RoundClock(out / METRICS_FILE)
            federation.run({"out": str(out), "nodes": nodes}, clock)
    rounds = [after - before for before, after in pairwise(clock.ended[:-1])]  # the last has an evaluation
    middle = statistics.median(rounds)
    yield f"{nodes} nodes on loopback with TLS and node authentication, 60 digits each, the paper's CNN."
    yield f"Server and nodes up after {started:.0f} s. A round (preference, train, appraise):"
    yield f"median {middle:.1f} s, {middle / 3:.1f} s per phase."


def conditions() -> Iterator[str]:
    """Where and with what."""
    load = os.getloadavg()[0]
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "ray", "torch", "numpy"))
    yield "# What Flower costs\n"
    yield "Made by `benchmarks/flower.py`, which says what is measured; seconds compare within a run only.\n"
    yield f"{count_cores()} cores ({platform.machine()}), load {load:.1f} at the start;"
    yield f"Python {platform.python_version()}, {packages}.\n"


def main() -> None:
    """Measures, prints, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", default="10,100,500", help="sizes of simulated federations")
    parser.add_argument("--deployed", type=int, default=3, help="deployed nodes; 0: none")
    parser.add_argument("--out", type=Path, help="where the page goes; default: only printed")
    options = parser.parse_args()
    sizes = [int(size) for size in options.nodes.split(",")]
    parts = [conditions(), phases(sizes), traffic()]
    if options.deployed:
        parts.append(deployed(options.deployed))
    lines = []
    for part in parts:
        for line in part:
            print(line, flush=True)
            lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
