"""Partitions: in which shares each client mixes the hidden distributions, or the classes; and sizes.

Shares are a matrix with a row per client; `ipfl.data.apportion` makes whole numbers of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.data.apportion import apportion
from ipfl.errors import InputError, unknown

PARTITIONS: Mapping[str, str] = {
    "a:b": "b % from the client's own distribution (client i: number i mod d), a % from the others; 10:90",
    "linear": "client k has (0.5 + k)/N from the first distribution; of more than two: sliding along",
    "random": "a mixture drawn uniformly at random for each client",
    "classes": "classes:c: c classes per client, in equal parts",
    "dirichlet": "dirichlet:alpha: a client's class shares from Dirichlet(alpha), while classes last",
    "natural": "each writer or person is a client, with distributions = natural",
}
SMALLEST = 5
"""Samples of the smallest client with unequal sizes."""

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Partition:
    """A parsed partition."""

    kind: str
    value: float = 0.0
    """Share of the own distribution (a:b), number of classes, or alpha."""

    @property
    def by_class(self) -> bool:
        """Whether it mixes classes; a client is then wholly in distribution i mod d."""
        return self.kind in ("classes", "dirichlet")


def _number(text: str, of: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"partition {of!r}: {text!r} is not a number")
    return value


def parse(text: str) -> Partition:
    """Reads a partition such as `10:90`, `classes:4` or `linear`.

    Raises:
        InputError: When it is none of `PARTITIONS`, or its numbers make no sense.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind in ("linear", "random", "natural"):
        if colon:
            raise InputError(f"partition {kind!r} takes no number, got {text!r}")
        return Partition(kind)
    if kind == "classes":
        value = _number(rest, text)
        if value < 1 or value != int(value):
            raise InputError(f"partition {text!r}: expected a whole number of classes, at least 1")
        return Partition(kind, value)
    if kind == "dirichlet":
        value = _number(rest, text)
        if value <= 0:
            raise InputError(f"partition {text!r}: alpha must be greater than 0")
        return Partition(kind, value)
    if not colon or not kind[:1].isdigit():
        raise unknown("partition", kind, PARTITIONS)
    others, own = _number(kind, text), _number(rest, text)
    if others < 0 or own < 0 or not math.isclose(others + own, 100):
        raise InputError(f"partition {text!r}: both parts must be at least 0 and sum to 100")
    return Partition("a:b", own / 100)


def mixtures(partition: Partition, clients: int, distributions: int, random: np.random.Generator) -> Shares:
    """Shares of each distribution per client (clients, distributions), for a:b, linear and random."""
    if distributions == 1:
        return np.ones((clients, 1))
    who = np.arange(clients)
    if partition.kind == "random":
        # Uniform on the simplex; with two distributions that is Uniform(0, 1).
        return random.dirichlet(np.ones(distributions), size=clients)
    if partition.kind == "linear":
        place = (distributions - 1) * (1 - (0.5 + who) / clients)
        left = np.minimum(place.astype(np.int64), distributions - 2)
        shares = np.zeros((clients, distributions))
        shares[who, left] = 1 - (place - left)
        shares[who, left + 1] = place - left
        return shares
    shares = np.full((clients, distributions), (1 - partition.value) / (distributions - 1))
    shares[who, who % distributions] = partition.value
    return shares


def class_shares(
    partition: Partition, clients: int, supply: NDArray[np.int64], random: np.random.Generator
) -> Shares:
    """Shares of each class per client (clients, classes), for classes:c and dirichlet:alpha.

    With classes:c the classes least used for their supply come first, in random order, so that all are
    used alike and a rare class goes to fewer clients.
    """
    if partition.kind == "dirichlet":
        drawn = random.dirichlet(np.full(len(supply), partition.value), size=clients)
        # A tiny alpha can underflow to a row of zeros or NaN: then one class has it all.
        lost = ~(np.isfinite(drawn).all(axis=1) & (drawn.sum(axis=1) > 0))
        drawn[lost] = np.eye(len(supply))[random.integers(len(supply), size=int(lost.sum()))]
        return drawn
    count = int(partition.value)
    having = np.flatnonzero(supply)
    if count > len(having):
        raise InputError(f"classes:{count}: the data has {len(having)} classes")
    shares = np.zeros((clients, len(supply)))
    used = np.zeros(len(having))
    for row in shares:
        order = (used + random.uniform(0.5, 1.5, len(having))) / supply[having]
        chosen = np.argpartition(order, count - 1)[:count]
        used[chosen] += 1
        row[having[chosen]] = 1 / count
    return shares


def while_they_last(sizes: NDArray[np.int64], shares: Shares, supply: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole numbers for Dirichlet shares: when a class has run out, a client's other classes fill in.

    Client after client, as in Hsu et al. 2019. The sizes must not exceed the supply in sum.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    left = supply.copy()
    for row, size, wanted in zip(counts, sizes, shares, strict=True):
        while missing := int(size - row.sum()):
            open_shares = np.where(left > 0, wanted, 0.0)
            if open_shares.sum() <= 0:
                open_shares = left.astype(np.float64)
            got = np.minimum(apportion([missing], [open_shares])[0], left)
            row += got
            left -= got
    return counts


def unequal(mean: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sizes in proportion to weights, with the given mean, none below `SMALLEST`."""
    floored = np.zeros(len(weights), dtype=np.bool_)
    while True:
        rest = mean * len(weights) - SMALLEST * int(floored.sum())
        quotas = np.where(floored, SMALLEST, rest * weights / max(weights[~floored].sum(), 1e-300))
        low = ~floored & (quotas < SMALLEST)
        if not low.any():
            break
        floored |= low
    sizes = np.full(len(weights), SMALLEST, dtype=np.int64)
    if not floored.all():
        extra = np.where(floored, 0.0, quotas - SMALLEST)
        if extra.sum() > 0:
            sizes += apportion([(mean - SMALLEST) * len(weights)], [extra])[0]
    return sizes
