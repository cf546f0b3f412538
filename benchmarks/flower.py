"""What Flower costs: seconds per phase, simulated and deployed, and bytes per client and round.

    python benchmarks/flower.py [--nodes 10,100,500] [--deployed 3] [--out benchmarks/flower.md]

Seconds: IP-FL with the paper's CNN (digits, 89 930 parameters) on clients with three samples each, so that
next to nothing is computed and what is left is the price of asking. The local engine does the same work in
the same run of this file. Bytes: the default task. Deployed: nodes on loopback with TLS and keys, as in
`ipfl deploy try`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipfl.deploy.trial import attempt

from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Ask, Bytes, ClientId, Engine, Method, Replies
from ipfl.engines.flower.simulation import simulation_engine
from ipfl.engines.local import LocalEngine, cores
from ipfl.runs.comparison import prepare, run_config
from ipfl.runs.config import Config
from ipfl.runs.loop import EngineFactory, Result

PHASES = ("preference", "train", "appraise", "evaluate")
ROUNDS = 4


class Timed:
    """An engine with a stopwatch."""

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

    def committed(self, round: int) -> None:
        """Passed on."""
        self.inner.committed(round)

    def rewind(self, round: int) -> None:
        """Passed on."""
        self.inner.rewind(round)

    def close(self) -> None:
        """Passed on."""
        self.inner.close()


def local(task: Task, method: Method[Any], train: TrainConfig, seed: int, memory: Path | None) -> Engine:
    """The local engine, one worker per core."""
    return LocalEngine(task, method, train, seed=seed, memory=memory)


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


def timed_run(config: Config, make: EngineFactory) -> tuple[float, dict[str, list[float]]]:
    """Seconds to start the engine, and those of each phase."""
    seconds: dict[str, list[float]] = defaultdict(list)
    start = 0.0

    def hire(task: Task, method: Method[Any], train: TrainConfig, seed: int, memory: Path | None) -> Engine:
        nonlocal start
        began = time.perf_counter()
        inner = make(task, method, train, seed, memory)
        start = time.perf_counter() - began
        return Timed(inner, seconds)

    run(config, hire)
    return start, seconds


def run(config: Config, engine: EngineFactory | None) -> Result:
    """The config's run, its results in memory."""
    method = config.build_method()
    return run_config(config, method, prepare(config, [method], config.seed), config.seed, engine=engine)


def phases(nodes: list[int]) -> Iterator[str]:
    """Table: seconds per phase on simulated nodes, the local engine beside them."""
    yield "## Seconds per phase, simulated\n"
    yield "Median over the rounds. A client trains on two samples: nearly all of it is the price of asking.\n"
    yield f"| clients | engine | start | {' | '.join(PHASES)} |"
    yield "|---|---|---|" + "---|" * len(PHASES)
    for clients in nodes:
        config = settings(clients, ROUNDS, samples=3, test_samples=3)
        for name, make in (("local", local), ("Flower", simulation_engine(config))):
            start, seconds = timed_run(config, make)
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
    yield "| method | every record, down | down | down, fp16 | every record, up | up | up, fp16 |"
    yield "|---|---|---|---|---|---|---|"
    for name in ("fedavg", "ipfl"):
        config = settings(clients, rounds, name)
        results = [
            run(config, engine)
            for engine in (None, simulation_engine(config), simulation_engine(config, float16=True))
        ]
        figures = []
        for key in ("bytes_down", "bytes_up"):
            for result in results:
                middle = [line[key] for line in result.history[1:-1]]
                figures.append(f"{statistics.mean(middle) / clients / 1000:.1f} kB")
        yield f"| {name} | {' | '.join(figures)} |"


def deployed(nodes: int) -> Iterator[str]:
    """Seconds per round on real nodes on loopback."""
    yield "\n## Seconds per phase, deployed\n"
    moments: list[tuple[float, str]] = []
    start = time.perf_counter()
    with TemporaryDirectory(prefix="ipfl-") as folder:
        config = settings(nodes, 6, samples=60)
        attempt(config, nodes, Path(folder) / "try", lambda line: moments.append((time.perf_counter(), line)))
    ended = [moment for moment, line in moments if re.match(r"round \d+/", line)]
    rounds = [after - before for before, after in pairwise(ended[:-1])]
    connected = next(moment for moment, line in moments if line.startswith("nodes:"))
    middle = statistics.median(rounds)
    yield f"{nodes} nodes on loopback with TLS and node authentication, 60 digits each, the paper's CNN."
    yield f"Server and nodes up after {connected - start:.0f} s. A round (preference, train, appraise):"
    yield f"median {middle:.1f} s, {middle / 3:.1f} s per phase."


def conditions() -> Iterator[str]:
    """Where and with what."""
    load = os.getloadavg()[0]
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "ray", "torch", "numpy"))
    yield "# What Flower costs\n"
    yield "Made by `benchmarks/flower.py`, which says what is measured; seconds compare within a run only.\n"
    yield f"{cores()} cores ({platform.machine()}), load {load:.1f} at the start;"
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
