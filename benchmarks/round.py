"""Our round beside a plain PyTorch loop on the same work, with the share of the matrix-product rate.

Work of a round: some clients, one epoch, the paper's CNN; 32×32×3 and 28×28 in batches of 10, 50 and 128.
The plain loop is what one writes first (`plain_loop`). On one core the contestants take turns, each in a
process of its own (the allocator's setting is of a process), and what counts is the time that the core
worked for them; the least of all repeats. Ratios are between runs of this very minute on this very machine;
seconds are not comparable with anybody else's.

The share of the matrix-product rate is that of the products which the layers' forward and backward passes
are (a convolution's as if its patches were copied already): first against `torch.mm` of these very shapes,
then against the rate of one large product, 1024 × 1024 × 1024.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ipfl.config.sections import AggregateConfig
from ipfl.config.task_section import TaskConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import Ask, Record
from ipfl.data.dataset import Dataset
from ipfl.data.federated import Samples
from ipfl.engines import EngineContext
from ipfl.engines.local_engine import LocalEngine, local_engine
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.methods.shared.steps import average_models, expect_update
from ipfl.training.sgd import one_thread
from ipfl.training.task import Task
from plain_loop import CLASSES, LR, PFLlibClient, PlainCNN, Work, pfllib_round, plain_round, timed_rounds

PER_ROUND = 10
COLOUR, GREY = (32, 32, 3), (28, 28, 1)
SIZES = tuple((shape, batch) for shape in (COLOUR, GREY) for batch in (10, 50, 128))
"""Shape of an image, and batch."""
ONE_SAMPLE = 1e-9
"""Share that a client keeps to score models with: one sample; it trains on the others, as the plain loop."""


SETTINGS = TrainConfig(lr=LR, batch_size=50, epochs=1, per_round=PER_ROUND)


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


def make_task(
    clients: int,
    samples: int,
    shape: tuple[int, ...] = COLOUR,
    probe: float = ONE_SAMPLE,
) -> Task:
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
        probe=probe,
        test_samples=20,
    )
    return Task.build(config, 0)


def plain_data(task: Task, clients: list[int]) -> list[tuple[Any, Any]]:
    """What the plain loop trains on: what our clients train on."""
    parts = [task.data.parts(client).train for client in clients]
    return [(part.x, part.y) for part in parts]


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
    expected = expect_update({"global": engine.runner.network.size})
    replies = engine.ask(Ask("train", dict.fromkeys(clients, start), expected), 0)
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


def one_core(shape: tuple[int, ...], batch: int, *, quick: bool) -> dict[str, Any]:
    """The ratios on one core for one size."""
    per_round, repeats = (2, 1) if quick else (4, 4)
    samples = (
        2 * batch if quick else -(-250 // batch) * batch
    )  # no smaller last batch, which PFLlib would drop
    task, clients = make_task(2 * per_round, samples + 1, shape), list(range(per_round))
    steps = per_round * -(-samples // batch)
    products = layer_products(shape, batch)
    pairs = [(torch.randn(m, k), torch.randn(k, n)) for m, k, n in products]
    large = [(torch.randn(1024, 1024), torch.randn(1024, 1024))]
    precisions = ("float32", "bf16") if has_bf16() else ("float32",)
    engines = {
        precision: LocalEngine(EngineContext(task, FedAvg(), settings(batch, precision), seed=0))
        for precision in precisions
    }
    data, model = plain_data(task, clients), PlainCNN(shape)
    theirs = [PFLlibClient(model, one, batch) for one in data]
    works: dict[str, Callable[[], object]] = {
        "plain loop": partial(plain_round, model, data, batch),
        "PFLlib's loop": partial(pfllib_round, model, theirs),
        **{f"ours, {one}": partial(our_round, engine, clients) for one, engine in engines.items()},
        "step alone": partial(bare_round, engines["float32"], task, batch, clients),
        "products of the layers": partial(multiply, pairs, steps),
        "large product": partial(multiply, large, 20),
    }
    contestants = {name: Contestant(name, work, []) for name, work in works.items()}
    for turn in range(repeats + 1):
        for contestant in contestants.values():
            contestant.take_turn(is_counted=turn > 0)
    for contestant in contestants.values():
        contestant.end()
    for engine in engines.values():
        engine.close()
    best = {name: contestant.best for name, contestant in contestants.items()}
    ours, rate = best["ours, float32"], 20 * 2 * 1024**3 / best["large product"]
    operations = steps * sum(2 * m * k * n for m, k, n in products)
    return {
        "size": "×".join(map(str, shape)),
        "batch": batch,
        "seconds": best,
        "ratios": {
            name: _ratios(contestants["plain loop"].seconds, contestants[name].seconds)
            for name in works
            if "product" not in name
        },
        "outside of the step": 1 - best["step alone"] / ours,
        "rate in these shapes": best["products of the layers"] / ours,
        "rate of a large product": operations / ours / rate,
        "Gflop/s": rate / 1e9,
    }


def _ratios(plain: list[float], own: list[float]) -> list[float]:
    """Plain over own: of the best, and the least and most of the turns."""
    turns = [theirs / one for theirs, one in zip(plain, own, strict=True)]
    return [min(plain) / min(own), min(turns), max(turns)]


def has_bf16() -> bool:
    """Whether this processor computes in bfloat16; elsewhere it is emulated, many times slower."""
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def measure_steps(*, quick: bool) -> list[dict[str, Any]]:
    """A row per size and batch."""
    return [one_core(shape, batch, quick=quick) for shape, batch in (SIZES[:1] if quick else SIZES)]


def best(repeats: int, *contestants: Callable[[], object]) -> list[list[float]]:
    """Seconds of each by the clock; they take turns, so that a busy moment hits all of them."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for contestant in contestants:
        contestant()
    for _ in range(repeats):
        for place, contestant in enumerate(contestants):
            begun = time.perf_counter()
            contestant()
            seconds[place].append(time.perf_counter() - begun)
    return seconds


def count(number: int) -> int:
    """Plain work for a core, to see what two of them can do at this moment."""
    total = 0
    for one in range(number):
        total += one & 7
    return total


def measure_cores(*, quick: bool) -> list[dict[str, Any]]:
    """All cores beside one, by the clock; and what the machine gave to plain processes at the same time."""
    clients = list(range(4 if quick else PER_ROUND))
    task, batch = make_task(2 * len(clients), 21 if quick else 201), 50
    cores, number = len(os.sched_getaffinity(0)), 10**5 if quick else 10**7
    context = EngineContext(task, FedAvg(), settings(batch), seed=0)
    data, model = plain_data(task, clients), PlainCNN(COLOUR)
    with (
        local_engine(cores)(context) as engine,
        local_engine(1)(context) as single,
        mp.get_context("fork").Pool(cores) as pool,
    ):
        plain, ours, alone, side_by_side, one_by_one = best(
            1 if quick else 4,
            lambda: plain_round(model, data, batch),
            lambda: our_round(engine, clients),
            lambda: our_round(single, clients),
            lambda: pool.map(count, [number] * cores, chunksize=1),
            lambda: [pool.apply(count, (number,)) for _ in range(cores)],
        )
    return [
        {
            "cores": cores,
            "beside the plain loop": _ratios(plain, ours),
            "beside one worker": _ratios(alone, ours),
            "control": _ratios(one_by_one, side_by_side),
        }
    ]


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


def main() -> None:
    """Prints the seconds of our rounds as JSON: `--rounds-of '{"clients": 4, …}'`, a `Work`."""
    work = Work.read(sys.argv[2])
    task = make_task(work.clients, work.samples + 1, work.shape)
    context = EngineContext(task, FedAvg(), settings(work.batch), seed=0)
    with LocalEngine(context) as engine:
        print(json.dumps(timed_rounds(work, lambda: our_round(engine, list(range(work.clients))))))


if __name__ == "__main__":
    main()
