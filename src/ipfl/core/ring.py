"""Numbers as elements of a ring, in which a masked sum is exact: whole numbers modulo 2^60.

A real number v becomes the whole number round(v · 2^bits), so that sums of such numbers, multiplied by whole
weights, have no rounding at all. An element travels as three numbers of 20 bits each, which a float32 holds
exactly: so it passes the boundary like any other vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from annotated_types import Len
from numpy.typing import NDArray

from ipfl.core.records import ClientId, Fact, Record, ReplySum, Vector
from ipfl.core.replies import Ask

Ring = NDArray[np.uint64]
"""Elements of the ring."""
RING_BITS = 60
RING_MASK = np.uint64(2**RING_BITS - 1)
LIMBS, LIMB_BITS = 3, 20
"""An element on its way: so many numbers of so many bits."""
LIMB_OFFSET = 2 ** (LIMB_BITS - 1)
"""Makes a limb a signed number, so that it stays below `MAX_COMPONENT`."""
VALUE_BITS = 10
"""Numbers of a vector are below 2^10; a model with larger ones has diverged."""
WEIGHT_BITS = 20
"""A client counts at most as about a million samples."""


class OutOfRangeError(ValueError):
    """A number that does not fit: training led there, or a client claims too much."""


def fraction_bits(clients: int) -> int:
    """Bits behind the point so that the sum of so many clients' weighted numbers cannot overflow."""
    return RING_BITS - 1 - VALUE_BITS - WEIGHT_BITS - max(0, clients - 1).bit_length()


def to_vector(elements: Ring) -> Vector:
    """Ring elements as they travel."""
    limbs = np.empty((LIMBS, len(elements)), np.float32)
    for place in range(LIMBS):
        limb = (elements >> np.uint64(LIMB_BITS * place)) & np.uint64(2**LIMB_BITS - 1)
        limbs[place] = limb.astype(np.int64) - LIMB_OFFSET
    return limbs.ravel()


def from_vector(vector: Vector) -> Ring:
    """What `to_vector` made; of other numbers the nearest whole ones count."""
    limbs = np.rint(vector.reshape(LIMBS, -1).astype(np.float64)).astype(np.int64) + LIMB_OFFSET
    total = np.zeros(limbs.shape[1], np.uint64)
    for place in range(LIMBS):
        total += limbs[place].astype(np.uint64) << np.uint64(LIMB_BITS * place)
    return total & RING_MASK


@dataclass(frozen=True)
class SumLayout:
    """Which numbers of the replies are summed, and where each stands among the ring elements."""

    vectors: Mapping[str, int]
    """Name → length; behind each vector stands its weight."""
    facts: Mapping[str, int]
    """Name → length of the list; 0: a single number."""
    bits: int
    """Behind the point."""

    @classmethod
    def of(cls, ask: Ask, holders: Mapping[str, Iterable[ClientId]]) -> SumLayout:
        """The layout of a sum over the replies to an ask.

        Args:
            ask: What is asked.
            holders: The names of vectors that are summed, and which clients send them.
        """
        vectors: dict[str, int] = {}
        facts: dict[str, int] = {}
        for sent in ask.to.values():
            sizes = expected_vectors(ask, sent)
            vectors |= {name: size for name, size in sizes.items() if name in holders}
            types = ask.expects.facts(sent) if callable(ask.expects.facts) else ask.expects.facts
            hidden = sizes.keys() - holders.keys()
            facts |= {name: _length(kind) for name, kind in types.items() if name not in hidden}
        return cls(dict(sorted(vectors.items())), dict(sorted(facts.items())), fraction_bits(len(ask.to)))

    @property
    def size(self) -> int:
        """Ring elements in all."""
        return sum(n + 1 for n in self.vectors.values()) + sum(max(1, n) for n in self.facts.values())

    def pack(self, reply: Record, weights: Mapping[str, int]) -> Ring:
        """A reply as ring elements: zeros for what it does not hold.

        Args:
            reply: What a client would have sent.
            weights: What each of its vectors counts.

        Raises:
            OutOfRangeError: A number of it does not fit.
        """
        parts: list[NDArray[np.int64]] = []
        for name, size in self.vectors.items():
            weight, vector = 0, np.zeros(size, np.float32)
            if name in reply.params:
                weight, vector = weights[name], reply.params[name]
            if vector.shape != (size,) or not 0 <= weight < 2**WEIGHT_BITS:
                raise OutOfRangeError(f"{name} has {vector.size} numbers, and a weight of {weight}")
            parts += [weight * self._whole(vector, VALUE_BITS), np.array([weight], np.int64)]
        for name, length in self.facts.items():
            values = np.zeros(max(1, length))
            if name in reply.facts:
                values = np.atleast_1d(np.asarray(reply.facts[name], np.float64))
            if len(values) != max(1, length):
                raise OutOfRangeError(f"{name} has {len(values)} numbers")
            parts.append(self._whole(values, WEIGHT_BITS))
        return np.concatenate(parts).astype(np.uint64) & RING_MASK

    def unpack(self, elements: Ring) -> ReplySum:
        """The sums that ring elements stand for."""
        half = 2 ** (RING_BITS - 1)
        signed = (elements & RING_MASK).astype(np.int64)
        signed = np.where(signed >= half, signed - 2**RING_BITS, signed)
        at = 0
        vectors: dict[str, NDArray[np.float64]] = {}
        weights: dict[str, int] = {}
        facts: dict[str, Fact] = {}
        for name, size in self.vectors.items():
            vectors[name] = signed[at : at + size] / 2.0**self.bits
            weights[name] = int(signed[at + size])
            at += size + 1
        for name, length in self.facts.items():
            values = (signed[at : at + max(1, length)] / 2.0**self.bits).tolist()
            facts[name] = values if length else values[0]
            at += max(1, length)
        return ReplySum(vectors, weights, facts)

    def _whole(self, values: NDArray[Any], bits: int) -> NDArray[np.int64]:
        """Round(v · 2^bits) of numbers below 2^bits."""
        wide = values.astype(np.float64)
        if not (np.abs(wide) < 2.0**bits).all():  # no comparison is true of NaN
            raise OutOfRangeError("a number is too large, or none")
        return np.asarray(np.rint(wide * 2.0**self.bits), np.int64)


def expected_vectors(ask: Ask, sent: Record) -> Mapping[str, int]:
    """Vectors that a valid reply to a record holds, where that does not depend on its facts."""
    return ask.expects.vectors(sent, {}) if callable(ask.expects.vectors) else ask.expects.vectors


def _length(kind: Any) -> int:
    """Of a fact that is a list of fixed length; 0: a number."""
    inner, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(inner) is not list:
        return 0
    return next(int(mark.min_length) for mark in marks if isinstance(mark, Len))
