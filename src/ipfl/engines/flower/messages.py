"""How a message is written and read: a header (one JSON text) and the arrays that it names.

Each array is under its digest. Vectors travel as raw float32 bytes, never as pickles. Because
vectors are named by digest, a vector that the other side already has need not travel again. Content that does
not follow the protocol, or is larger than it may be, is a `MalformedError`. What headers say is in
`ipfl.engines.flower.message_headers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from ipfl.client.runner import EVALUATE
from ipfl.core import Record, Vector
from ipfl.core.replies import InvalidReplyError, ReplyLimits

RAW_BYTES = "ipfl.raw"
"""Our serialization: the bytes of a C-contiguous little-endian array, nothing else."""
DTYPES = ("float32", "uint8")
MIN_HEADER_BYTES = 2**16
"""What every header may have: an error is a text, perhaps a traceback, and missing arrays are a list."""
VECTOR_HEADER_BYTES = 256
"""What a vector adds to the header: its name and its digest."""
NumpyArray = NDArray[Any]
ArraysByDigest = Mapping[str, NumpyArray]
Header = dict[str, Any]


class MalformedError(InvalidReplyError):
    """A message that does not follow the protocol; the text says what is wrong."""


HELLO_LIMITS = ReplyLimits(0, 0, 0)
"""The limits of what a node says of itself: a few numbers or an error, no arrays."""
ASK_LIMITS = ReplyLimits(2**28, 2**16, 2**36)
"""What a server may send to a node, which cannot know how large the model is."""


def array_digest(array: NumpyArray) -> str:
    """Name of an array: a hash of its type, shape and bytes."""
    kind = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.blake2b(kind + array.tobytes(), digest_size=16).hexdigest()


def _flower_array(array: NumpyArray) -> Array:
    return Array(dtype=array.dtype.name, shape=array.shape, stype=RAW_BYTES, data=array.tobytes())


def encode_text(text: str) -> tuple[str, Array]:
    """A text as an array with its digest, so that nodes can keep it and be referred to it like a vector."""
    array = np.frombuffer(text.encode(), dtype=np.uint8)
    return array_digest(array), _flower_array(array)


def message_type(action: str) -> str:
    """Flower's type for an action: it has `train` and `evaluate`, everything else is a query."""
    return action if action in ("train", EVALUATE) else f"query.{action}"


def action_of(message_type: str) -> str:
    """The reverse of `message_type`."""
    return message_type.removeprefix("query.")


class Encoder:
    """Turns records into digests and arrays; a vector that several records share is hashed once."""

    def __init__(self) -> None:
        self._encoded_by_id: dict[int, tuple[Vector, str, Array]] = {}

    def encode(self, record: Record) -> tuple[dict[str, str], dict[str, Array]]:
        """Digest of each named vector, and the arrays by digest."""
        digests, arrays = {}, {}
        for name, vector in record.params.items():
            _, key, array = self._encode_vector(vector)
            digests[name], arrays[key] = key, array
        return digests, arrays

    def _encode_vector(self, vector: Vector) -> tuple[Vector, str, Array]:
        if id(vector) not in self._encoded_by_id:
            if vector.dtype != np.float32:
                raise ValueError(f"vectors travel as float32, not {vector.dtype}")
            array = np.ascontiguousarray(vector)
            # The vector is kept as well: Python may give the id of a freed object to another one.
            self._encoded_by_id[id(vector)] = (vector, array_digest(array), _flower_array(array))
        return self._encoded_by_id[id(vector)]


def decode(digests: Mapping[str, str], arrays: ArraysByDigest, facts: Mapping[str, Any]) -> Record:
    """The record that was encoded."""
    vectors = {}
    for name, key in digests.items():
        array = arrays.get(key)
        if array is None or array.dtype == np.uint8:
            raise MalformedError(f"{name!r} is no vector of this message")
        vectors[name] = array
    return Record(vectors, facts)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> RecordDict:
    """The content of a message."""
    return RecordDict(
        {"head": ConfigRecord({"json": json.dumps(header)}), "arrays": ArrayRecord(dict(arrays))}
    )


def pack_missing(digests: Iterable[str]) -> RecordDict:
    """The reply of a node that does not have all arrays it was referred to."""
    return pack({"missing": sorted(digests)}, {})


def pack_error(text: str, *, is_input: bool = False) -> RecordDict:
    """The reply of a node that has no other reply.

    Args:
        text: What is wrong.
        is_input: Whether the node cannot do what it is asked with its data and settings; otherwise the
            client's code raised.
    """
    return pack({"error": text, "is_input": is_input}, {})


def unpack(content: RecordDict, limits: ReplyLimits = ASK_LIMITS) -> tuple[Header, dict[str, NumpyArray]]:
    """Header and arrays of a message; the arrays are read-only views of its bytes.

    Args:
        content: What came.
        limits: How large what it carries may be.

    Raises:
        MalformedError: It does not follow the protocol, or is larger than these limits.
    """
    head, arrays = content.get("head"), content.get("arrays")
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MalformedError("it has no header or no arrays")
    text = head.get("json")
    if not isinstance(text, str):
        raise MalformedError("its header is not a text")
    longest = MIN_HEADER_BYTES + limits.facts_bytes + VECTOR_HEADER_BYTES * limits.vectors
    if len(text) > longest:
        raise MalformedError(f"its header has {len(text)} bytes, {longest} at most are expected")
    if len(arrays) > limits.vectors:
        raise MalformedError(f"it has {len(arrays)} arrays, {limits.vectors} at most are expected")
    size = sum(len(array.data) for array in arrays.values())
    if size > limits.vector_bytes:
        raise MalformedError(f"its arrays have {size} bytes, {limits.vector_bytes} at most are expected")
    try:
        header = json.loads(text, parse_int=_parse_int64)
    except json.JSONDecodeError as error:
        raise MalformedError(f"its header is not JSON: {error}") from error
    except RecursionError as error:
        raise MalformedError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise MalformedError("its header is not a JSON object")
    return header, {key: _numpy_array(key, array) for key, array in arrays.items()}


def _numpy_array(key: str, array: Array) -> NumpyArray:
    if array.stype != RAW_BYTES or array.dtype not in DTYPES:
        raise MalformedError(f"an array of type {array.dtype!r:.50} in form {array.stype!r:.50}")
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    # Vectors and texts are flat: nothing else is made of a shape, which may have any number of dimensions.
    if len(shape) != 1 or shape[0] * dtype.itemsize != len(array.data):
        raise MalformedError(f"{len(array.data)} bytes for an array of shape {shape!r:.100}")
    values = np.frombuffer(array.data, dtype=dtype)
    if array_digest(values) != key:
        raise MalformedError("an array whose bytes do not match its digest")
    return values


def _parse_int64(digits: str) -> int:
    """A whole number that fits into 64 bits: no arithmetic on it can fail later."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise MalformedError("its header has a number of more than 64 bits")
    return int(digits)


def payload_bytes(content: RecordDict) -> int:
    """Bytes of the payload: the arrays, and the header as text."""
    arrays, head = content.get("arrays"), content.get("head")
    texts: Iterable[Any] = head.values() if isinstance(head, ConfigRecord) else ()
    vectors = arrays.values() if isinstance(arrays, ArrayRecord) else ()
    length = sum(len(str(text).encode(errors="replace")) for text in texts)
    return sum(len(array.data) for array in vectors) + length
