"""Exact Shapley values, by their definition: what Algorithm 3 approximates."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray


def exact_shapley(value: Callable[[frozenset[int]], float], players: int) -> NDArray[np.float64]:
    """Mean gain of each player over all orders in which they may come: n! of them, for few players.

    Args:
        value: v(C) of a coalition; Eq. eq_value2: L(θ_{t−1}) − L(θ_C).
        players: n.
    """
    orders, gains = list(permutations(range(players))), np.zeros(players)
    for order in orders:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            gains[player] += value(before | {player}) - value(before)
    return gains / len(orders)
