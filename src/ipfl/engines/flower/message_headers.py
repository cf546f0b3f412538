"""What server and nodes say to each other: the headers of all messages, each field checked when it is read.

| message | header | arrays |
|---|---|---|
| `hello`, the first one to a node | `settings`: digest of the `RunSettings` | the `RunSettings` as text |
| its reply | `NodeInfo` | none |
| an ask to one client | `AskHeader` | vectors that the node does not have yet |
| its reply | `ReplyHeader` | the client's vectors |
| instead: arrays are not there | `missing`: their digests | none |
| instead: an error | `error`: a text, `is_input`: whether the node refuses | none |

A field has the same name in the JSON text as here: nodes and servers must agree on them. How header
and arrays become a message is in `ipfl.engines.flower.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    Strict,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from ipfl.config.sections import MAX_INT32
from ipfl.engines.flower.messages import Header, MalformedError
from ipfl.engines.flower.run_settings import MAX_CLASSES

HELLO = "hello"
"""Action of the first message to a node."""
MAX_DIMENSIONS = 8
"""Of a sample."""
HexName = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{32}$")]
"""Digests and run ids. A node uses them as file names, so it accepts nothing else under these names."""
MessageCount = Annotated[int, Strict(), Field(ge=0, le=MAX_INT32)]
MessageSize = Annotated[int, Strict(), Field(ge=1, le=MAX_INT32)]
SampleCounts = Annotated[
    dict[
        Annotated[str, Field(max_length=20)],
        Annotated[MessageCount, AfterValidator(lambda count: max(1, count))],
    ],
    Field(max_length=8),
]
"""Of each part. One without samples counts as one: the counts are divisors elsewhere."""


def read_field(header: Header, key: str, kind: type) -> Any:
    """One field of a header, which must be of this type."""
    value = header.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise MalformedError(f"{key!r} is {value!r:.100}")
    return value


_READERS: dict[type, TypeAdapter[Any]] = {}


class _Fields:
    """A dataclass whose fields travel."""

    def to_header(self) -> Header:
        """The fields; those that are not set do not travel."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def read(cls, header: Header) -> Self:
        """Checks every field.

        Raises:
            MalformedError: One is missing, or not what it must be.
        """
        try:
            reader = _READERS.get(cls) or _READERS.setdefault(cls, TypeAdapter(cls))
            found: Self = reader.validate_python(header)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ".".join(map(str, detail["loc"]))
            raise MalformedError(f"{where:.50}: {detail['msg']}") from error
        return found


@dataclass(frozen=True)
class AskHeader(_Fields):
    """Header of an ask to one client."""

    client: StrictInt
    round: StrictInt
    committed: StrictInt
    """The last round that will not be played again."""
    run_id: HexName | Annotated[str, Strict(), Field(max_length=0)]
    """Folder for the run's memory on the node; empty: the folder of the node itself."""
    first_rounds: tuple[MessageCount, ...]
    """The first round of each attempt so far; see `ipfl.engines.flower.node_memory`."""
    settings: HexName
    """Digest of the `RunSettings`."""
    model_size: StrictInt
    """Number of parameters of the server's model."""
    params: dict[str, HexName]
    """Digest of each named vector."""
    facts: dict[str, Any]
    statement: Mapping[str, Any] | None = None
    """What the ledger says of the client's account (`ipfl.ledger.statements`); None: nothing new."""


@dataclass(frozen=True)
class ReplyHeader(_Fields):
    """Header of a client's reply."""

    client: StrictInt
    params: dict[str, StrictStr]
    """Digest of each named vector."""
    facts: dict[str, Any]


@dataclass(frozen=True)
class NodeInfo(_Fields):
    """What a node says of itself in its reply to `hello`."""

    client: MessageCount
    model_size: MessageSize
    """Number of parameters of its model."""
    classes: Annotated[int, Strict(), Field(ge=1, le=MAX_CLASSES)]
    input_shape: Annotated[tuple[MessageSize, ...], Field(min_length=1, max_length=MAX_DIMENSIONS)]
    samples: SampleCounts
    """Number of samples per part."""
