"""Names for the arrays of the market, and how its tables are read by cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ipfl.core.arrays import Bools, Floats, Ints

__all__ = ["Bools", "Floats", "Ints", "columns"]

_COLUMNS, _ROWS = 4, 512
"""Copied at once: half a cache line (a whole one takes twice the memory), and rows that stay in the cache."""


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
