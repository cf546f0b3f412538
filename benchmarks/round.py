"""Our round beside a plain PyTorch loop on the same work, in one run; and peak memory by clients.

    make bench            # or: python benchmarks/round.py [--repeats 5]

Work of a round: 10 of 100 clients, 500 images each, one epoch, the paper's CNN; 32×32×3 in batches of 50, and
28×28 in batches of 10, 50 and 128. The plain loop is what one writes first: the same layers with ReLU before
pooling, `torch.optim.SGD`, float tensors made per batch. On one core the contestants take turns, each in a
process of its own (the allocator's setting is of a process), and what counts is the time that the core worked
for them; the least of all repeats, with the median behind it. Ratios are between runs of this very minute on
this very machine; the seconds are not comparable with anybody else's.

The share of the matrix-product rate is that of the products which the layers' forward and backward passes
are (a convolution's as if its patches were copied already): first against `torch.mm` of these very shapes,
then against the rate of one large product, 1024 × 1024 × 1024.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ipfl.client.models import CNN
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

CLASSES, PER_ROUND, SAMPLES = 10, 10, 500
COLOUR, GREY = (32, 32, 3), (28, 28, 1)
SIZES = ((COLOUR, 50), (GREY, 10), (GREY, 50), (GREY, 128))
"""Shape of an image, and batch."""


SETTINGS = TrainConfig(lr=0.01, batch_size=50, epochs=1, per_round=PER_ROUND)


def settings(batch: int, precision: str = "float32") -> TrainConfig:
    """How clients train."""
    return SETTINGS.model_copy(update={"batch_size": batch, "precision": precision})


def random_images() -> Dataset:
    """Random images; how many and which shape is in the environment: `module:callable` is given nothing."""
    train, shape = int(os.environ["IPFL_BENCH_IMAGES"]), os.environ["IPFL_BENCH_SHAPE"].split(",")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + 1000, *map(int, shape)), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, train + 1000)
    return Dataset("random", images[:train], labels[:train], images[train:], labels[train:], CLASSES)


def make_task(clients: int, samples: int, shape: tuple[int, ...] = COLOUR) -> Task:
    """A federation of that size on random images."""
    os.environ["IPFL_BENCH_IMAGES"] = str(clients * samples)
    os.environ["IPFL_BENCH_SHAPE"] = ",".join(map(str, shape))
    sys.path.insert(0, str(Path(__file__).parent))
    config = TaskConfig(
        dataset="round:random_images",
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


def plain_round(task: Task, batch: int, clients: list[int]) -> None:
    """FedAvg as in a tutorial: copy the model, train it, average the state dicts."""
    model = PlainCNN(task.data.input_shape, CLASSES)
    states = []
    for client in clients:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=settings(batch).lr)
        data = task.data.parts(client).train
        x = torch.from_numpy(data.x).permute(0, 3, 1, 2).contiguous()
        y = torch.from_numpy(data.y)
        order = torch.randperm(len(y))
        for first in range(0, len(y), batch):
            chosen = order[first : first + batch]
            optimizer.zero_grad()
            scores = local(x[chosen].float().div(127.5).sub(1))
            nn.functional.cross_entropy(scores, y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        states.append(local.state_dict())
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    model.load_state_dict(mean)


def bare_round(engine: LocalEngine, task: Task, batch: int, clients: list[int]) -> None:
    """Forward, backward and step alone, on batches that are ready: what a round cannot do without."""
    network = engine.runner.network
    parameters, start = list(network.module.parameters()), network.read()
    for client in clients:
        network.load(start)  # or one batch, learned by heart, drives the gradients into slow tiny numbers
        data = task.data.parts(client).train
        points = network.points(Samples(data.x[:batch], data.y[:batch]))
        inputs = network.inputs(points.x)
        for _ in range(-(-len(data) // batch)):
            loss = nn.functional.cross_entropy(network.module(inputs), points.y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=settings(batch).lr)


def our_round(engine: LocalEngine, clients: list[int]) -> None:
    """One FedAvg training phase and its aggregation."""
    start = Record({"global": engine.runner.network.read()})
    replies = engine.ask(Ask("train", dict.fromkeys(clients, start)), 0)
    if len(replies) != len(clients):
        raise RuntimeError("clients are missing")
    average_models(replies, "global", start.params["global"], AggregateConfig())


def layer_products(shape: tuple[int, ...], batch: int) -> list[tuple[int, int, int]]:
    """(m, k, n) of the matrix products in a step of the paper's CNN: forward, then both gradients."""
    height, width, channels = shape
    half, quarter = (height // 2) * (width // 2), (height // 4) * (width // 4)
    layers = [
        (batch * height * width, 9 * channels, 32),
        (batch * half, 9 * 32, 64),
        (batch * quarter, 9 * 64, 64),
        (batch, 64 * quarter, 128),
        (batch, 128, CLASSES),
    ]
    products = []
    for number, (m, k, n) in enumerate(layers):
        products += [(m, k, n), (k, m, n)]  # outputs; gradient of the weights
        if number:
            products.append((m, n, k))  # gradient of the inputs, which the first layer does not need
    return products


def multiply(pairs: list[tuple[Tensor, Tensor]], times: int) -> None:
    """The matrix products of so many steps."""
    outs = [torch.empty(a.shape[0], b.shape[1]) for a, b in pairs]
    for _ in range(times):
        for (a, b), out in zip(pairs, outs, strict=True):
            torch.mm(a, b, out=out)


@dataclass
class Contestant:
    """Something that is timed in a process of its own."""

    name: str
    work: Callable[[], object]
    seconds: list[float]

    def __post_init__(self) -> None:
        context = mp.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self._serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def _serve(self, pipe: mp.connection.Connection) -> None:
        self.pipe.close()
        with one_thread():
            while pipe.recv():
                begun = time.process_time()
                self.work()
                pipe.send(time.process_time() - begun)

    def take_turn(self, *, is_counted: bool = True) -> None:
        """Does its work once more."""
        self.pipe.send(True)
        seconds = self.pipe.recv()
        if is_counted:
            self.seconds.append(seconds)

    def end(self) -> None:
        """Ends its process."""
        self.pipe.send(False)
        self.process.join()

    @property
    def best(self) -> float:
        """Least seconds."""
        return min(self.seconds)


def one_core(repeats: int, shape: tuple[int, ...], batch: int, per_round: int, *, with_bf16: bool) -> None:
    """Prints the ratios on one core for one size."""
    task, clients = make_task(2 * per_round, SAMPLES + 1, shape), list(range(per_round))
    steps = per_round * -(-SAMPLES // batch)
    products = layer_products(shape, batch)
    pairs = [(torch.randn(m, k), torch.randn(k, n)) for m, k, n in products]
    large = [(torch.randn(1024, 1024), torch.randn(1024, 1024))]
    engines = {
        precision: LocalEngine(EngineContext(task, FedAvg(), settings(batch, precision), seed=0), workers=0)
        for precision in ("float32", "bf16")
    }
    works: dict[str, Callable[[], object]] = {
        "plain loop": partial(plain_round, task, batch, clients),
        "ours, float32": partial(our_round, engines["float32"], clients),
        "ours, bf16": partial(our_round, engines["bf16"], clients),
        "step alone": partial(bare_round, engines["float32"], task, batch, clients),
        "products of the layers": partial(multiply, pairs, steps),
        "large product": partial(multiply, large, 20),
    }
    if not with_bf16:
        del works["ours, bf16"]
    contestants = {name: Contestant(name, work, []) for name, work in works.items()}
    for turn in range(repeats + 1):
        for contestant in contestants.values():
            contestant.take_turn(is_counted=turn > 0)
    for contestant in contestants.values():
        contestant.end()
    for engine in engines.values():
        engine.close()
    print(f"{'×'.join(map(str, shape))}, batch {batch}, one core:")
    plain = contestants["plain loop"]
    for name in [name for name in works if "product" not in name]:
        one = contestants[name]
        ratios = sorted(theirs / own for theirs, own in zip(plain.seconds, one.seconds, strict=True))
        print(
            f"  {name:14} {one.best:6.2f} s (median {statistics.median(one.seconds):6.2f})  "
            f"{plain.best / one.best:4.2f}× the plain loop ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    ours = contestants["ours, float32"].best
    operations = steps * sum(2 * m * k * n for m, k, n in products)
    rate = 20 * 2 * 1024**3 / contestants["large product"].best
    print(f"  outside of the step: {1 - contestants['step alone'].best / ours:.1%} of ours")
    print(
        f"  matrix products: {contestants['products of the layers'].best / ours:.0%} of their rate in these "
        f"shapes, {operations / ours / rate:.0%} of that of a large product ({rate / 1e9:.0f} Gflop/s)",
        flush=True,
    )


def best(repeats: int, *contestants: Callable[[], None]) -> list[float]:
    """Least seconds of each by the clock; they take turns, so that a busy moment hits all of them."""
    seconds = [float("inf")] * len(contestants)
    for contestant in contestants:
        contestant()
    for _ in range(repeats):
        for place, contestant in enumerate(contestants):
            begun = time.perf_counter()
            contestant()
            seconds[place] = min(seconds[place], time.perf_counter() - begun)
    return seconds


def all_cores(repeats: int) -> None:
    """Prints the ratios with all cores, by the clock."""
    task, clients, batch = make_task(2 * PER_ROUND, SAMPLES + 1), list(range(PER_ROUND)), 50
    cores = len(os.sched_getaffinity(0))
    context = EngineContext(task, FedAvg(), settings(batch), seed=0)
    with LocalEngine(context, workers=cores) as engine, LocalEngine(context, workers=1) as single:
        plain, ours, alone = best(
            repeats,
            lambda: plain_round(task, batch, clients),
            lambda: our_round(engine, clients),
            lambda: our_round(single, clients),
        )
    print(f"{'×'.join(map(str, COLOUR))}, batch {batch}, {cores} cores:")
    print(f"  plain, {cores} threads {plain:.2f} s, ours {ours:.2f} s: {plain / ours:.2f}× the plain loop")
    print(f"  one worker {alone:.2f} s: {cores} are {alone / ours:.2f}× as fast", flush=True)


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
    parser.add_argument("--clients", type=int, default=PER_ROUND, help="clients at work in a round")
    parser.add_argument("--without-bf16", action="store_true", help="for machines that only emulate it")
    parser.add_argument("--memory", nargs=2, type=int, metavar=("CLIENTS", "SAMPLES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        measure(*options.memory)
        return
    for shape, batch in SIZES:
        one_core(options.repeats, shape, batch, options.clients, with_bf16=not options.without_bf16)
    all_cores(options.repeats)
    for clients, samples in ((100, 500), (5000, 20)):
        command = [sys.executable, __file__, "--memory", str(clients), str(samples)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
