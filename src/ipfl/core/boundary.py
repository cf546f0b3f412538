"""The boundary: the one place where something that a client sent becomes something that a method may see.

Whatever a client sends may be wrong on purpose. Before anything else looks at a reply, its form is checked:
it is a record, its vectors are flat float32 arrays, its facts are plain values that are not nested deeply,
and it is no larger than a valid reply to this ask can be. Then its content is compared with what the ask
declares (`ReplySchema`). Whatever goes wrong on the way, foreseen or not, is an `InvalidReplyError`, which
the driver turns into an event about this client. It never ends a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipfl.core.records import Record
from ipfl.core.replies import InvalidReplyError, ReplyLimits, ReplySchema

MAX_DEPTH = 8
"""How deeply facts may be nested; those of our methods are lists of numbers at most."""
MAX_REASON = 200
"""Characters of a reason that a client can influence."""


@dataclass(frozen=True)
class UnreadableReply(Record):
    """Stands for a reply that an engine could not carry; the driver reports it like any invalid one."""

    reason: str = ""


def printable(text: object, limit: int = MAX_REASON) -> str:
    """A text from outside for a person to read: one line, not long, and nothing that steers a terminal."""
    short = str(text)[: 4 * limit]
    shown = "".join(char if char.isprintable() else " " for char in short)
    return " ".join(shown.split())[:limit]


@contextmanager
def as_invalid() -> Iterator[None]:
    """Inside, whatever goes wrong is an `InvalidReplyError`: use it where something of a client is read."""
    try:
        yield
    except InvalidReplyError as error:
        if (text := printable(error)) == str(error):
            raise
        raise type(error)(text) from error
    except Exception as error:  # also no memory, or no stack: it is about this client alone
        raise InvalidReplyError(printable(f"{type(error).__name__}: {error}")) from error


def check_form(reply: Any, limits: ReplyLimits) -> None:
    """Accepts what has the form of a reply, whatever it says.

    Args:
        reply: What came back; it need not be a record at all.
        limits: How large it may be (`ReplySchema.limits`).

    Raises:
        InvalidReplyError: It is no record, or larger than these limits.
    """
    with as_invalid():
        if isinstance(reply, UnreadableReply):
            raise InvalidReplyError(reply.reason)
        if not isinstance(reply, Record):
            raise InvalidReplyError(f"it is of type {type(reply).__name__}, not a record")
        vectors, facts = reply.params, reply.facts
        if not isinstance(vectors, Mapping) or not isinstance(facts, Mapping):
            raise InvalidReplyError("its vectors or its facts have no names")
        if len(vectors) > limits.vectors:
            raise InvalidReplyError(f"it has {len(vectors)} vectors, {limits.vectors} at most are expected")
        for name, vector in vectors.items():
            _check_vector(name, vector)
        size = sum(vector.nbytes for vector in vectors.values())
        if size > limits.vector_bytes:
            raise InvalidReplyError(
                f"its vectors have {size} bytes, {limits.vector_bytes} at most are expected"
            )
        _check_facts(dict(facts), limits.facts_bytes)


def check_content(schema: ReplySchema, sent: Record, reply: Record) -> None:
    """Accepts a reply, whose form was checked, that holds what it must.

    Args:
        schema: What a valid reply holds.
        sent: What this client was sent.
        reply: What came back.

    Raises:
        InvalidReplyError: What is wrong with it, on one line.
    """
    with as_invalid():
        schema.check(sent, reply)


def _check_vector(name: Any, vector: Any) -> None:
    if not isinstance(name, str):
        raise InvalidReplyError(f"a vector is called {name!r:.50}")
    if type(vector) is not np.ndarray or vector.dtype != np.float32 or vector.ndim != 1:
        kind = getattr(vector, "dtype", type(vector).__name__)
        shape = getattr(vector, "shape", "")
        raise InvalidReplyError(f"{name:.50} is no flat vector of float32: {kind} {shape}")


def _check_facts(facts: dict[Any, Any], most: int) -> None:
    """Plain values only, not nested deeply, and not more text than expected; without recursion."""
    size, waiting = 0, [(facts, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise InvalidReplyError(f"its facts are nested more than {MAX_DEPTH} deep")
        inner: list[Any] = []
        if isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise InvalidReplyError("a fact has a name that is not a text")
            inner = list(value.values())
            size += sum(len(name) + 4 for name in value)
        elif isinstance(value, list | tuple):
            inner = list(value)
        elif isinstance(value, str):
            size += len(value)
        elif isinstance(value, int):
            if value.bit_length() > 64:
                raise InvalidReplyError("a fact has a number of more than 64 bits")
        elif value is not None and not isinstance(value, float):
            raise InvalidReplyError(f"a fact is of type {type(value).__name__}")
        size += 2 + len(inner)
        if size > most:
            raise InvalidReplyError(f"its facts are longer than the {most} bytes that are expected at most")
        waiting += [(one, depth + 1) for one in inner]
