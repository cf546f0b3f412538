"""A task: whose data, which model. What a method is run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ipfl.client.network import Factory, Network, build_network, model_factory
from ipfl.data import federate, from_clients
from ipfl.data.federated import FederatedData
from ipfl.data.settings import TaskConfig


@dataclass(frozen=True)
class Task:
    """Data of a federation, and the model that its clients train.

    `Task.load(dataset="digits", partition="10:90")` or `Task.from_clients([(x, y), …], model=Net)`.
    """

    data: FederatedData
    factory: Factory
    config: TaskConfig | None = None
    """What it was built from, and can be built from again; None: data of your own."""
    seed: int = 0
    """What it was built with."""

    @classmethod
    def load(cls, *, seed: int = 0, **settings: Any) -> Task:
        """Builds a task from the settings of the `[task]` section, given as keywords."""
        return cls.build(TaskConfig.of(settings), seed)

    @classmethod
    def build(cls, config: TaskConfig, seed: int) -> Task:
        """Builds a task from a validated config."""
        factory = model_factory(config.model)
        return cls(federate(config, seed), factory, config, seed)

    @classmethod
    def from_clients(cls, clients: list[Any], *, model: str | Factory = "cnn", **options: Any) -> Task:
        """A task over your own data: per client an (x, y) pair, a dict of parts or a torch dataset.

        Args:
            clients: One entry per client.
            model: A name, or a callable that makes an `nn.Module`, called with (input_shape, classes).
            **options: Passed to `ipfl.data.from_clients`.
        """
        return cls(from_clients(clients, **options), model_factory(model))

    def network(self, seed: int) -> Network:
        """A fresh network with the initial parameters of that seed."""
        return build_network(self.factory, self.data.input_shape, self.data.classes, seed)

    @cached_property
    def input_dtype(self) -> str | None:
        """Type of the numbers of a point, such as `uint8`; None: the data is on nodes, and unknown here."""
        clients = self.data.clients
        try:
            return str(self.data.parts(clients[0]).train.x.dtype) if clients else None
        except LookupError:
            return None

    @cached_property
    def holdouts(self) -> tuple[int, ...]:
        """Distributions of which the server has samples of its own."""
        return tuple(d for d in range(self.data.distributions) if self.data.server_holdout(d) is not None)
