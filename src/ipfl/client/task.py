"""A task: whose data, which model. What a method is run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ipfl.client.models import Factory, model_factory
from ipfl.client.network import Network, build_network
from ipfl.data import federate, from_clients
from ipfl.data.federated import FederatedData, target_of, tokens_of
from ipfl.data.settings import TaskConfig
from ipfl.data.targets import Target


@dataclass(frozen=True)
class Task:
    """Data of a federation, and the model that its clients train.

    `Task.load(dataset="digits", partition="10:90")` or `Task.from_clients([(x, y), …], model=Net)`.
    """

    data: FederatedData
    factory: Factory

    @classmethod
    def load(cls, *, seed: int = 0, **settings: Any) -> Task:
        """Builds a task from the settings of the `[task]` section, given as keywords."""
        return cls.build(TaskConfig.of(settings), seed)

    @classmethod
    def build(cls, config: TaskConfig, seed: int) -> Task:
        """Builds a task from a validated config."""
        model_factory(config.model)  # a wrong name is found before a data set is read
        data = federate(config, seed)
        return cls(data, model_factory(config.model, tokens_of(data)))

    @classmethod
    def from_clients(cls, clients: list[Any], *, model: str | Factory = "auto", **options: Any) -> Task:
        """A task over your own data: per client an (x, y) pair, a dict of parts or a torch dataset.

        Args:
            clients: One entry per client.
            model: A name, or a callable that makes an `nn.Module`, called with (input_shape, classes); `auto`
                picks one that fits the data.
            **options: Passed to `ipfl.data.from_clients`.
        """
        data = from_clients(clients, **options)
        return cls(data, model_factory(model, tokens_of(data)))

    def network(self, seed: int) -> Network:
        """A fresh network with the initial parameters of that seed."""
        return build_network(self.factory, self.data.input_shape, self.data.classes, seed, self.target)

    @property
    def target(self) -> Target:
        """What is predicted."""
        return target_of(self.data)

    @cached_property
    def holdouts(self) -> tuple[int, ...]:
        """Distributions of which the server has samples of its own."""
        return tuple(d for d in range(self.data.distributions) if self.data.server_holdout(d) is not None)
