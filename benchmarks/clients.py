"""What the number of clients costs: set-up, round and peak memory of FedAvg and IP-FL, in turns.

10 clients at work, each with 20, 100 or 500 images, a fifth of them kept to score models: 500 in colour of
32×32, otherwise grey ones of 28×28. Everything is written to disk, the ledger too. A run's last round, which
is evaluated, is not counted.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ipfl
from ipfl.config.run_config import EvaluateConfig, RunConfig
from ipfl.methods import REFERENCE
from measuring import in_process
from methods import Stopwatch, TimedEngine
from round import COLOUR, GREY, SETTINGS, make_task, memory_measured

CASES = (
    *((clients, 20) for clients in (100, 1000, 5000, 10_000, 50_000)),
    *((clients, 100) for clients in (100, 1000, 10_000)),
    *((clients, 500) for clients in (100, 1000)),
)
"""Clients, and samples of each."""
PROBE, ROUNDS, TURNS = 0.2, 5, 2
COLOUR_FROM = 500
"""So many samples are images in colour, as in CIFAR-10."""
METHOD = "ipfl-plus"


class SetUpWatch(Stopwatch):
    """Also when the first round began."""

    def start(self, method: str, rounds: int) -> None:
        """The set-up is over."""
        self.started = time.perf_counter()
        super().start(method, rounds)


def play(task: Any, name: str) -> tuple[float, list[float]]:
    """Seconds until the first round, and of every round but the first and the last."""
    watch = SetUpWatch()
    config = RunConfig(rounds=ROUNDS + 2, train=SETTINGS, evaluate=EvaluateConfig(every=10**9, clients=2))
    with TemporaryDirectory() as folder:
        begun = time.perf_counter()
        # Fine-tuning every client for its model would take longer than all that is measured.
        out = ipfl.RunOutput(Path(folder) / "run", keep_models=False)
        ipfl.run(task, ipfl.method(name), config, engine=TimedEngine, observer=watch, out=out)
    return watch.started - begun, [whole for whole, _ in watch.rounds[1:-1]]


def measure_size(clients: int, samples: int) -> dict[str, Any]:
    """One number of clients, with so many samples each."""
    with memory_measured() as peak:
        begun = time.perf_counter()
        task = make_task(clients, samples, COLOUR if samples >= COLOUR_FROM else GREY, PROBE)
        data = time.perf_counter() - begun
        laps: dict[str, list[float]] = {REFERENCE: [], METHOD: []}
        set_up: dict[str, float] = {}
        for _ in range(TURNS):
            for name, seconds in laps.items():
                until, found = play(task, name)
                seconds += found
                set_up[name] = min(until, set_up.get(name, until))
    turns = [own / theirs for own, theirs in zip(laps[METHOD], laps[REFERENCE], strict=True)]
    median = {name: statistics.median(seconds) for name, seconds in laps.items()}
    return {
        "clients": clients,
        "samples": samples,
        "data": data,
        "set-up": set_up,
        "round": median,
        "ratio": median[METHOD] / median[REFERENCE],
        "least": min(turns),
        "most": max(turns),
        "peak": peak[-1],
    }


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row per case."""
    cases = ((20, 20),) if quick else CASES
    return [in_process("clients", "measure_size", clients=n, samples=samples) for n, samples in cases]
