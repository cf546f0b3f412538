"""Our round beside a plain PyTorch loop on the same work, in one run; and peak memory by clients.

    make bench            # or: python benchmarks/round.py [--repeats 5]

Work of a round: 10 of 100 clients, 500 CIFAR-shaped samples each, batch 50, one epoch, the paper's CNN.
The plain loop is what one writes first: the same layers with ReLU before pooling, `torch.optim.SGD`, float
tensors made per batch. Ratios are between runs of this very minute on this very machine; the seconds are not
comparable with anybody else's.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ipfl.client.network import CNN
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.client.training import one_thread
from ipfl.core import Ask, Record
from ipfl.core.sections import AggregateConfig
from ipfl.data.dataset import Dataset
from ipfl.data.federated import Samples
from ipfl.data.settings import TaskConfig
from ipfl.engines import EngineContext
from ipfl.engines.local import LocalEngine
from ipfl.methods.fedavg import FedAvg
from ipfl.methods.steps import average_models
from ipfl.runs.config import RunConfig
from ipfl.runs.run import run

SHAPE, CLASSES, PER_ROUND, SAMPLES, BATCH = (32, 32, 3), 10, 10, 500, 50
SETTINGS = TrainConfig(lr=0.01, batch_size=BATCH, epochs=1, per_round=PER_ROUND)


def cifar_shaped() -> Dataset:
    """Random images; how many is set by the environment, so that `module:callable` can be used."""
    train = int(os.environ["IPFL_BENCH_IMAGES"])
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + 1000, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, train + 1000)
    return Dataset("random", images[:train], labels[:train], images[train:], labels[train:], CLASSES)


def make_task(clients: int, samples: int) -> Task:
    """A federation of that size on random images."""
    os.environ["IPFL_BENCH_IMAGES"] = str(clients * samples)
    sys.path.insert(0, str(Path(__file__).parent))
    config = TaskConfig(
        dataset="round:cifar_shaped",
        distributions="iid",
        partition="random",
        clients=clients,
        samples=samples,
        probe=1e-9,  # a single sample: all the others are trained on, as in the plain loop
    )
    return Task.build(config, 0)


class PlainCNN(CNN):
    """The same network as it is usually written: pooling after the ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.conv3(x)).flatten(1)
        return self.out(torch.relu(self.hidden(x)))  # type: ignore[no-any-return]


def plain_round(task: Task, clients: list[int]) -> None:
    """FedAvg as in a tutorial: copy the model, train it, average the state dicts."""
    model = PlainCNN(SHAPE, CLASSES)
    states = []
    for client in clients:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=SETTINGS.lr)
        data = task.data.parts(client).train
        x = torch.from_numpy(data.x).permute(0, 3, 1, 2).contiguous()
        y = torch.from_numpy(data.y)
        order = torch.randperm(len(y))
        for first in range(0, len(y), BATCH):
            chosen = order[first : first + BATCH]
            optimizer.zero_grad()
            scores = local(x[chosen].float().div(127.5).sub(1))
            nn.functional.cross_entropy(scores, y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        states.append(local.state_dict())
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    model.load_state_dict(mean)


def bare_round(engine: LocalEngine, task: Task, clients: list[int]) -> None:
    """Forward, backward and step alone, on batches that are ready: what a round cannot do without."""
    network = engine.runner.network
    weights, start = network.flat[: network.trained], network.read()
    for client in clients:
        network.load(start)  # or one batch, learned by heart, drives the gradients into slow tiny numbers
        data = task.data.parts(client).train
        points = network.points(Samples(data.x[:BATCH], data.y[:BATCH]))
        batch, labels = network.inputs(points.x), points.y
        for _ in range(-(-len(data) // BATCH)):
            network.grad.zero_()
            nn.functional.cross_entropy(network.module(batch), labels).backward()  # type: ignore[no-untyped-call]
            weights.sub_(network.grad, alpha=SETTINGS.lr)


def our_round(engine: LocalEngine, clients: list[int]) -> None:
    """One FedAvg training phase and its aggregation."""
    start = Record({"global": engine.runner.network.read()})
    replies = engine.ask(Ask("train", dict.fromkeys(clients, start)), 0)
    if len(replies) != len(clients):
        raise RuntimeError("clients are missing")
    average_models(replies, "global", start.params["global"], AggregateConfig())


def best(repeats: int, *contestants: Callable[[], None]) -> list[float]:
    """Least seconds of each; they take turns, so that a busy moment hits all of them."""
    seconds = [float("inf")] * len(contestants)
    for contestant in contestants:
        contestant()
    for _ in range(repeats):
        for place, contestant in enumerate(contestants):
            begun = time.perf_counter()
            contestant()
            seconds[place] = min(seconds[place], time.perf_counter() - begun)
    return seconds


def speed(repeats: int) -> None:
    """Prints the ratios on one core and on all."""
    task = make_task(100, SAMPLES + 1)
    clients = list(range(PER_ROUND))
    cores = len(os.sched_getaffinity(0))
    context = EngineContext(task, FedAvg(), SETTINGS, seed=0)
    with LocalEngine(context, workers=0) as here, one_thread():
        plain, ours, bare = best(
            repeats,
            lambda: plain_round(task, clients),
            lambda: our_round(here, clients),
            lambda: bare_round(here, task, clients),
        )
    print(f"one core:  plain {plain:.2f} s, ours {ours:.2f} s  →  {plain / ours:.2f}× the plain loop")
    print(f"           forward, backward, step alone {bare:.2f} s  →  {1 - bare / ours:.1%} of ours outside")
    with LocalEngine(context, workers=cores) as engine:
        plain, ours = best(repeats, lambda: plain_round(task, clients), lambda: our_round(engine, clients))
    print(f"{cores} cores:   plain, {cores} threads {plain:.2f} s, ours {ours:.2f} s  →  {plain / ours:.2f}×")


def family_memory(pid: int) -> int:
    """Bytes held by a process and its children, shared pages counted once (PSS)."""
    total = 0
    for process in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:  # it ended meanwhile
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total


@contextmanager
def memory_measured() -> Iterator[list[int]]:
    """A list whose last entry is the peak so far of this process and its children, in bytes."""
    peak, done = [0], threading.Event()

    def measure_often() -> None:
        while not done.wait(0.05):
            peak.append(max(peak[-1], family_memory(os.getpid())))

    thread = threading.Thread(target=measure_often, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def measure(clients: int, samples: int) -> None:
    """Runs three rounds of FedAvg with evaluation and prints the peak of this process and its workers."""
    with memory_measured() as peak:
        run(make_task(clients, samples), FedAvg(), RunConfig(rounds=3, train=SETTINGS))
    print(f"peak memory, {clients:,} clients × {samples} samples: {peak[-1] / 2**20:,.0f} MB")


def main() -> None:
    """Speed here, memory in fresh processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="rounds of each contestant; the fastest counts"
    )
    parser.add_argument("--memory", nargs=2, type=int, metavar=("CLIENTS", "SAMPLES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        measure(*options.memory)
        return
    speed(options.repeats)
    for clients, samples in ((100, 500), (5000, 20)):
        command = [sys.executable, __file__, "--memory", str(clients), str(samples)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
