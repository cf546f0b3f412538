"""Where a result's models come from: the run that was just played, or the files of its folder.

A client's model is made when it is asked for, by the method's own `personalize`, from what the server would
send the client, what it remembers, and its data: to the last bit the model that the evaluator scored after
the last round. A user's own data may be elsewhere later, or another, so the clients' models of such a run
are kept in its folder (`write_predictors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.client.memory import ClientMemory
from ipfl.client.network import Network
from ipfl.client.predictors import Mixture, NearestPrototype, Predictor
from ipfl.client.runner import ClientRunner
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.client.training import one_thread
from ipfl.core import NEWCOMER, ClientId, Method, Record, Vector
from ipfl.core.files import RECORD_SUFFIX, make_folder, read_record, remove_folder, write_record
from ipfl.errors import InputError, NotSupportedError
from ipfl.runs.newcomer import Newcomers

MAX_KEPT_BYTES = 2**30
"""Bytes of clients' models that the folder of a run keeps at most."""
VECTORS = "vectors"
"""Folder of the vectors that kept predictors are made of; many clients may share one."""


@dataclass(frozen=True, eq=False)
class PlayedRun:
    """A run with its data and the state of its method in memory."""

    task: Task
    method: Method[Any]
    state: Any
    train: TrainConfig
    seed: int
    memory: ClientMemory
    """What the clients remember."""
    rounds: int
    """That were played."""

    @cached_property
    def _runner(self) -> ClientRunner:
        return ClientRunner(self.task, self.method, self.train, self.seed, self.memory)

    @property
    def network(self) -> Network:
        """The network of the run."""
        return self._runner.network

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients, the unseen ones included."""
        return tuple(sorted([*self.task.data.clients, *self.task.data.unseen]))

    def predictor(self, client: ClientId) -> Predictor:
        """What a client predicts with after the last round."""
        offer = self.method.offer(self.state, client)
        try:
            with one_thread():
                return self._runner.personalize(client, self.rounds - 1, offer.read_only())
        except LookupError as error:
            if self.task.input_dtype is None:
                raise on_its_node(client) from error
            raise

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """What a new client would predict with."""
        offer = self.method.offer(self.state, NEWCOMER)
        newcomers = Newcomers(
            self.method,
            offer,
            self.network,
            self._runner.initial,
            self.task.data.classes,
            self.train,
            self.seed,
            self.rounds,
            self.task.class_names,
        )
        return newcomers.personalize(x, y)


@dataclass(frozen=True, eq=False)
class ServerModelsOnly:
    """A run that another process played, which left no folder: only the server's models are here."""

    get_task: Callable[[], Task]
    seed: int

    @cached_property
    def task(self) -> Task:
        """Data and network of the run."""
        return self.get_task()

    @cached_property
    def network(self) -> Network:
        """The network of the run."""
        return self.task.network(self.seed)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients, the unseen ones included."""
        data = self.task.data
        return tuple(sorted([*data.clients, *data.unseen]))

    def predictor(self, client: ClientId) -> Predictor:
        """Always raises."""
        raise NotSupportedError(
            "the models of single clients ended with the process that played the run: "
            "give it a folder (out), or play it in this process (workers=0)"
        )

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """Always raises."""
        return self.predictor(NEWCOMER)


def on_its_node(client: ClientId) -> NotSupportedError:
    """The error for a model that never left its client."""
    return NotSupportedError(f"the data and the model of client {client} are on its own node, not here")


def write_predictors(folder: Path, clients: tuple[ClientId, ...], make: Callable[[int], Predictor]) -> None:
    """Keeps what clients predict with, until `MAX_KEPT_BYTES` are written; what was there is replaced.

    Args:
        folder: For these files alone.
        clients: Whose.
        make: Makes a client's; clients that the method has no model for are left out.
    """
    remove_folder(folder)
    make_folder(folder / VECTORS)
    written = 0
    for client in clients:
        try:
            predictor = make(client)
        except NotSupportedError:
            continue
        names = []
        for vector in _vectors(predictor):
            names.append(sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()[:32])
            path = folder / VECTORS / f"{names[-1]}{RECORD_SUFFIX}"
            if not path.exists():
                written += vector.nbytes
                if written > MAX_KEPT_BYTES:
                    return
                write_record(path, Record({"vector": vector}))
        write_record(folder / f"{client}{RECORD_SUFFIX}", _describe_predictor(predictor, names))


def _vectors(predictor: Predictor) -> Iterator[Vector]:
    if isinstance(predictor, Mixture):
        yield from predictor.models
    else:
        yield predictor.model if isinstance(predictor, NearestPrototype) else predictor


def _describe_predictor(predictor: Predictor, names: list[str]) -> Record:
    """All of a predictor but its vectors."""
    if isinstance(predictor, Mixture):
        return Record({}, {"vectors": names, "weights": list(predictor.weights)})
    if isinstance(predictor, NearestPrototype):
        return Record({"prototypes": predictor.prototypes}, {"vectors": names})
    return Record({}, {"vectors": names})


def kept_clients(folder: Path) -> tuple[ClientId, ...]:
    """Whose predictors are kept in a folder, ascending."""
    stems = (path.name.removesuffix(RECORD_SUFFIX) for path in folder.glob(f"*{RECORD_SUFFIX}"))
    return tuple(sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit()))


def read_predictor(folder: Path, client: ClientId, network: Network) -> Predictor:
    """The predictor of a client that `write_predictors` wrote.

    Raises:
        InputError: The files are damaged, or do not fit the network.
    """
    path = folder / f"{client}{RECORD_SUFFIX}"
    record = read_record(path)
    names, weights = record.facts.get("vectors"), record.facts.get("weights")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.isalnum() for n in names):
        raise InputError(f"{path} does not say of which vectors it is made")
    vectors = [_read_vector(folder / VECTORS / f"{name}{RECORD_SUFFIX}", network) for name in names]
    if weights is not None:
        if not _are_weights(weights, len(vectors)):
            raise InputError(f"{path} does not have a weight for each vector")
        return Mixture(tuple(vectors), tuple(map(float, weights)))
    if "prototypes" in record.params:
        prototypes = record.params["prototypes"]
        if prototypes.ndim != 2 or prototypes.shape[1] != network.classifier.in_features:
            raise InputError(f"{path} has prototypes that do not fit the network")
        return NearestPrototype(vectors[0], prototypes.astype(np.float32))
    return vectors[0]


def _read_vector(path: Path, network: Network) -> Vector:
    vector: Vector | None = read_record(path).params.get("vector")
    if vector is None or vector.shape != (network.size,) or vector.dtype != np.float32:
        raise InputError(f"{path} does not fit the network")
    return vector


def _are_weights(weights: Any, count: int) -> bool:
    if not isinstance(weights, list) or len(weights) != count:
        return False
    return all(isinstance(one, int | float) and 0 <= one <= 1 for one in weights)


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
