"""Scalar products of a cluster's updates, among themselves and with directions that everybody knows.

Who is a copy, who is too long, who agrees with whom, and what is new in an update: all of it follows from
this one table. The long vectors are read once, block by block, in float64.

A known direction is the way from one model to another. Their difference is taken block by block too: models
are kept anyway, and vectors of differences would have to be kept and written beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector

STRETCH = 8192
"""Parameters that are read at a time: a dozen rows of them in float64 stay in the processor's cache."""
Way = tuple[Vector, Vector]
"""From one model to another: the direction is their difference, in the precision of the models."""
MIN_INDEPENDENT = 1e-10
"""Least λ, of unit vectors, of a direction of its own; below it what is known is the same up to rounding."""


@dataclass(frozen=True)
class UpdateProducts:
    """Products of n updates Δ_i and of m known directions."""

    among: NDArray[np.float64]
    """(n, n) Δ_i·Δ_j."""
    along: NDArray[np.float64]
    """(n, m) of updates and known directions."""
    known: NDArray[np.float64]
    """(m, m) of known directions."""
    has_direction: bool
    """Whether the last known direction is M_k, the running direction of the cluster."""
    size: int
    """P, the length of the vectors."""

    @classmethod
    def of(
        cls, models: Sequence[Vector], before: Vector, known: Sequence[Way], direction: Vector | None
    ) -> UpdateProducts:
        """Of trained models W_i: Δ_i = W_i − before.

        Args:
            models: W_i.
            before: What they were trained from.
            known: Directions that everybody knows, M_k excepted.
            direction: M_k; None: there is none yet.
        """
        n, m = len(models), len(known)
        rows = n + m + (direction is not None)
        table, part = np.zeros((rows, rows)), np.empty((rows, min(STRETCH, len(before))))
        for start in range(0, len(before), STRETCH):
            where = slice(start, min(start + STRETCH, len(before)))
            stretch = part[:, : where.stop - start]
            for row, model in enumerate(models):
                stretch[row] = model[where]
            stretch[:n] -= before[where].astype(np.float64)
            for row, (first, last) in enumerate(known, n):
                stretch[row] = last[where] - first[where]
            if direction is not None:
                stretch[n + m] = direction[where]
            table += stretch @ stretch.T
        return cls(table[:n, :n], table[:n, n:], table[n:, n:], direction is not None, len(before))

    def only(self, which: NDArray[np.bool_]) -> UpdateProducts:
        """Those of some of the updates."""
        among, along = self.among[np.ix_(which, which)], self.along[which]
        return UpdateProducts(among, along, self.known, self.has_direction, self.size)

    @property
    def lengths(self) -> NDArray[np.float64]:
        """(n,) of the updates."""
        return np.asarray(np.sqrt(self.among.diagonal()))

    @property
    def beyond_known(self) -> NDArray[np.float64]:
        """(n, n) products of what is left of the updates without their projection onto what is known.

        With unit vectors b of what is known, and λ and v of the table of their products: an update's
        coordinates in the orthonormal basis Σ_j v_j·b_j / √λ are those of Δ·b.
        """
        square = self.known.diagonal()
        moves = square > 0
        if not moves.any():
            return self.among
        length = np.sqrt(square[moves])
        among = self.known[np.ix_(moves, moves)] / np.outer(length, length)
        values, directions = np.linalg.eigh(among)
        is_basis = values > MIN_INDEPENDENT
        coordinates = (self.along[:, moves] / length) @ directions[:, is_basis] / np.sqrt(values[is_basis])
        return np.asarray(self.among - coordinates @ coordinates.T)
