"""What a valid reply is: declared with the ask, checked once, at the boundary (`ipfl.core.boundary`).

A method says with each `Ask` which facts and which vectors a reply must hold:

    yield Ask("train", to, expects=ReplySchema({"n": Count}, vectors={"global": size}))

Facts are checked by pydantic, strictly: no text for a number, no number that is not finite. Replies that hold
anything else, or anything more, never reach the method; the client counts as if it had not answered, and an
event says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import numpy as np
from annotated_types import Interval, Len
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from ipfl.core.records import Record

MAX_COMPONENT = 1e6
"""Largest component of a vector that a client may send. Parameters and gradients of a network that works are
of order 1; beyond this a training has diverged or a message is broken, and one such reply in a mean of
thousands would still leave no usable model."""
MAX_FACT = 2**53
"""Largest number among the facts: up to here a float64 counts without gaps."""

NUMBER_BYTES = 32
"""A number as JSON, at most, with the comma after it."""
PRIVACY_BYTES = 80
"""What a client may say beside about its privacy, as JSON."""
OPEN_FACT_BYTES = 2**16
"""A fact whose type has no limit of its own, as JSON, at most."""

FactTypes = Mapping[str, Any]
"""Name → type of every fact that a reply must hold, as an annotation that pydantic understands."""
VectorSizes = Mapping[str, int]
"""Name → length of every vector that a reply must hold."""

Whole = Annotated[int, Interval(ge=0, le=MAX_FACT)]
Count = Annotated[int, Interval(ge=1, le=MAX_FACT)]
Number = Annotated[float, Interval(ge=-MAX_FACT, le=MAX_FACT)]
NonNegative = Annotated[float, Interval(ge=0, le=MAX_FACT)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]


def index_below(length: int) -> Any:
    """A whole number from 0 to `length` − 1."""
    return Annotated[int, Interval(ge=0, lt=length)]


def list_of(kind: Any, length: int) -> Any:
    """So many values of one type."""
    return Annotated[list[kind], Len(length, length)]


def hex_text(size: int) -> Any:
    """So many bytes as hexadecimal digits."""
    return Annotated[str, Len(2 * size, 2 * size), StringConstraints(pattern="^[0-9a-f]*$")]


def text_up_to(length: int) -> Any:
    """A text of so many characters at most."""
    return Annotated[str, Len(0, length)]


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
