"""A task: whose data, which model. What a method is run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TaskConfig
from ipfl.data import federate
from ipfl.data.federated import FederatedData
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError
from ipfl.training.architectures import Factory, model_factory
from ipfl.training.network import Network, build_network

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Task:
    """Data of a federation, and the model that its clients train.

    `Task.load(dataset="digits", partition="10:90")` for a data set or a file,
    `Task.from_dataframe(table, client="hospital", target="label")` for a table,
    `Task.from_clients({"Bern": (x, y), …}, model=Net)` for arrays, `Task.from_huggingface` for a data set
    with columns.
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
        model_factory(config.model)  # a wrong name is found before a data set is read
        data = federate(config, seed)
        return cls(data, model_factory(config.model, data.tokens), config, seed)

    @classmethod
    def from_clients(
        cls, clients: Iterable[Any] | Mapping[Any, Any], *, model: str | Factory = "auto", **options: Any
    ) -> Task:
        """A task over your own data: per client an (x, y) pair, a dict of parts or a data set.

        Args:
            clients: A list or a generator of clients, or a dict by their names.
            model: A name, or a callable that makes an `nn.Module`, called with (input_shape, classes); `auto`
                picks one that fits the data.
            **options: Passed to `ipfl.data.from_clients`.
        """
        from ipfl.data.own.own_clients import from_clients

        data = from_clients(clients, **options)
        return cls(data, model_factory(model, data.tokens))

    @classmethod
    def from_dataframe(
        cls,
        table: pd.DataFrame,
        *,
        client: str | None,
        target: str,
        model: str | Factory = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> Task:
        """A task over a table with a row per point: the same as a CSV file with these rows.

        A fifth of each client's rows is held back to test. Text becomes columns of 0 and 1; numbers get mean
        0 and spread 1 (`standardize`). `Task.points` makes points of new rows.

        Args:
            table: A pandas DataFrame, without missing values in the columns that are used.
            client: Column that says whose row it is; None: the rows are dealt out to `clients=20`, for
                example, as `partition="dirichlet:0.5"` says.
            target: Column with the label: text or numbers.
            model: A name, or a callable that makes an `nn.Module`, called with (input_shape, classes).
            seed: Draws which rows are held back to score models.
            **settings: Other keys of `[task]`, such as `features`, `categorical`, `standardize`,
                `small_clients`, `unseen`.
        """
        if not hasattr(table, "iloc"):
            raise InputError(f"expected a pandas DataFrame, not {type(table).__name__}")
        config = TaskConfig.of({"dataset": "dataframe", "client": client, "target": target, **settings})
        from ipfl.data.own.data_frames import read_table

        data = federate(config, seed, read_table(table, config, "dataframe"))
        return cls(data, model_factory(model, data.tokens))

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        client: str,
        target: str | None = None,
        features: Sequence[str] = (),
        model: str | Factory = "auto",
        **options: Any,
    ) -> Task:
        """A task over a data set of Hugging Face `datasets` that has a column for the client.

        Args:
            dataset: A `Dataset`, or a `DatasetDict` with `train` and perhaps `test`.
            client: Column that says whose row it is.
            target: Column with the label; None: the only one of classes, or `label`.
            features: Column with images or vectors, or several with numbers; empty: all others.
            model: A name, or a callable that makes an `nn.Module`, called with (input_shape, classes).
            **options: Passed to `ipfl.data.from_clients`.
        """
        from ipfl.data.own.column_data import clients_of

        clients, names = clients_of(dataset, client, target, features)
        return cls.from_clients(
            clients, model=model, **{"class_names": names, "name": "huggingface", **options}
        )

    def points(self, rows: pd.DataFrame, client: str | None = None) -> NDArray[np.float32]:
        """Points of new rows of the table that the task was made of: what its models take.

        Args:
            rows: A pandas DataFrame with the columns of the table.
            client: Whose rows they are; needed with `standardize="client"`.
        """
        if self.data.encoding is None:
            raise InputError("the data of this task is no table: its models take the points as they are")
        return self.data.encoding.points(rows, client)

    @property
    def is_users(self) -> bool:
        """Whether the data is the user's own: it may be elsewhere, or another, when a run is read back."""
        return self.config is None or self.config.path is not None or ":" in self.config.dataset

    @property
    def client_names(self) -> Mapping[int, str]:
        """Names of the clients by id; empty if they have none."""
        return self.data.client_names

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes; where they have none, their numbers."""
        return self.data.class_names

    def __repr__(self) -> str:
        data = self.data
        count = len(data.clients) + len(data.unseen)
        predicted = {"multilabel": "labels", "regression": "numbers"}.get(self.target.kind, "classes")
        return f"Task({data.name}: {count} clients, {data.classes} {predicted}, points {data.input_shape})"

    @property
    def names_by_id(self) -> dict[str, str] | None:
        """Names of clients by id, as JSON has them; None if there are none."""
        return {str(client): name for client, name in self.client_names.items()} or None

    @property
    def data_seed(self) -> int | None:
        """What the data was made with; None: it is the user's own."""
        return None if self.config is None else self.seed

    def network(self, seed: int) -> Network:
        """A fresh network with the initial parameters of that seed."""
        return build_network(self.factory, self.data.input_shape, self.data.classes, seed, self.target)

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.data.target

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
