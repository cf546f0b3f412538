"""Records as Flower messages: a head (one JSON text) and the arrays it speaks of, each under its digest.

Vectors travel as raw float32 (or float16) bytes, never as pickles. The head names vectors by digest, so that
a vector that the other side already holds need not travel again. Whatever does not fit is `MalformedError`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from ipfl.client.runner import EVALUATE
from ipfl.core import Record, Vector

RAW = "ipfl.raw"
"""Our serialization: the bytes of a C-contiguous little-endian array, nothing else."""
DTYPES = ("float32", "float16", "uint8")
Blob = NDArray[Any]
Blobs = Mapping[str, Blob]
"""Arrays by digest."""
Head = dict[str, Any]


class MalformedError(ValueError):
    """A message that does not say what it should; the text says what is wrong with it."""


def digest(blob: Blob) -> str:
    """Name of an array: a hash of its type, shape and bytes."""
    kind = f"{blob.dtype.name}{blob.shape}".encode()
    return hashlib.blake2b(kind + blob.tobytes(), digest_size=16).hexdigest()


def _array(blob: Blob) -> Array:
    return Array(dtype=blob.dtype.name, shape=blob.shape, stype=RAW, data=blob.tobytes())


def text_array(text: str) -> tuple[str, Array]:
    """A text as an array with its digest, so that it can be kept and named like a vector."""
    blob = np.frombuffer(text.encode(), dtype=np.uint8)
    return digest(blob), _array(blob)


def message_type(action: str) -> str:
    """Flower knows `train` and `evaluate`; everything else is a query."""
    return action if action in ("train", EVALUATE) else f"query.{action}"


def action_of(message_type: str) -> str:
    """The reverse of `message_type`."""
    return message_type.removeprefix("query.")


def _half(vector: Vector) -> Blob:
    """The vector in float16, or as it is where it would overflow."""
    with np.errstate(over="ignore"):
        short = vector.astype(np.float16)
    return short if (np.isfinite(short) == np.isfinite(vector)).all() else vector


class Encoder:
    """Turns records into names and arrays; a vector that several records share is hashed once."""

    def __init__(self, *, half: bool = False):
        self.half = half
        self._known: dict[int, tuple[Vector, str, Array]] = {}

    def __call__(self, record: Record) -> tuple[dict[str, str], dict[str, Array]]:
        """Digest of each named vector, and the arrays by digest."""
        names, arrays = {}, {}
        for name, vector in record.params.items():
            _, key, array = self._encoded(vector)
            names[name], arrays[key] = key, array
        return names, arrays

    def _encoded(self, vector: Vector) -> tuple[Vector, str, Array]:
        if id(vector) not in self._known:
            if vector.dtype != np.float32:
                raise ValueError(f"vectors travel as float32, not {vector.dtype}")
            blob = _half(vector) if self.half else np.ascontiguousarray(vector)
            # The vector too: the id of a freed one could come again.
            self._known[id(vector)] = (vector, digest(blob), _array(blob))
        return self._known[id(vector)]


def decode(names: Mapping[str, str], blobs: Blobs, facts: Mapping[str, Any]) -> Record:
    """A record again; what travelled as float16 becomes float32."""
    vectors = {}
    for name, key in names.items():
        blob = blobs.get(key)
        if blob is None or blob.dtype == np.uint8:
            raise MalformedError(f"{name!r} is no vector of this message")
        vectors[name] = blob.astype(np.float32) if blob.dtype == np.float16 else blob
    return Record(vectors, facts)


def pack(head: Mapping[str, Any], arrays: Mapping[str, Array]) -> RecordDict:
    """The content of a message."""
    return RecordDict({"head": ConfigRecord({"json": json.dumps(head)}), "arrays": ArrayRecord(dict(arrays))})


def _blob(key: str, array: Array) -> Blob:
    if array.stype != RAW or array.dtype not in DTYPES:
        raise MalformedError(f"an array of type {array.dtype!r} in form {array.stype!r}")
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(array.data):
        raise MalformedError(f"{len(array.data)} bytes for an array of shape {shape}")
    blob = np.frombuffer(array.data, dtype=dtype).reshape(shape)
    if digest(blob) != key:
        raise MalformedError("an array whose bytes are not those of its digest")
    return blob


def _whole(digits: str) -> int:
    """A whole number that fits into 64 bits: no arithmetic on it can fail later."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise MalformedError("its head holds a number of more than 64 bits")
    return int(digits)


def unpack(content: RecordDict) -> tuple[Head, dict[str, Blob]]:
    """Head and arrays of a message; the arrays are read-only views of its bytes."""
    head, arrays = content.get("head"), content.get("arrays")
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MalformedError("it has no head or no arrays")
    try:
        said = json.loads(str(head.get("json")), parse_int=_whole)
    except json.JSONDecodeError as error:
        raise MalformedError(f"its head is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise MalformedError("its head is not a JSON object")
    return said, {key: _blob(key, array) for key, array in arrays.items()}


def take(head: Head, key: str, kind: type | tuple[type, ...]) -> Any:
    """One entry of a head, of the kind it must be."""
    value = head.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise MalformedError(f"{key!r} is {value!r}")
    return value


def take_names(head: Head) -> dict[str, str]:
    """Digest of each named vector."""
    names = take(head, "params", dict)
    if not all(isinstance(key, str) for key in names.values()):
        raise MalformedError("'params' must map names to digests")
    return dict(names)


def wire_bytes(content: RecordDict) -> int:
    """Bytes of the payload: the arrays, and the head as text."""
    arrays, head = content.get("arrays"), content.get("head")
    texts: Iterable[Any] = head.values() if isinstance(head, ConfigRecord) else ()
    vectors = arrays.values() if isinstance(arrays, ArrayRecord) else ()
    return sum(len(array.data) for array in vectors) + sum(len(str(text).encode()) for text in texts)
