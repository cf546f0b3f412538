"""What clients predict with, on disk: a file per client, and one for each vector that they are made of.

Equal vectors are one file, so many clients with one model take the room of one. The files depend on nothing
but the predictors: the same bytes from any process and in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ipfl.core import ClientId, Record, Vector
from ipfl.errors import InputError
from ipfl.system.files import RECORD_SUFFIX, make_folder, read_record, write_record
from ipfl.system.retry import is_disk_full
from ipfl.training.network import Network
from ipfl.training.predictors import Mixture, NearestPrototype, Predictor

MAX_KEPT_BYTES = 2**30
"""Bytes of clients' models that the folder of a run keeps at most."""
VECTORS = "vectors"
"""Folder of the vectors, inside that of the predictors."""


def max_vectors(size: int) -> int:
    """How many vectors of so many parameters are kept at most."""
    return MAX_KEPT_BYTES // (4 * size)


def keep_predictor(folder: Path, client: ClientId, predictor: Predictor, size: int) -> None:
    """Writes a client's predictor if it is sure that there is room, whatever other processes write meanwhile.

    Those with smaller ids come first, so there is room for a client if each of these had a vector of its own.
    On a full disk nothing is written: what is missing is made when the results are, which waits for space.

    Args:
        folder: For predictors alone.
        client: Whose it is.
        predictor: What the client predicts with.
        size: Parameters of a vector.
    """
    if client >= max_vectors(size):
        return
    try:
        write_predictor(folder, client, predictor)
    except OSError as error:
        if not is_disk_full(error):
            raise


def write_predictor(folder: Path, client: ClientId, predictor: Predictor) -> None:
    """Writes a client's predictor; its own file comes last, so a client that has one has all."""
    make_folder(folder / VECTORS)
    names = []
    for vector in _vectors(predictor):
        names.append(sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()[:32])
        path = _vector_file(folder, names[-1])
        if not path.exists():
            write_record(path, Record({"vector": vector}))
    write_record(_client_file(folder, client), _describe(predictor, names))


def kept_clients(folder: Path) -> tuple[ClientId, ...]:
    """Whose predictors are kept in a folder, ascending."""
    stems = (path.name.removesuffix(RECORD_SUFFIX) for path in folder.glob(f"*{RECORD_SUFFIX}"))
    return tuple(sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit()))


def kept_vectors(folder: Path, client: ClientId) -> list[str]:
    """The names of the vectors that a client's predictor is made of.

    Raises:
        InputError: The client's file is damaged.
    """
    return _vector_names(_client_file(folder, client), read_record(_client_file(folder, client)))


def read_predictor(folder: Path, client: ClientId, network: Network) -> Predictor:
    """The predictor of a client that `write_predictor` wrote.

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
