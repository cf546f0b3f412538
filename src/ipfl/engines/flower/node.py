"""A Flower node: whose clients it holds, their data, and the `Host` that runs them.

Data comes from the user's own loader, from the file that the node was started with (`--node-config
'data="mine.npz"'`), or, without either, from the config: a simulated node rebuilds its part of the task.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from ipfl.client.network import Factory, model_factory
from ipfl.client.runner import Host
from ipfl.client.task import Task
from ipfl.core import ClientId
from ipfl.data import from_clients
from ipfl.data.federated import Parts, Samples
from ipfl.engines.flower.attempts import NodeMemory
from ipfl.engines.flower.plan import Plan
from ipfl.errors import InputError

Loader = Callable[[Context], Any]
"""One client's own data: whatever `ipfl.data.from_clients` takes as one of its clients."""


class OwnData:
    """`FederatedData` of the one client that lives here, under the id that the federation knows it by."""

    distributions = 1
    unseen: tuple[ClientId, ...] = ()

    def __init__(self, client: ClientId, own: Any, plan: Plan):
        self._inner = from_clients([own], classes=plan.classes, probe=plan.task.probe, seed=plan.seed)
        self.name, self.partition = self._inner.name, self._inner.partition
        self.input_shape, self.classes = self._inner.input_shape, self._inner.classes
        self.clients: tuple[ClientId, ...] = (client,)

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data; it is the same in every round."""
        return self._inner.parts(0, round)

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part."""
        return self._inner.sizes(0)

    def majority(self, client: int, round: int = 0) -> int | None:
        """Nobody knows."""
        return None

    def holdout(self, distribution: int) -> Samples:
        """Its test points."""
        return self._inner.holdout(0)

    def server_holdout(self, distribution: int) -> Samples | None:
        """A node is no server."""
        return None


def read_data(path: Path) -> dict[str, tuple[Any, Any]]:
    """A node's own file: x and y, and x_test and y_test if it has test points of its own."""
    try:
        with np.load(path, allow_pickle=False) as file:
            points = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read data from {path}: {error}") from error
    if missing := [name for name in ("x", "y") if name not in points]:
        raise InputError(f"{path} has no {' and no '.join(missing)}; it holds {', '.join(points)}")
    parts = {"train": (points["x"], points["y"])}
    if "x_test" in points and "y_test" in points:
        parts["test"] = (points["x_test"], points["y_test"])
    return parts


def _number(context: Context, *keys: str) -> int:
    for key in keys:
        if key in context.node_config:
            return int(context.node_config[key])
    raise InputError(f"this node was started without {' or '.join(keys)} (--node-config)")


def has_own_data(context: Context, loader: Loader | None) -> bool:
    """Whether this node brings its own data, or takes its part of the config's task."""
    return loader is not None or "data" in context.node_config


def build_host(
    plan: Plan, context: Context, memory: Path, loader: Loader | None, model: Factory | None
) -> Host:
    """Finds data and model, and makes the place where this node's clients run."""
    factory = model or model_factory(plan.task.model)
    if has_own_data(context, loader):
        own = loader(context) if loader else read_data(Path(str(context.node_config["data"])))
        task = Task(OwnData(_number(context, "client", "partition-id"), own, plan), factory)
    else:
        task = Task.build(plan.task, plan.seed)
    return Host(task, plan.method, plan.train, plan.seed, NodeMemory(memory))


def residents(host: Host, context: Context) -> tuple[ClientId, ...]:
    """The clients of this node: the owner of its data, or its part of the task's clients."""
    data = host.task.data
    if isinstance(data, OwnData):
        return data.clients
    part, parts = _number(context, "partition-id"), _number(context, "num-partitions")
    return tuple(client for client in sorted([*data.clients, *data.unseen]) if client % parts == part)
