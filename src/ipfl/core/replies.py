"""The boundary: what a valid reply is, and the one place where what a client sent becomes something to use.

A method says with each `Ask` which facts and which vectors a reply must hold:

    yield Ask("train", to, expects=ReplySchema({"n": Count}, vectors={"global": size}))

Facts are checked by pydantic, strictly: no text for a number, no number that is not finite. Replies that hold
anything else, or anything more, never reach the method; the client counts as if it had not answered, and an
event says why.

Whatever a client sends may be wrong on purpose. Before anything else looks at a reply, its form is checked:
it is a record, its vectors are flat float32 arrays, its facts are plain values, and it is no larger than a
valid reply to this ask can be (`check_form`). Then its content is compared with what the ask declares
(`check_content`). Whatever goes wrong on the way, foreseen or not, is an `InvalidReplyError`, which the
driver turns into an event about this client. It never ends a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
from annotated_types import Interval, Len
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ipfl.core.records import ClientId, Record

MAX_COMPONENT = 1e6
"""Largest component of a vector that a client may send. Parameters and gradients of a network that works are
of order 1; beyond this a training has diverged or a message is broken, and one such reply in a mean of
thousands would still leave no usable model."""
MAX_FACT = 2**53
"""Largest number among the facts: up to here a float64 counts without gaps."""
MAX_COUNT = 10**9
"""Largest number of points, or of anything else that is counted: no client has more."""

NUMBER_BYTES = 32
"""A number as JSON, at most, with the comma after it."""
PRIVACY_BYTES = 80
"""What a client may say beside about its privacy, as JSON."""
OPEN_FACT_BYTES = 2**16
"""A fact whose type has no limit of its own, as JSON, at most."""
MAX_REASON = 200
"""Characters of a reason that a client can influence."""

FactTypes = Mapping[str, Any]
"""Name → type of every fact that a reply must hold, as an annotation that pydantic understands."""
VectorSizes = Mapping[str, int]
"""Name → length of every vector that a reply must hold."""

Whole = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
Count = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
Number = Annotated[float, Interval(ge=-MAX_FACT, le=MAX_FACT)]
NonNegative = Annotated[float, Interval(ge=0, le=MAX_FACT)]
PointCount = Annotated[float, Interval(ge=0, le=MAX_COUNT)]
"""A number of points that may have noise on it, for privacy."""
PositiveShare = Annotated[float, Interval(gt=0, le=1)]


def index_below(length: int) -> Any:
    """A whole number from 0 to `length` − 1."""
    return Annotated[int, Interval(ge=0, lt=length)]


def list_of(kind: Any, length: int) -> Any:
    """So many values of one type."""
    return Annotated[list[kind], Len(length, length)]


class InvalidReplyError(ValueError):
    """A reply that does not hold what it must; the text says what is wrong with it."""


class DivergedReplyError(InvalidReplyError):
    """A reply whose only fault is a number that is too large, or none: where training led to."""


@dataclass(frozen=True)
class ReplyLimits:
    """How large a valid reply to one client's ask can be; checked before anything of it is parsed."""

    facts_bytes: int
    """The facts as JSON."""
    vectors: int
    """Number of vectors."""
    vector_bytes: int
    """All vectors together."""


@dataclass(frozen=True)
class ReplySchema:
    """What a valid reply to one ask holds."""

    facts: FactTypes | Callable[[Record], FactTypes] = field(default_factory=dict)
    """The facts, or a function of the record that was sent."""
    vectors: VectorSizes | Callable[[Record, Mapping[str, Any]], VectorSizes] = field(default_factory=dict)
    """The vectors, or a function of the record that was sent and the reply's facts, which are valid."""
    rule: Callable[[Mapping[str, Any]], bool] = lambda facts: True
    """What else must be true of the facts together."""
    weight: str | None = None
    """The fact, a `Count`, by which the method weighs replies; how much one counts can be limited
    (`aggregate.max_weight`)."""
    max_vector_bytes: int | None = None
    """Bytes of all vectors together; None: as `vectors` says, or, where that is a function, as was sent."""

    def limits(self, sent: Record) -> ReplyLimits:
        """How large a valid reply to this record can be."""
        types = self.facts(sent) if callable(self.facts) else self.facts
        facts = 2 + PRIVACY_BYTES + sum(len(name) + 6 + _json_bytes(kind) for name, kind in types.items())
        if callable(self.vectors):
            vectors, most = len(sent.params), sum(4 * vector.size for vector in sent.params.values())
        else:
            vectors, most = len(self.vectors), 4 * sum(self.vectors.values())
        return ReplyLimits(facts, vectors, most if self.max_vector_bytes is None else self.max_vector_bytes)

    def check(self, sent: Record, reply: Record) -> None:
        """Accepts a reply, or says what is wrong with it.

        Raises:
            InvalidReplyError: On one line.
        """
        types = self.facts(sent) if callable(self.facts) else self.facts
        _check_names("facts", types, reply.facts)
        for name, kind in types.items():
            try:
                _adapter(kind).validate_python(reply.facts[name])
            except ValidationError as error:
                raise InvalidReplyError(f"{name}: {error.errors(include_url=False)[0]['msg']}") from error
        if not self.rule(reply.facts):
            raise InvalidReplyError(f"{', '.join(types)} contradict each other")
        sizes = self.vectors(sent, reply.facts) if callable(self.vectors) else self.vectors
        _check_names("vectors", sizes, reply.params)
        for name, size in sizes.items():
            vector = reply.params[name]
            if not is_vector(vector, size):
                has_form = isinstance(vector, np.ndarray) and vector.shape == (size,)
                kind = DivergedReplyError if has_form and vector.dtype == np.float32 else InvalidReplyError
                raise kind(f"{name} is not a vector of {size} numbers up to {MAX_COMPONENT:g}")


@dataclass(frozen=True)
class Ask:
    """One phase: every addressed client runs the method's `on_<action>` on its record."""

    action: str
    to: Mapping[ClientId, Record]
    expects: ReplySchema = field(default_factory=ReplySchema)
    """What a valid reply holds; nothing by default. Only valid replies reach the method."""


def is_vector(vector: Any, size: int) -> bool:
    """Whether this is a vector of so many float32 numbers, all of them finite and at most `MAX_COMPONENT`."""
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.shape != (size,):
        return False
    # No comparison is true of NaN, which min and max pass on.
    return not size or bool(vector.min() >= -MAX_COMPONENT and vector.max() <= MAX_COMPONENT)


def _check_names(what: str, expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if set(given) != set(expected):
        names = (", ".join(sorted(map(str, these))) or "none" for these in (expected, given))
        raise InvalidReplyError("expected the {} {}, got {:.100}".format(what, *names))


def _json_bytes(kind: Any) -> int:
    """Bytes of the longest valid value of a type as JSON; a bound, not exact."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        longest = next((mark.max_length for mark in marks if isinstance(mark, Len)), None)
        if get_origin(inner) is list and longest is not None:
            return 2 + longest * _json_bytes(get_args(inner)[0])
        return _json_bytes(inner) if inner is not str or longest is None else 2 + 6 * longest
    if kind in (int, float, bool) or get_origin(kind) is Literal:
        return NUMBER_BYTES
    return OPEN_FACT_BYTES


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))


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
    """Plain values only, such as JSON can hold, and no more text than expected; all else raises here."""
    size = len(json.dumps(facts))
    if size > most:
        raise InvalidReplyError(f"its facts are longer than the {most} bytes that are expected at most")
