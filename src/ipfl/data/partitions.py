"""Partitions over clients: each client's shares of the hidden distributions or of the classes, and its size.

Shares are a matrix with a row per client. Which points a client then gets is decided in
`ipfl.data.allocation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipfl.errors import InputError, unknown

PARTITIONS: Mapping[str, str] = {
    "a:b": "b % from the client's own distribution (client i: number i mod d), a % from the others; 10:90",
    "linear": "client k has (0.5 + k)/N from the first distribution; with more than two, of two neighbours",
    "random": "a mixture drawn uniformly at random for each client",
    "classes": "classes:c: c classes per client, in equal parts",
    "dirichlet": "dirichlet:alpha: a client's class shares from Dirichlet(alpha), until a class has run out",
    "natural": "each writer or person is a client, with distributions = natural",
}
"""Explanation of each kind, for `ipfl partitions`."""
MIN_UNEQUAL_SAMPLES = 5
"""Samples of the smallest client with unequal sizes."""

_QUOTA_DECIMALS = 9
"""Quotas are rounded to this, so that 0.1 · 30 = 3.0000000000000004 is a tie where it should be one."""
ShareMatrix = NDArray[np.float64]


@dataclass(frozen=True)
class Partition:
    """A parsed partition."""

    kind: str
    value: float = 0.0
    """Share of the own distribution (a:b), number of classes, or alpha."""

    @property
    def is_by_class(self) -> bool:
        """True if it mixes classes; all data of client i is then of distribution i mod d."""
        return self.kind in ("classes", "dirichlet")


def _parse_number(text: str, partition: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"partition {partition!r}: {text!r} is not a number")
    return value


def parse_partition(text: str) -> Partition:
    """Reads a partition such as `10:90`, `classes:4` or `linear`.

    Raises:
        InputError: It is none of `PARTITIONS`, or its numbers are out of range.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind in ("linear", "random", "natural"):
        if colon:
            raise InputError(f"partition {kind!r} takes no number, got {text!r}")
        return Partition(kind)
    if kind == "classes":
        value = _parse_number(rest, text)
        if value < 1 or value != int(value):
            raise InputError(f"partition {text!r}: expected a whole number of classes, at least 1")
        return Partition(kind, value)
    if kind == "dirichlet":
        value = _parse_number(rest, text)
        if value <= 0:
            raise InputError(f"partition {text!r}: alpha must be greater than 0")
        return Partition(kind, value)
    if not colon or not kind[:1].isdigit():
        raise unknown("partition", kind, PARTITIONS)
    others, own = _parse_number(kind, text), _parse_number(rest, text)
    if others < 0 or own < 0 or not math.isclose(others + own, 100):
        raise InputError(f"partition {text!r}: both parts must be at least 0 and sum to 100")
    return Partition("a:b", own / 100)


def distribution_shares(
    partition: Partition, clients: int, distributions: int, random: np.random.Generator
) -> ShareMatrix:
    """Shares of each distribution per client (clients, distributions), for a:b, linear and random."""
    if distributions == 1:
        return np.ones((clients, 1))
    client = np.arange(clients)
    if partition.kind == "random":
        # Uniform over all mixtures; with two distributions that is Uniform(0, 1).
        return random.dirichlet(np.ones(distributions), size=clients)
    if partition.kind == "linear":
        position = (distributions - 1) * (1 - (0.5 + client) / clients)
        left = np.minimum(position.astype(np.int64), distributions - 2)
        shares = np.zeros((clients, distributions))
        shares[client, left] = 1 - (position - left)
        shares[client, left + 1] = position - left
        return shares
    shares = np.full((clients, distributions), (1 - partition.value) / (distributions - 1))
    shares[client, client % distributions] = partition.value
    return shares


def class_shares(
    partition: Partition, clients: int, supply: NDArray[np.int64], random: np.random.Generator
) -> ShareMatrix:
    """Shares of each class per client (clients, classes), for classes:c and dirichlet:alpha.

    With classes:c a client gets the classes used least so far for their supply, the order partly random:
    all points are used about equally often, and a rare class goes to fewer clients.
    """
    if partition.kind == "dirichlet":
        drawn = random.dirichlet(np.full(len(supply), partition.value), size=clients)
        # A tiny alpha can underflow to a row of zeros or NaN: such a client gets a single class.
        is_invalid = ~(np.isfinite(drawn).all(axis=1) & (drawn.sum(axis=1) > 0))
        drawn[is_invalid] = np.eye(len(supply))[random.integers(len(supply), size=int(is_invalid.sum()))]
        return drawn
    count = int(partition.value)
    present = np.flatnonzero(supply)
    if count > len(present):
        raise InputError(f"classes:{count}: the data has {len(present)} classes")
    shares = np.zeros((clients, len(supply)))
    used = np.zeros(len(present))
    for row in shares:
        order = (used + random.uniform(0.5, 1.5, len(present))) / supply[present]
        chosen = np.argpartition(order, count - 1)[:count]
        used[chosen] += 1
        row[present[chosen]] = 1 / count
    return shares


def counts_within_supply(
    sizes: NDArray[np.int64], shares: ShareMatrix, supply: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Numbers of points for Dirichlet shares: where a class has run out, a client's other classes replace it.

    Client after client, as in Hsu et al. 2019.

    Args:
        sizes: Number of points of each client; their sum must not exceed that of the supply.
        shares: Shares of each class per client.
        supply: Number of points of each class.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    left = supply.copy()
    for row, size, wanted in zip(counts, sizes, shares, strict=True):
        while missing := int(size - row.sum()):
            possible = np.where(left > 0, wanted, 0.0)
            if possible.sum() <= 0:
                possible = left.astype(np.float64)
            got = np.minimum(largest_remainder([missing], [possible])[0], left)
            row += got
            left -= got
    return counts


def unequal_sizes(mean: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sizes in proportion to weights, with the given mean, none smaller than `MIN_UNEQUAL_SAMPLES`."""
    is_smallest = np.zeros(len(weights), dtype=np.bool_)
    while True:
        rest = mean * len(weights) - MIN_UNEQUAL_SAMPLES * int(is_smallest.sum())
        quotas = np.where(
            is_smallest, MIN_UNEQUAL_SAMPLES, rest * weights / max(weights[~is_smallest].sum(), 1e-300)
        )
        too_small = ~is_smallest & (quotas < MIN_UNEQUAL_SAMPLES)
        if not too_small.any():
            break
        is_smallest |= too_small
    sizes = np.full(len(weights), MIN_UNEQUAL_SAMPLES, dtype=np.int64)
    if not is_smallest.all():
        extra = np.where(is_smallest, 0.0, quotas - MIN_UNEQUAL_SAMPLES)
        if extra.sum() > 0:
            sizes += largest_remainder([(mean - MIN_UNEQUAL_SAMPLES) * len(weights)], [extra])[0]
    return sizes


def largest_remainder(totals: ArrayLike, shares: ArrayLike) -> NDArray[np.int64]:
    """Splits each row's total in proportion to its shares; every count differs from its quota by less than 1.

    Args:
        totals: What to split, one whole number per row.
        shares: Non-negative weights (rows, columns), with a positive sum in each row.

    Returns:
        Counts (rows, columns) whose rows sum to the totals; equal remainders go to the lower column.
    """
    whole = np.asarray(totals, dtype=np.int64).reshape(-1)
    weights = np.atleast_2d(np.asarray(shares, dtype=np.float64))
    quotas = np.round(weights / weights.sum(axis=1, keepdims=True) * whole[:, None], _QUOTA_DECIMALS)
    counts: NDArray[np.int64] = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    missing = whole - counts.sum(axis=1)
    counts += ranks < missing[:, None]
    return counts


def probe_size(samples: NDArray[np.int64] | int, share: float) -> NDArray[np.int64]:
    """Number of points held back to score models: the share, at least 1, with at least 1 left to train on."""
    total = np.asarray(samples, dtype=np.int64)
    # Half rounds up; the small constant keeps 0.29 · 50 = 14.499999999999998 a half.
    rounded = np.floor(share * total + 0.5 + 1e-9).astype(np.int64)
    size: NDArray[np.int64] = np.clip(rounded, 1, total - 1)
    return size
