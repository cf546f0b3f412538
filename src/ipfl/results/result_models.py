"""Sources of a result's models: the run that was just played, or the files of its folder.

A client's model is made when it is asked for, by the method's own `personalize`, from what the server would
send the client, what it remembers, and its data: to the last bit the model that the evaluator scored after
the last round. A user's own data may be elsewhere later, or another, so the clients' models of such a run
are kept in its folder (`ipfl.client.kept_predictors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ClientRunner
from ipfl.config.run_config import RunConfig
from ipfl.core import NEWCOMER, ClientId, Method, Vector
from ipfl.errors import NotSupportedError
from ipfl.training.network import Network
from ipfl.training.sgd import Predictor, one_thread
from ipfl.training.task import Task


@dataclass(frozen=True, eq=False)
class PlayedRun:
    """A run with its data and the state of its method in memory."""

    task: Task
    method: Method[Any]
    state: Any
    config: RunConfig
    memory: ClientMemory
    """All that the clients remember."""
    rounds: int
    """That were played."""

    @cached_property
    def _runner(self) -> ClientRunner:
        config = self.config
        return ClientRunner(
            self.task, self.method, config.train, config.seed, self.memory, adapt=config.adapt
        )

    @property
    def network(self) -> Network:
        """The network of the run."""
        return self._runner.network

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients, the unseen ones included."""
        return tuple(sorted([*self.task.data.clients, *self.task.data.unseen]))

    def predictor(self, client: ClientId) -> Predictor:
        """The model of a client after the last round."""
        offer = self.method.offer(self.state, client)
        try:
            with one_thread():
                return self._runner.personalize(client, self.rounds - 1, offer.read_only())
        except LookupError as error:
            if self.task.input_dtype is None:
                raise on_its_node(client) from error
            raise

    def predictors(self) -> Iterator[tuple[ClientId, Predictor]]:
        """The models of all clients, ascending; those that the method has no model for are left out."""
        for client in self.clients:
            with suppress(NotSupportedError):
                yield client, self.predictor(client)

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """The model of a new client."""
        from ipfl.results.newcomer import newcomer_points, personalize_newcomer

        runner, offer = self._runner, self.method.offer(self.state, NEWCOMER)
        goal = newcomer_points(runner.network, self.task.class_names, x, y)
        return personalize_newcomer(
            self.method, offer, runner.network, runner.initial, self.config, self.rounds, goal
        )


def on_its_node(client: ClientId) -> NotSupportedError:
    """The error for a model that never left its client."""
    return NotSupportedError(f"the data and the model of client {client} are on its own node, not here")


class StoredVectors(Mapping[str, Vector]):
    """Server models as vectors, each read from its file when it is asked for.

    Args:
        files: By name of the model.
        read: Reads a file.
    """

    def __init__(self, files: Mapping[str, Path], read: Callable[[Path], Vector]):
        self._files, self._read = files, read

    def __getitem__(self, name: str) -> Vector:
        return self._read(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
