"""Names for the arrays of the market, how its tables are read by cluster, and ranks in a long column."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ipfl.core.arrays import Bools, Floats, Ints

__all__ = ["Bools", "Floats", "Ints", "columns", "median", "nth_smallest"]

_COLUMNS, _ROWS = 4, 4096
"""Copied at once: half a cache line (a whole one takes twice the memory), and rows that stay in the cache."""
_SAMPLED = 64
"""One value in so many tells roughly where a rank lies."""


def columns(table: Floats) -> Iterator[Floats]:
    """The columns of an (N, K) table, one after the other, contiguous, each to be used before the next.

    A column that is read across a million rows loads a cache line for every number of it; here several
    columns share each line.
    """
    n, k = table.shape
    block = np.empty((min(k, _COLUMNS), n), table.dtype)
    for first in range(0, k, _COLUMNS):
        some = table[:, first : first + _COLUMNS]
        for row in range(0, n, _ROWS):
            block[: some.shape[1], row : row + _ROWS] = some[row : row + _ROWS].T
        yield from block[: some.shape[1]]


def nth_smallest(values: NDArray[np.float64], n: int) -> float:
    """`np.sort(values)[n]`, without sorting.

    To find one of a million values, `np.partition` moves nearly all of them. A sample says between which two
    the one must lie, and only what is between them is partitioned. Should the sample mislead, which counting
    shows, everything is. Many equal values are counted, because partitioning can be slow with them.
    """
    sample = np.sort(values[::_SAMPLED])
    margin = 2 * math.isqrt(len(sample))  # four standard deviations or more of a rank in the sample
    first, last = n // _SAMPLED - margin, n // _SAMPLED + margin
    low = sample[first] if first >= 0 else -np.inf
    high = sample[last] if last < len(sample) else np.inf
    for bound in (low, high):
        if np.count_nonzero(values < bound) <= n < np.count_nonzero(values <= bound):
            return float(bound)
    skipped = int(np.count_nonzero(values <= low))
    between = values.compress((values > low) & (values < high))
    if not skipped <= n < skipped + len(between):
        skipped, between = 0, values
    return float(np.partition(between, n - skipped)[n - skipped])


def median(values: NDArray[np.float64]) -> float:
    """`np.median` of at least one value, none of them NaN."""
    middle = len(values) // 2
    upper = nth_smallest(values, middle)
    return upper if len(values) % 2 else (nth_smallest(values, middle - 1) + upper) / 2
