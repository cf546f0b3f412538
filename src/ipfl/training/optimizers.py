"""The optimizers of local training that torch brings, or the user: steps on a network's flat parameters.

Plain SGD, with momentum or without, is in the training loop itself: it is faster there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

from ipfl.config.train_section import TrainConfig
from ipfl.errors import InputError
from ipfl.system.plugins import load_callable
from ipfl.training.network import Network

load_own_optimizer = cache(load_callable)


def make_optimizer(settings: TrainConfig, network: Network) -> Optimizer:
    """A fresh optimizer over what is trained of a network.

    It gets flat tensors, one per stretch of the vector without a frozen layer in between.

    Raises:
        InputError: The user's own factory returned something else, or raised.
    """
    parameters, lr = network.trained_parts(), settings.lr
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=settings.weight_decay)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=settings.weight_decay)
    factory = load_own_optimizer(settings.optimizer, "optimizer")
    try:
        made: Any = factory(parameters, lr)
    except Exception as error:  # the user's code may raise anything
        reason = " ".join(str(error).split())
        raise InputError(f"train.optimizer {settings.optimizer!r} failed: {reason}") from error
    if not isinstance(made, Optimizer):
        raise InputError(
            f"train.optimizer {settings.optimizer!r} returned {type(made).__name__}, "
            "not a torch.optim.Optimizer"
        )
    return made
