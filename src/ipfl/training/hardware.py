"""What networks are trained on, and in which precision: what is there, and which is faster.

Both are decided once, before the first round (`decide_hardware`), and recorded: every process of a run, and
every later one that resumes it, then computes the same. Never measured on a GPU: none was available.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ipfl.config.train_section import TrainConfig
from ipfl.core import stream
from ipfl.data.federated import Samples, tokens_of
from ipfl.errors import InputError
from ipfl.training.losses import find_loss
from ipfl.training.network import CPU, Network
from ipfl.training.sgd import one_thread, sgd
from ipfl.training.task import Task

TRIAL_SECONDS = 1.0
NEEDED_GAIN = 1.1
"""How many times faster bf16 must be to be chosen: a gain that small is not worth its lower precision."""

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Trial:
    """What `train.precision = "auto"` found out."""

    chosen: Precision
    float32: float
    """Seconds of a training step; the least of several."""
    bf16: float | None
    """The same; None: this hardware cannot do it."""

    def record(self) -> dict[str, Any]:
        """For `summary.json`."""
        return asdict(self)


def find_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: As in `train.device`; `auto` is the first GPU, or the CPU if there is none.

    Raises:
        InputError: This machine has no such device.
    """
    # Counting leaves CUDA untouched, so that workers can still be forked; `is_available` does not.
    count = torch.cuda.device_count()
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if count else "mps" if has_mps else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"train.device is {name!r}, but this machine has {count or 'no'} CUDA devices")
    if device.type == "mps" and not has_mps:
        raise InputError("train.device is 'mps', but this machine has none")
    return device


def prepare_network(network: Network, settings: TrainConfig) -> None:
    """Puts a network on its device, in the process that will use it, and sets its precision and its loss.

    Raises:
        InputError: This machine has no such device.
    """
    if settings.precision == "auto":
        raise ValueError("the precision is not settled yet")
    device = find_device(settings.device)
    if device.type == "cuda":  # the same bits every time, and float32 means float32
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
    if device != network.device:
        network.move(device)
    network.precision = settings.precision
    network.loss = find_loss(settings.loss, network.target)


def decide_hardware(settings: TrainConfig, task: Task, seed: int) -> tuple[TrainConfig, Trial | None]:
    """The settings without `auto`, and the trial that was made for them, if any.

    Raises:
        InputError: This machine has no such device.
    """
    device = find_device(settings.device)
    settled = settings.model_copy(update={"device": str(device)})
    if settings.precision != "auto":
        return settled, None
    in_own_process = _here if device == CPU else _in_child  # a GPU that was used cannot be used in a fork
    trial = in_own_process(lambda: try_precisions(settled, task, seed))
    return settled.model_copy(update={"precision": trial.chosen}), trial


def try_precisions(settings: TrainConfig, task: Task, seed: int) -> Trial:
    """Times training steps in both precisions, in turn, for about a second."""
    rng = stream(seed, "trial")
    size, shape, target = settings.batch_size, task.data.input_shape, task.target
    x: NDArray[Any] = rng.random((size, *shape), dtype=np.float32)
    if tokens := tokens_of(task.data):
        x = rng.integers(tokens, size=(size, *shape))
    y = rng.integers(target.outputs, size=size)
    batch = Samples(x, y if target.kind == "classes" else np.zeros((size, target.outputs), np.float32))
    least: dict[Precision, float] = {"float32": float("inf"), "bf16": float("inf")}
    networks = {one: task.network(seed) for one in least}
    with one_thread():
        for precision, network in networks.items():
            prepare_network(network, settings.model_copy(update={"precision": precision}))
            try:
                _step_seconds(network, batch, settings)  # the first one is slower
            except RuntimeError:
                if precision == "float32":
                    raise
                return Trial("float32", _step_seconds(networks["float32"], batch, settings), None)
        end = time.perf_counter() + TRIAL_SECONDS
        while float("inf") in least.values() or time.perf_counter() < end:
            for precision, network in networks.items():
                least[precision] = min(least[precision], _step_seconds(network, batch, settings))
    is_faster = least["bf16"] * NEEDED_GAIN < least["float32"]
    return Trial("bf16" if is_faster else "float32", least["float32"], least["bf16"])


def _step_seconds(network: Network, batch: Samples, settings: TrainConfig) -> float:
    """Seconds of one training step; `sgd` returns only when a GPU is done, too."""
    start, begun = network.read(), time.perf_counter()
    sgd(network, start, batch, settings, stream(0, "trial"), epochs=1, lr=0.0)
    return time.perf_counter() - begun


def _here(function: Callable[[], Trial]) -> Trial:
    return function()


def _in_child(function: Callable[[], Trial]) -> Trial:
    """Calls it in a process of its own; whatever goes wrong there is an input error."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def call() -> None:
        try:
            theirs.send(function())
        except Exception as error:  # the parent is told, and says so
            theirs.send(f"{type(error).__name__}: {error}")

    process = context.Process(target=call, daemon=True)
    process.start()
    theirs.close()
    try:
        found: Trial | str = ours.recv()
    except EOFError:
        found = "the process died"
    process.join()
    if isinstance(found, str):
        raise InputError(f"the trial of train.precision = 'auto' failed: {found}")
    return found
