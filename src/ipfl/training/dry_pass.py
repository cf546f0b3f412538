"""A few steps of training before the first round: what cannot work is said at once, on one line.

It runs on the CPU, on the points of one client, and leaves nothing behind. Where the data is on other
machines, it is left out.
"""

from __future__ import annotations

import torch

from ipfl.config.train_section import TrainConfig
from ipfl.core import stream
from ipfl.core.replies import is_vector
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.hardware import prepare_network
from ipfl.training.network import CPU, Network
from ipfl.training.sgd import losses, one_thread, sgd
from ipfl.training.task import Task

DRY_STEPS = 5
"""Steps that are tried, or a few more: a learning rate that is far too large shows in the first ones."""
MAX_DRY_BATCH = 128
"""Points in a step that is tried: larger batches of the run would only make the trial longer."""
MAX_RISE = 1e4
"""How many times larger the loss may become in these steps."""


def check_training(task: Task, settings: TrainConfig, seed: int, *, with_probe: bool = False) -> None:
    """Tries out model, loss, optimizer and learning rate on the first client's points.

    Args:
        task: Data and model.
        settings: Of the training.
        seed: Of the run.
        with_probe: Whether clients train on `probe`, too.

    Raises:
        InputError: What does not work, and what to change.
    """
    first = task.data.clients[0]
    try:
        parts = task.data.parts(first)
    except LookupError:  # the data is on its node
        return
    samples = parts.train.joined(parts.probe) if with_probe else parts.train
    if not len(samples):
        return
    network = task.network(seed)
    on_cpu = settings.model_copy(update={"device": str(CPU), "precision": "float32"})
    prepare_network(network, on_cpu)
    limit = DRY_STEPS * min(settings.batch_size, MAX_DRY_BATCH)
    few = samples[:limit]
    with one_thread(), torch.random.fork_rng(devices=[]):
        _check_outputs(network, few, task.data.classes)
        _check_steps(network, few, on_cpu.at_round(0), seed)


def _check_outputs(network: Network, samples: Samples, classes: int) -> None:
    """The model takes the points, and has an output for everything that is predicted."""
    batch = network.inputs(network.put(samples.x[:2]))
    network.module.eval()
    name, shape = type(network.module).__name__, network.input_shape
    try:
        with torch.no_grad():
            outputs = network.module(batch)
    except InputError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise InputError(
            f"model {name} cannot take points of shape {shape}, which arrive as a batch of shape "
            f"{tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}: {_first_line(error)}"
        ) from error
    wanted = (len(batch), classes)
    if not isinstance(outputs, torch.Tensor):
        raise InputError(
            f"model {name} returns {type(outputs).__name__}, not a tensor of shape (n, {classes})"
        )
    if tuple(outputs.shape) not in {wanted, (len(batch),) if classes == 1 else wanted}:
        what = "classes" if network.target.kind == "classes" else "values"
        raise InputError(
            f"model {name} returns outputs of shape {tuple(outputs.shape)} for a batch of {len(batch)}, "
            f"expected {wanted}: its last layer needs an output for each of {classes} {what}"
        )


def _check_steps(network: Network, samples: Samples, settings: TrainConfig, seed: int) -> None:
    """A few steps run, and lead to usable parameters."""
    size = min(settings.batch_size, MAX_DRY_BATCH, len(samples))
    start = network.read()
    epochs = -(-DRY_STEPS * size // len(samples))  # small data is passed over several times
    settings = settings.model_copy(update={"batch_size": size, "epochs": epochs})
    try:
        trained = sgd(network, start, samples, settings, stream(seed, "dry pass"))
        before, after = (float(losses(network, model, samples).mean()) for model in (start, trained))
    except InputError:
        raise
    except Exception as error:  # the user's module, loss, optimizer or augmentation may raise anything
        raise InputError(
            f"a step of training with model {type(network.module).__name__}, train.optimizer = "
            f"{settings.optimizer!r} and train.loss = {network.loss.name!r} fails: {_first_line(error)}"
        ) from error
    if not is_vector(trained, network.size) or not after < MAX_RISE * (1 + abs(before)):
        raise InputError(
            f"training diverges within {DRY_STEPS} steps (the loss goes from {before:.3g} to {after:.3g}): "
            f"lower train.lr (now {settings.lr:g})"
        )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
