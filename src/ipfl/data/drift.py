"""Drift: pairs of clients of different majority distributions exchange all their data from a round on.

No new points are needed, and every point stays with one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ipfl.errors import InputError


@dataclass(frozen=True)
class Drift:
    """From `round` on, each client in `partner` has the data of its partner, and the reverse."""

    round: int
    partner: Mapping[int, int]


def choose_drift(
    majorities: Sequence[int | None],
    clients: Sequence[int],
    change_round: int,
    share: float,
    random: np.random.Generator,
) -> Drift:
    """Chooses pairs of clients with different majority distributions, up to the share of all clients.

    Args:
        majorities: By client id, the unseen included.
        clients: Ids of the clients that may change.
        change_round: Round of the change.
        share: Of all clients; an odd number is reduced by one, and at least one pair changes.
        random: Draws the pairs.

    Raises:
        InputError: There are no two clients of different distributions.
    """
    by_majority: dict[int, list[int]] = {}
    for client in random.permutation(np.asarray(clients)).tolist():
        majority = majorities[client]
        if majority is not None:
            by_majority.setdefault(majority, []).append(client)
    partner: dict[int, int] = {}
    max_changed = max(2, round(share * len(majorities)))
    while len(partner) + 2 <= max_changed:
        # From the two with most clients left, so that as many pairs as possible can be made.
        largest = sorted(by_majority.values(), key=len)[-2:]
        if len(largest) < 2 or not largest[0]:
            break
        one, other = largest[0].pop(), largest[1].pop()
        partner[one], partner[other] = other, one
    if not partner:
        raise InputError("drift needs clients of at least two distributions: there is nothing to change to")
    return Drift(change_round, partner)
