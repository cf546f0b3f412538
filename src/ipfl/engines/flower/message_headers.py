"""What server and nodes say to each other: the headers of all messages, each field checked when it is read.

| message | header | arrays |
|---|---|---|
| `hello`, the first one to a node | digest of the `RunSettings` | the `RunSettings` as text |
| its reply | `NodeInfo` | none |
| an ask to one client | `AskHeader` | vectors that the node does not have yet |
| its reply | `ReplyHeader` | the client's vectors |
| instead: arrays are not there | `missing`: their digests | none |
| instead: an error | `error`: a text, `kind`: an `ErrorKind` | none |

The fields' names in the JSON text are part of the protocol: nodes and servers must agree on them. How header
and arrays become a message is in `ipfl.engines.flower.messages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ipfl.config.sections import MAX_INT32
from ipfl.core import ClientId
from ipfl.engines.flower.messages import Header, MalformedError
from ipfl.engines.flower.run_settings import MAX_CLASSES

HELLO = "hello"
"""Action of the first message to a node."""
HEX_NAME = re.compile(r"[0-9a-f]{32}")
"""Digests and run ids. A node uses them as file names, so it accepts nothing else under these names."""
MAX_CLIENTS_ON_NODE = 2**20
MAX_DIMENSIONS = 8
"""Of a sample."""


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
    """The first round of each attempt so far; see `ipfl.engines.flower.node_memory`."""
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

    def to_header(self) -> Header:
        """The fields under the names that travel."""
        return {"client": self.client, "params": dict(self.digests), "facts": dict(self.facts)}

    @classmethod
    def read(cls, header: Header) -> ReplyHeader:
        """Checks every field."""
        return cls(
            client=read_field(header, "client", int),
            digests=read_digests(header),
            facts=read_field(header, "facts", dict),
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
            found = _NodeInfoHeader.model_validate(header)
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


class _NodeInfoHeader(BaseModel):
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
