"""What server and nodes send each other, as Flower messages.

A message is a header (one JSON text) and the arrays that the header names, each under its digest. Vectors
travel as raw float32 (or float16) bytes, never as pickles. Because vectors are named by digest, a vector that
the other side already has need not travel again. Content that does not follow the protocol is a
`MalformedError`.

| message | header | arrays |
|---|---|---|
| `hello`, the first one to a node | digest of the `RunSettings` | the `RunSettings` as text |
| its reply | `NodeInfo` | none |
| an ask to one client | `AskHeader` | vectors that the node does not have yet |
| its reply | `ReplyHeader` | the client's vectors |
| instead: arrays are not there | `missing`: their digests | none |
| instead: an error | `error`: a text, `kind`: an `ErrorKind` | none |

The fields' names in the JSON text are part of the protocol: nodes and servers must agree on them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ipfl.client.runner import EVALUATE
from ipfl.client.settings import PrivacyConfig, TrainConfig
from ipfl.core import ClientId, Method, Record, Vector
from ipfl.core.replies import InvalidReplyError, ReplyLimits
from ipfl.core.sections import MAX_INT32
from ipfl.data.settings import TaskConfig
from ipfl.errors import InputError
from ipfl.methods import method as build_method
from ipfl.methods import method_settings

HELLO = "hello"
"""Action of the first message to a node."""
RAW_BYTES = "ipfl.raw"
"""Our serialization: the bytes of a C-contiguous little-endian array, nothing else."""
DTYPES = ("float32", "float16", "uint8")
HEX_NAME = re.compile(r"[0-9a-f]{32}")
"""Digests and run ids. A node uses them as file names, so it accepts nothing else under these names."""
MIN_HEADER_BYTES = 2**16
"""What every header may have: an error is a text, perhaps a traceback, and missing arrays are a list."""
VECTOR_HEADER_BYTES = 256
"""What a vector adds to the header: its name and its digest."""
MAX_CLASSES = 2**16
"""Of a task: more is a mistake or an attack, as the last layer of every model grows with it."""
MAX_CLIENTS_ON_NODE = 2**20
MAX_DIMENSIONS = 8
"""Of a sample."""
NumpyArray = NDArray[Any]
ArraysByDigest = Mapping[str, NumpyArray]
Header = dict[str, Any]


class MalformedError(InvalidReplyError):
    """A message that does not follow the protocol; the text says what is wrong."""


MAX_RECEIPT_BYTES = 2**12
"""What a node may say beside: its receipt for a statement of account."""


@dataclass(frozen=True)
class MessageLimits:
    """How large a message may be; checked before anything of it is parsed."""

    header_bytes: int
    arrays: int
    """Number of arrays."""
    array_bytes: int
    """All arrays together."""

    @classmethod
    def of(cls, reply: ReplyLimits) -> MessageLimits:
        """Those of a message with such a reply: its facts, and a digest for each vector."""
        header = MIN_HEADER_BYTES + MAX_RECEIPT_BYTES + reply.facts_bytes
        header += VECTOR_HEADER_BYTES * reply.vectors
        return cls(header, reply.vectors, reply.vector_bytes)


HELLO_LIMITS = MessageLimits(2**25, 0, 0)
"""What a node may say of itself: counts for each of its clients, and no arrays."""
ASK_LIMITS = MessageLimits(2**28, 2**16, 2**36)
"""What a server may send to a node, which cannot know how large the model is."""


class ErrorKind(StrEnum):
    """Why a node replies with an error."""

    INPUT = "input"
    """The node cannot do what it is asked with its data and settings."""
    STALE = "stale"
    """The message belongs to an attempt that the server has given up."""
    FAILED = "failed"
    """The client's code raised."""


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


def _to_float16(vector: Vector) -> NumpyArray:
    """The vector in float16, or unchanged if a value would overflow."""
    with np.errstate(over="ignore"):
        short = vector.astype(np.float16)
    return short if (np.isfinite(short) == np.isfinite(vector)).all() else vector


class Encoder:
    """Turns records into digests and arrays; a vector that several records share is hashed once."""

    def __init__(self, *, float16: bool = False):
        self.float16 = float16
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
            array = _to_float16(vector) if self.float16 else np.ascontiguousarray(vector)
            # The vector is kept as well: Python may give the id of a freed object to another one.
            self._encoded_by_id[id(vector)] = (vector, array_digest(array), _flower_array(array))
        return self._encoded_by_id[id(vector)]


def decode(digests: Mapping[str, str], arrays: ArraysByDigest, facts: Mapping[str, Any]) -> Record:
    """The record that was encoded; what travelled as float16 becomes float32."""
    vectors = {}
    for name, key in digests.items():
        array = arrays.get(key)
        if array is None or array.dtype == np.uint8:
            raise MalformedError(f"{name!r} is no vector of this message")
        vectors[name] = array.astype(np.float32) if array.dtype == np.float16 else array
    return Record(vectors, facts)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> RecordDict:
    """The content of a message."""
    return RecordDict(
        {"head": ConfigRecord({"json": json.dumps(header)}), "arrays": ArrayRecord(dict(arrays))}
    )


def pack_missing(digests: Iterable[str]) -> RecordDict:
    """The reply of a node that does not have all arrays it was referred to."""
    return pack({"missing": sorted(digests)}, {})


def pack_error(text: str, kind: ErrorKind) -> RecordDict:
    """The reply of a node that has no other reply."""
    return pack({"error": text, "kind": kind}, {})


def unpack(content: RecordDict, limits: MessageLimits = ASK_LIMITS) -> tuple[Header, dict[str, NumpyArray]]:
    """Header and arrays of a message; the arrays are read-only views of its bytes.

    Args:
        content: What came.
        limits: How large it may be.

    Raises:
        MalformedError: It does not follow the protocol, or is larger than these limits.
    """
    head, arrays = content.get("head"), content.get("arrays")
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MalformedError("it has no header or no arrays")
    text = head.get("json")
    if not isinstance(text, str):
        raise MalformedError("its header is not a text")
    if len(text) > limits.header_bytes:
        raise MalformedError(f"its header has {len(text)} bytes, {limits.header_bytes} at most are expected")
    if len(arrays) > limits.arrays:
        raise MalformedError(f"it has {len(arrays)} arrays, {limits.arrays} at most are expected")
    size = sum(len(array.data) for array in arrays.values())
    if size > limits.array_bytes:
        raise MalformedError(f"its arrays have {size} bytes, {limits.array_bytes} at most are expected")
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


def read_field(header: Header, key: str, kind: type) -> Any:
    """One field of a header, which must be of this type."""
    value = header.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise MalformedError(f"{key!r} is {value!r:.100}")
    return value


def read_digests(header: Header) -> dict[str, str]:
    """Digest of each named vector."""
    digests = read_field(header, "params", dict)
    if not all(isinstance(key, str) for key in digests.values()):
        raise MalformedError("'params' must map names to digests")
    return dict(digests)


def _check_hex_name(key: str, name: str) -> str:
    if not HEX_NAME.fullmatch(name):
        raise MalformedError(f"{key!r} must be 32 hex digits, not {name!r:.50}")
    return name


def _read_counts(header: Header, key: str) -> tuple[int, ...]:
    """A list of whole numbers from 0 on."""
    numbers = read_field(header, key, list)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise MalformedError(f"{key!r} must be whole numbers from 0 on")
    return tuple(numbers)


def payload_bytes(content: RecordDict) -> int:
    """Bytes of the payload: the arrays, and the header as text."""
    arrays, head = content.get("arrays"), content.get("head")
    texts: Iterable[Any] = head.values() if isinstance(head, ConfigRecord) else ()
    vectors = arrays.values() if isinstance(arrays, ArrayRecord) else ()
    length = sum(len(str(text).encode(errors="replace")) for text in texts)
    return sum(len(array.data) for array in vectors) + length


@dataclass(frozen=True)
class AskHeader:
    """Header of an ask to one client."""

    client: ClientId
    round: int
    committed: int
    """The last round that will not be played again."""
    run_id: str
    """32 hex digits: folder for the run's memory on the node; empty: the folder of the node itself."""
    first_rounds: tuple[int, ...]
    """The first round of each attempt so far; see `ipfl.engines.flower.memory`."""
    settings: str
    """Digest of the `RunSettings`."""
    model_size: int
    """Number of parameters of the server's model."""
    float16: bool
    """Whether vectors of the reply travel as float16."""
    digests: Mapping[str, str]
    facts: Mapping[str, Any]
    statement: Mapping[str, Any] | None = None
    """What the ledger says of the client's account (`ipfl.ledger.statements`); None: nothing new."""

    def to_header(self) -> Header:
        """The fields under the names that travel."""
        told = {} if self.statement is None else {"statement": self.statement}
        return told | {
            "client": self.client,
            "round": self.round,
            "committed": self.committed,
            "run": self.run_id,
            "firsts": list(self.first_rounds),
            "plan": self.settings,
            "size": self.model_size,
            "half": self.float16,
            "params": dict(self.digests),
            "facts": dict(self.facts),
        }

    @classmethod
    def read(cls, header: Header) -> AskHeader:
        """Checks every field."""
        run_id, digests = read_field(header, "run", str), read_digests(header)
        for digest in digests.values():
            _check_hex_name("params", digest)
        return cls(
            client=read_field(header, "client", int),
            round=read_field(header, "round", int),
            committed=read_field(header, "committed", int),
            run_id=run_id and _check_hex_name("run", run_id),
            first_rounds=_read_counts(header, "firsts"),
            settings=_check_hex_name("plan", read_field(header, "plan", str)),
            model_size=read_field(header, "size", int),
            float16=read_field(header, "half", bool),
            digests=digests,
            facts=read_field(header, "facts", dict),
            statement=read_field(header, "statement", dict) if "statement" in header else None,
        )


@dataclass(frozen=True)
class ReplyHeader:
    """Header of a client's reply."""

    client: ClientId
    digests: Mapping[str, str]
    facts: Mapping[str, Any]
    receipt: Mapping[str, Any] | None = None
    """For the statement of account that came with the ask (`ipfl.ledger.receipts`); None: there was none."""

    def to_header(self) -> Header:
        """The fields under the names that travel."""
        signed = {} if self.receipt is None else {"receipt": dict(self.receipt)}
        return signed | {"client": self.client, "params": dict(self.digests), "facts": dict(self.facts)}

    @classmethod
    def read(cls, header: Header) -> ReplyHeader:
        """Checks every field."""
        return cls(
            client=read_field(header, "client", int),
            digests=read_digests(header),
            facts=read_field(header, "facts", dict),
            receipt=read_field(header, "receipt", dict) if "receipt" in header else None,
        )


@dataclass(frozen=True)
class NodeInfo:
    """What a node says of itself in its reply to `hello`."""

    clients: tuple[ClientId, ...]
    model_size: int
    """Number of parameters of its model."""
    classes: int
    input_shape: tuple[int, ...]
    samples: Mapping[ClientId, Mapping[str, int]]
    """Number of samples per part, for each client."""

    def to_header(self) -> Header:
        """The fields under the names that travel."""
        return {
            "clients": list(self.clients),
            "size": self.model_size,
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            "sizes": {str(client): dict(counts) for client, counts in self.samples.items()},
        }

    @classmethod
    def read(cls, header: Header) -> NodeInfo:
        """Checks every field."""
        try:
            found = _Greeting.model_validate(header)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ".".join(map(str, detail["loc"]))
            raise MalformedError(f"{where:.50}: {detail['msg']}") from error
        return cls(
            clients=tuple(found.clients),
            model_size=found.size,
            classes=found.classes,
            input_shape=tuple(found.input_shape),
            samples={
                int(client): {part: max(1, count) for part, count in counts.items()}
                for client, counts in found.sizes.items()
            },
        )


_Size = Annotated[int, Field(ge=1, le=MAX_INT32)]
_ClientNumber = Annotated[int, Field(ge=0, le=MAX_INT32)]
_ClientText = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_PartName = Annotated[str, Field(max_length=20)]


class _Greeting(BaseModel):
    """What a node may say of itself, under the names that travel."""

    model_config = ConfigDict(strict=True, extra="ignore")

    clients: Annotated[list[_ClientNumber], Field(min_length=1, max_length=MAX_CLIENTS_ON_NODE)]
    size: _Size
    classes: Annotated[int, Field(ge=1, le=MAX_CLASSES)]
    input_shape: Annotated[list[_Size], Field(min_length=1, max_length=MAX_DIMENSIONS)]
    sizes: Annotated[
        dict[_ClientText, Annotated[dict[_PartName, _ClientNumber], Field(max_length=8)]],
        Field(max_length=MAX_CLIENTS_ON_NODE),
    ]


@dataclass(frozen=True)
class RunSettings:
    """What a node must know to take part in a run; it travels as JSON, so a node needs no config file."""

    method: Method[Any]
    train: TrainConfig
    task: TaskConfig
    seed: int
    classes: int | None
    """Number of classes; None as long as the server has to learn it from its nodes."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """What replies may give away."""

    def to_json(self) -> str:
        """The text that travels."""
        return json.dumps(
            {
                "method": method_settings(self.method),
                "train": self.train.model_dump(mode="json"),
                "task": self.task.model_dump(mode="json"),
                "seed": self.seed,
                "classes": self.classes,
                "privacy": self.privacy.model_dump(mode="json"),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RunSettings:
        """Reads the text that travelled.

        Raises:
            InputError: This node cannot use the settings; perhaps it has another version of ipfl.
        """
        try:
            content = json.loads(text)
            hyper_parameters = dict(content["method"])
            return cls(
                method=build_method(hyper_parameters.pop("name"), **hyper_parameters),
                train=TrainConfig.of(content["train"]),
                task=TaskConfig.of(content["task"]),
                seed=int(content["seed"]),
                classes=_read_classes(content["classes"]),
                privacy=PrivacyConfig.of(content["privacy"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"the server's settings cannot be read: {error}") from error


def _read_classes(value: Any) -> int | None:
    """The number of classes that a server sends; a node builds a model for so many."""
    if value is not None and not 1 <= int(value) <= MAX_CLASSES:
        raise ValueError(f"{value!r:.50} classes, {MAX_CLASSES} at most are possible")
    return None if value is None else int(value)
