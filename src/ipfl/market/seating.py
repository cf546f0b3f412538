"""Who trains in which cluster, and a round's tables as the rows that it reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Seat
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.market.bids import finite_or_none
from ipfl.market.market_rows import Contribution, Figure


@dataclass(frozen=True)
class Seating:
    """Who trains in which cluster, and what became of it; (N, K) tables."""

    selected: Bools
    """Seats by performance."""
    explorers: Bools
    """Random seats."""
    delivered: Bools
    """Seats whose update came back."""
    excused: Bools
    """Seats that were lost through a fault of the server's own."""

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Seating:
        """Nobody trains."""
        return cls(*np.zeros((4, *shape), bool))

    @property
    def all(self) -> Bools:
        """Every seat."""
        return self.selected | self.explorers

    def rows(self, ids: NDArray[np.int64]) -> tuple[Seat, ...]:
        """All seats, cluster by cluster, those by performance first; `ids` says the client of each row."""
        tables: list[tuple[Literal["performance", "random"], Bools]] = [
            ("performance", self.selected),
            ("random", self.explorers),
        ]
        return tuple(
            Seat(int(ids[row]), k, how, bool(self.delivered[row, k]), bool(self.excused[row, k]))
            for k in range(self.selected.shape[1])
            for how, table in tables
            for row in np.flatnonzero(table[:, k]).tolist()
        )


def count_explorers(omega: Ints, start: float, floor: float = 0.05) -> int:
    """N_r = ⌈N · max(floor, start · unexplored)⌉.

    `start` of all clients, falling in proportion to the share not yet explored; rounded up, so that it is at
    least 1 and the floor holds.

    Args:
        omega: (N, K) participation: who has trained is explored.
        start: Share of N while nobody is explored.
        floor: Share of N at least.
    """
    unexplored = float((omega.sum(axis=1) == 0).mean())
    exact = len(omega) * max(floor, start * unexplored)
    return math.ceil(round(exact, 9))  # 100·0.2·0.4 is 8, whatever the binary digits say


def make_contributions(
    ids: NDArray[np.int64], omega: Ints, delivered: Bools, psi: Mapping[int, Floats]
) -> tuple[Contribution, ...]:
    """ψ_ki and Ω_ki of all providers.

    Args:
        ids: (N,) client of each row.
        omega: (N, K) participation, this round included.
        delivered: (N, K) seats whose update came back.
        psi: By cluster the contributions of its providers, in ascending row.
    """
    return tuple(
        Contribution(int(ids[row]), k, finite_or_none(value), int(omega[row, k]))
        for k, values in psi.items()
        for row, value in zip(np.flatnonzero(delivered[:, k]), values, strict=True)
    )


def figures(values: Mapping[int, float]) -> tuple[Figure, ...]:
    """A number for each cluster."""
    return tuple(Figure(cluster, finite_or_none(value)) for cluster, value in values.items())
