"""What clients predict with, on disk: a file per client, and one for each vector that they are made of.

Equal vectors are one file, so many clients with one model take the room of one. The files depend on nothing
but the predictors: the same bytes from any process and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ipfl.core import ClientId, Record, Vector
from ipfl.errors import InputError
from ipfl.system.files import RECORD_SUFFIX, make_folder, read_record, remove_folder, write_record
from ipfl.training.network import Network
from ipfl.training.sgd import Mixture, NearestPrototype, Predictor

MAX_KEPT_BYTES = 2**30
"""Bytes of clients' models that the folder of a run keeps at most."""
VECTORS = "vectors"
"""Folder of the vectors, inside that of the predictors."""


def write_predictors(folder: Path, predictors: Iterable[tuple[ClientId, Predictor]]) -> None:
    """Writes the predictors of clients, one after the other, as long as there is room; may be repeated.

    A client's own file comes after its vectors, so one that has a file has all.

    Args:
        folder: For predictors alone; what was there is removed.
        predictors: Of clients with ascending ids.
    """
    remove_folder(folder)
    make_folder(folder / VECTORS)
    room = MAX_KEPT_BYTES
    for client, predictor in predictors:
        named = [(_vector_name(vector), vector) for vector in _vectors(predictor)]
        fresh = {name: vector for name, vector in named if not _vector_file(folder, name).exists()}
        room -= sum(vector.nbytes for vector in fresh.values())
        if room < 0:
            return
        for name, vector in fresh.items():
            write_record(_vector_file(folder, name), Record({"vector": vector}))
        write_record(_client_file(folder, client), _describe(predictor, [name for name, _ in named]))


def kept_clients(folder: Path) -> tuple[ClientId, ...]:
    """Whose predictors are kept in a folder, ascending."""
    stems = (path.name.removesuffix(RECORD_SUFFIX) for path in folder.glob(f"*{RECORD_SUFFIX}"))
    return tuple(sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit()))


def read_predictor(folder: Path, client: ClientId, network: Network) -> Predictor:
    """The predictor of a client that `write_predictors` wrote.

    Raises:
        InputError: The files are damaged, or do not fit the network.
    """
    path = _client_file(folder, client)
    record = read_record(path)
    vectors = [_read_vector(_vector_file(folder, name), network) for name in _vector_names(path, record)]
    weights = record.facts.get("weights")
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


def _client_file(folder: Path, client: ClientId) -> Path:
    return folder / f"{client}{RECORD_SUFFIX}"


def _vector_file(folder: Path, name: str) -> Path:
    return folder / VECTORS / f"{name}{RECORD_SUFFIX}"


def _vector_name(vector: Vector) -> str:
    return sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()[:32]


def _vectors(predictor: Predictor) -> Iterator[Vector]:
    if isinstance(predictor, Mixture):
        yield from predictor.models
    else:
        yield predictor.model if isinstance(predictor, NearestPrototype) else predictor


def _describe(predictor: Predictor, names: list[str]) -> Record:
    """All of a predictor but its vectors."""
    if isinstance(predictor, Mixture):
        return Record({}, {"vectors": names, "weights": list(predictor.weights)})
    if isinstance(predictor, NearestPrototype):
        return Record({"prototypes": predictor.prototypes}, {"vectors": names})
    return Record({}, {"vectors": names})


def _vector_names(path: Path, record: Record) -> list[str]:
    names = record.facts.get("vectors")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.isalnum() for n in names):
        raise InputError(f"{path} does not say of which vectors it is made")
    return names


def _read_vector(path: Path, network: Network) -> Vector:
    vector: Vector | None = read_record(path).params.get("vector")
    if vector is None or vector.shape != (network.size,) or vector.dtype != np.float32:
        raise InputError(f"{path} does not fit the network")
    return vector


def _are_weights(weights: Any, count: int) -> bool:
    if not isinstance(weights, list) or len(weights) != count:
        return False
    return all(isinstance(one, int | float) and 0 <= one <= 1 for one in weights)
